"""Checks that run in ManiSkill's own Python environment: `python inside.py` prints a verdict for each, as JSON."""

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import gymnasium
import inside_plates
import numpy as np
import torch

from embodied_rl.interfaces.sim import Episode, Unavailable
from embodied_rl.testing.simulator_contract import check_simulator
from embodied_rl_sims.maniskill import ManiSkill, ManiSkillConfig, batch_reset, batched, package, simulator, single

CHECKS: dict[str, Callable[[], None]] = inside_plates.CHECKS
_SIZE = 32
_free: dict[Any, list[Any]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def reused(config: ManiSkillConfig, num_envs: int = 1) -> Any:
    """Environments that other simulators have used, and closed: building them takes most of the time, and an episode
    must not show what its environment ran before.
    """
    key = (dataclasses.replace(config, horizon=None), num_envs)
    pool = _free.setdefault(key, [])
    if pool:
        env = pool.pop()
        single.renew_scene(env)  # as at the end of any episode that has been stepped
        return env
    env = package.make_environment(config, num_envs)
    env.close = lambda: pool.append(env)
    return env


def build(num_envs: int, **keys: Any) -> ManiSkill:
    return ManiSkill(ManiSkillConfig(**{"image_size": _SIZE, **keys}), num_envs)


def package_loop(config: ManiSkillConfig, seed: int, actions: list[Any]) -> Iterator[tuple[Any, float, bool, Any]]:
    """The package's own environment, as its documentation steps it: flat state, reward, success, picture."""
    env = gymnasium.make(
        config.task,
        obs_mode={"state": "state", "rgb": "state+rgb"}[config.observations],
        control_mode=config.control_mode,
        reward_mode=config.reward,
        sim_backend="physx_cpu",
        render_backend="cpu",
        sensor_configs={"width": _SIZE, "height": _SIZE, "shader_pack": "minimal"},
    )
    env.reset(seed=seed)
    for action in actions:
        shown, reward, _, _, info = env.step(action)
        picture = shown["sensor_data"]["base_camera"]["rgb"][0].numpy() if config.observations == "rgb" else None
        state = shown["state"] if config.observations == "rgb" else shown
        yield state[0].numpy(), float(reward), bool(info["success"]), picture
    env.close()


def operated(task: str, seed: int, steps: int) -> list[Any]:
    """Actions [A] of an operator's episode."""
    sim = build(1, task=task, observations="state", terminate_on_success=False)
    operator = sim.expert()
    sim.reset([Episode(0, 0, seed)])
    actions = []
    for _ in range(steps):
        actions.append(operator()[0])
        sim.step(actions[-1][None, None], [None])
    sim.close()
    return actions


def compare_with_the_package(task: str, observations: str, seed: int, steps: int = 24, chunk: int = 1) -> None:
    """Step by step, or where a chunk ends; in an environment that has just ended an episode in contact."""
    keys = {"observations": observations, "reward": "normalized_dense", "image_size": _SIZE}
    config = ManiSkillConfig(task=task, terminate_on_success=False, **keys)
    sim = ManiSkill(config, 1)
    sim.reset([Episode(0, 0, seed + 100)])
    sim.step(np.array([operated(task, seed + 100, 16)]), [None])
    actions = operated(task, seed, steps)
    loop = package_loop(config, seed, actions)
    sim.reset([Episode(1, 0, seed)])
    for start in range(0, steps, chunk):
        result = sim.step(np.array([actions[start : start + chunk]]), [None])
        for j in range(chunk):
            state, reward, success, picture = next(loop)
            where = f"step {start + j}"
            assert np.float32(reward) == result.reward[0, j], f"reward differs: {where}"
            assert success == result.success[0, j], f"success differs: {where}"
        shown = result.observation
        if observations == "state":
            assert np.array_equal(state, shown.state[0]), f"state differs: {where}"
        else:
            assert np.array_equal(picture, shown.images["base_camera"][0]), f"picture differs: {where}"
            assert sorted(state) == sorted([*shown.state[0], *shown.privileged[0]]), f"state differs: {where}"
    assert success, "the operator did not solve this seed: nothing was compared where it matters"
    sim.close()


@check
def pushing_from_the_state_is_the_packages() -> None:
    compare_with_the_package("PushCube-v1", "state", seed=3)


@check
def picking_from_the_state_is_the_packages() -> None:
    for seed in (3, 4):
        compare_with_the_package("PickCube-v1", "state", seed)


@check
def pushing_from_pictures_is_the_packages() -> None:
    compare_with_the_package("PushCube-v1", "rgb", seed=4, chunk=8)


@check
def picking_from_pictures_is_the_packages() -> None:
    compare_with_the_package("PickCube-v1", "rgb", seed=3, chunk=4)


@check
def contract_holds_for_the_state() -> None:
    check_simulator(lambda n: build(n, observations="state", horizon=7), executed=3)


@check
def contract_holds_for_pictures() -> None:
    check_simulator(lambda n: build(n, task="PushCube-v1", horizon=4), executed=3)


@check
def a_chunk_draws_once() -> None:
    sim = build(1, horizon=50)
    sim.reset([Episode(0, 0, 3)])
    env = sim._inner.environment(0).env
    drawn, draw = [], env._get_obs_sensor_data
    env._get_obs_sensor_data = lambda *given: drawn.append(1) or draw(*given)
    sim.step(np.zeros((1, 8, 7), np.float32), [None])
    assert len(drawn) == 1, f"{len(drawn)} pictures for a chunk of 8 actions"
    sim.close()


@check
def a_video_shows_the_goal_and_observations_do_not() -> None:
    sim = build(1)
    before = sim.reset([Episode(0, 0, 3)]).images["base_camera"]
    film = sim.render(0, 96, 64).astype(int)
    assert film.shape == (64, 96, 3)
    greenish = (film[..., 1] > film[..., 0] + 40) & (film[..., 1] > film[..., 2] + 40)
    assert greenish.any(), "the video does not show the green goal"
    assert np.array_equal(before, sim.reset([Episode(0, 0, 3)]).images["base_camera"]), "a video changes observations"
    sim.close()


@check
def operators_solve_their_tasks() -> None:
    for task, mode in (("PushCube-v1", "pd_ee_delta_pose"), ("PickCube-v1", "pd_ee_delta_pos")):
        sim = build(5, task=task, observations="state", control_mode=mode)
        sim.reset([Episode(seed, 0, seed) for seed in range(5)])
        operator, solved = sim.expert(), np.zeros(5, bool)
        for _ in range(30):
            solved |= sim.step(operator()[:, None], [None] * 5).terminated
        assert solved.sum() >= 4, f"{task} in {mode}: {solved.sum()} of 5 solved"
        sim.close()


@check
def plans_are_the_packages() -> None:
    from mani_skill.examples.motionplanning.panda.run import MP_SOLUTIONS

    for task, seed in (("PushCube-v1", 1), ("PickCube-v1", 0), ("PickCube-v1", 2)):
        env = gymnasium.make(task, control_mode="pd_joint_pos", sim_backend="physx_cpu", render_backend="cpu")
        solution = MP_SOLUTIONS[task](env, seed=seed, debug=False, vis=False)[-1]
        env.close()
        keys: dict[str, Any] = {"observations": "state", "control_mode": "pd_joint_pos", "horizon": 150}
        sim = build(1, task=task, terminate_on_success=False, **keys)
        sim.reset([Episode(0, 0, seed)])
        operator = sim.expert()
        for _ in range(int(solution["elapsed_steps"])):
            result = sim.step(operator()[:, None], [None])
        assert bool(solution["success"]) == result.success[0, 0], f"{task}, seed {seed}: success differs"
        assert result.success[0, 0], f"{task}, seed {seed}: not solved"
        sim.close()


@check
def a_batch_of_one_is_a_row() -> None:
    config = ManiSkillConfig(task="PushCube-v1", image_size=_SIZE, horizon=7, reward="normalized_dense")
    rows = ManiSkill(config, 1)
    env = package.make_environment(config)
    several = batched.BatchedSimulator(config, rows.spec, env)
    episodes = [[Episode(i, 0, 7 + i)] for i in range(5)]
    pairs = [(rows.reset(episodes[0]), several.reset(episodes[0]))]
    for chunk in range(4):
        actions = np.random.default_rng(chunk).uniform(-1.5, 1.5, (1, 5, 7)).astype(np.float32)
        left, right = (sim.step(actions, episodes[1 + chunk]) for sim in (rows, several))
        for name in ("reward", "success", "steps", "executed", "source", "terminated", "truncated", "ended"):
            assert np.array_equal(getattr(left, name), getattr(right, name)), f"{name} differs in chunk {chunk}"
        assert (left.final_observation is None) == (right.final_observation is None)
        pairs.append((left.observation, right.observation))
        if left.final_observation is not None:
            pairs.append((left.final_observation, right.final_observation))
    assert len(pairs) > 6, "no episode ended"
    for left, right in pairs:
        assert isinstance(right.state, torch.Tensor) and left.instruction == right.instruction
        for one, other in ((left.state, right.state), (left.privileged, right.privileged), *both(left, right)):
            assert np.array_equal(one, other.numpy()), "observations differ"


def both(left: Any, right: Any) -> list[tuple[Any, Any]]:
    return [(image, right.images[name]) for name, image in left.images.items()]


@check
def rows_that_begin_together_begin_as_the_packages_loop_does() -> None:
    """What tasks set of bodies and joints: one has a sampler that rejects, one draws in a way of its own."""
    for task in ("PushCube-v1", "PickCube-v1", "PushT-v1", "PullCubeTool-v1", "StackCube-v1", "PlugCharger-v1"):
        env = package.make_environment(ManiSkillConfig(task=task, control_mode="pd_joint_delta_pos", image_size=_SIZE))
        with recorded() as told:
            alone = []
            for seed in range(20):
                told.clear()
                env.reset(seed=seed)
                alone.append(told[:])
            env.num_envs, rngs = 23, [np.random.RandomState() for _ in range(23)]  # as in a batch on a device
            env._batched_episode_rng = type(env._batched_episode_rng)(rngs)
            env._episode_seed = np.arange(23)
            resetter = batch_reset.RowResetter(env)
            resetter._initialize(torch.arange(20), {})  # may find that it cannot be done together
            told.clear()
            resetter._initialize(torch.arange(20), {})
            compare_beginnings(task, alone, told, resetter._together)
        assert resetter._together == (task not in ("StackCube-v1", "PlugCharger-v1")), task
        env.num_envs = 1
        env.close()


def compare_beginnings(task: str, alone: list[Any], told: list[Any], together: bool) -> None:
    per_row = len(told) if together else len(told) // 20
    for seed, wanted in enumerate(alone):
        mine = told if together else told[seed * per_row :][:per_row]
        assert per_row > 1, f"{task} sets nothing"
        for (name, given), (other, value) in zip(wanted[-per_row:], mine, strict=True):
            value = value[seed % len(value)] if together else value
            assert name == other, f"{task} sets {other} in place of {name}"
            assert np.array_equal(given.ravel(), value.ravel()), f"{task}, seed {seed}: {name} begins elsewhere"


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """What is set of bodies and joints, in place of setting it."""
    from mani_skill.agents.base_agent import BaseAgent
    from mani_skill.utils.structs import Actor, Articulation

    told: list[tuple[str, Any]] = []

    def telling(kind: str) -> Callable[..., None]:
        def tell(self: Any, value: Any = None, *_: Any) -> None:
            if value is not None:  # a pose of the package is an array of rows; one of the engine is the same for all
                raw = value.raw_pose if hasattr(value, "raw_pose") else getattr(value, "p", value)
                told.append((f"{kind} of {getattr(self, 'name', 'the robot')}", np.atleast_2d(np.asarray(raw))))

        return tell

    with ExitStack() as stack:
        for owner, name in (
            (Actor, "set_pose"),
            (Articulation, "set_pose"),
            (Articulation, "set_qpos"),
            (BaseAgent, "reset"),
        ):
            stack.enter_context(patch.object(owner, name, telling(name)))
        yield told


@check
def what_is_missing_is_named() -> None:
    refusals = {
        "PickCub-v1": (ValueError, "Did you mean PickCube-v1"),
        "PickSingleYCB-v1": (Unavailable, "mani_skill.utils.download_asset ycb"),  # declared
        "OpenCabinetDoor-v1": (Unavailable, "mani_skill.utils.download_asset partnet_mobility_cabinet"),  # an error
        "AnymalC-Reach-v1": (Unavailable, "mani_skill.utils.download_asset anymal_c"),  # a question
        "ReplicaCAD_SceneManipulation-v1": (Unavailable, "mani_skill.utils.download_asset ReplicaCAD"),  # a file
        "TwoRobotPickCube-v1": (ValueError, "several robots"),
    }
    with refuses(Unavailable, "download_asset bridge_v2_real2sim && "):
        ManiSkill(ManiSkillConfig(task=inside_plates.MAIN, control_mode=inside_plates.PLATE_CONTROL), 1)
    for task, (kind, message) in refusals.items():
        with refuses(kind, message):
            ManiSkill.spec_of(ManiSkillConfig(task=task, control_mode="pd_joint_delta_pos"))
    with refuses(ValueError, "pd_ee_delta_pose"):
        ManiSkill.spec_of(ManiSkillConfig(control_mode="pd_unknown"))
    with refuses(ValueError, "it has sparse"):
        ManiSkill.spec_of(ManiSkillConfig(task="StackPyramid-v1", reward="dense"))


@check
def a_wrist_camera_comes_with_its_robot() -> None:
    spec = ManiSkill.spec_of(ManiSkillConfig(robot="panda_wristcam"))
    assert [camera.name for camera in spec.cameras] == ["base_camera", "hand_camera"]


@check
def it_tells_its_health() -> None:
    lines = {line.name: line for line in ManiSkill.diagnose(ManiSkillConfig(image_size=_SIZE))}
    assert "frames/s" in lines["renderer"].found
    assert {line.status for line in lines.values()} <= {"ok", "warn"}, lines
    found = ManiSkill.provenance(ManiSkillConfig())
    assert found["mani_skill"] == lines["mani_skill"].found and len(found["mani_skill files sha256"]) == 64


@contextmanager
def refuses(kind: type[Exception], message: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert message in str(error), f"'{message}' is missing from: {error}"
    else:
        raise AssertionError(f"nothing was refused; expected: {message}")


def verdict(function: Callable[[], None]) -> str:
    """Empty where the check holds, else the traceback."""

    try:
        function()
    except Exception:  # noqa: BLE001  reported to the test
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    simulator.make_environment = reused
    names = sys.argv[1:] or list(CHECKS)
    try:
        ManiSkill.spec_of(ManiSkillConfig(task="PushCube-v1"))
    except Unavailable as error:
        print(json.dumps({"unavailable": str(error)}))
    else:
        print(json.dumps({name: verdict(CHECKS[name]) for name in names}))
