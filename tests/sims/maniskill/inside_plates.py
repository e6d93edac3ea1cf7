"""Checks of the put-on-plate tasks with shapes, in ManiSkill's own Python environment; `inside.py` runs them."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from embodied_rl.interfaces.sim import Episode
from embodied_rl.testing.simulator_contract import check_simulator
from embodied_rl_sims.maniskill import ManiSkill, ManiSkillConfig
from embodied_rl_sims.maniskill.plate_scenes import SPLITS, count_scenes, find_heights, find_scene, list_joints
from embodied_rl_sims.maniskill.settings import PLATE_CONTROL

CHECKS: dict[str, Callable[[], None]] = {}
MAIN = "PutOnPlateInScene25Main-v3"
NUMBER = 123456789
HOLD = np.array([[[0, 0, 0, 0, 0, 0, 1]]], np.float32)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def build(num_envs: int, **keys: Any) -> ManiSkill:
    fixed = {"shapes": True, "control_mode": PLATE_CONTROL, "image_size": 24}
    return ManiSkill(ManiSkillConfig(**{"task": MAIN, "observations": "state", **fixed, **keys}), num_envs)


def env_of(sim: ManiSkill) -> Any:
    return sim._inner.environment(0).env


@check
def plates_keep_the_contract() -> None:
    check_simulator(lambda n: build(n, observations="rgb", horizon=4), executed=3)


@check
def a_numbered_scene_is_set_up_as_numbered() -> None:
    """Before things fall: places, turns and joints are those of the table of scenes; all else waits beside."""
    from embodied_rl_sims.maniskill import plate_tasks

    for task, split in SPLITS.items():
        sim = build(1, task=task)
        with patch.object(plate_tasks, "SETTLE", 0), patch.object(plate_tasks, "LONGER", 0):
            shown = sim.reset([Episode(0, 0, 5, initial_state=NUMBER)])
        env, scene = env_of(sim), find_scene(split, NUMBER)
        assert shown.instruction == (scene.instruction,) and scene.instruction.split()
        third = {"object": ("carrot", scene.extra), "plate": ("plate", scene.extra)}.get(str(split.extra))
        wanted = [("carrot", scene.object), ("plate", scene.plate), *([third] if third else [])]
        places = {which: (*scene.positions[i], find_heights(split)[i]) for i, which in enumerate(wanted)}
        for kind, things in env.things.items():
            for number, body in things.items():
                place = body.pose.p[0].numpy()
                if (kind, number) in places:
                    assert np.allclose(place, places[kind, number], atol=1e-6), f"{task}: {kind} {number} at {place}"
                else:
                    assert place[0] >= 1, f"{task}: {kind} {number} does not wait"
        turn = env.things["carrot"][scene.object].pose.q[0].numpy()
        assert np.isclose(2 * np.arctan2(turn[3], turn[0]), scene.rotation, atol=1e-5), f"{task}: turned otherwise"
        joints = plate_tasks.JOINTS[:6] + (list_joints()[scene.extra] if split.extra == "robot" else 0)
        assert np.allclose(env.agent.robot.get_qpos()[0, :6].numpy(), joints, atol=1e-6), f"{task}: joints differ"
        sim.close()


@check
def a_seed_draws_the_scene_that_the_official_code_draws() -> None:
    sim = build(1)
    for seed in (0, 7):
        sim.reset([Episode(0, 0, seed)])
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            number = int(torch.randint(low=0, high=count_scenes(SPLITS[MAIN]), size=(1,)))
        scene, wanted = env_of(sim).scenes[0], find_scene(SPLITS[MAIN], number)
        assert (scene.object, scene.table, scene.rotation) == (wanted.object, wanted.table, wanted.rotation)
        assert np.array_equal(scene.positions, wanted.positions)
    sim.close()


@check
def an_episode_does_not_depend_on_what_fell_before_it() -> None:
    """Not on a scene that was begun and never stepped: contacts of this one, kept, move its things by 0.06 mm."""
    sim, number = build(1, task="PutOnPlateInScene25MultiCarrot-v1"), 30919
    sim.reset([Episode(0, 0, 0)])
    sim.step(HOLD, [None])  # what was stepped is always forgotten
    shown = [sim.reset([Episode(0, 0, 0, initial_state=each)]) for each in (number, number + 1, number)]
    assert np.array_equal(shown[0].state, shown[2].state), "things lie elsewhere"
    sim.close()


def put(sim: ManiSkill, offset: Any) -> tuple[bool, dict[str, Any]]:
    """Put the object at an offset from its plate's centre, in metres, and hold the robot still for two steps."""
    from mani_skill.utils.structs.pose import Pose

    sim.reset([Episode(0, 0, 0, initial_state=0)])
    env = env_of(sim)
    rest = env._sizes[:, 0, 2].sum() / 2
    place = env.things["plate"][0].pose.p + torch.tensor([[*offset[:2], offset[2] + rest]])
    env.things["carrot"][0].set_pose(Pose.create_from_pq(place, env.things["carrot"][0].pose.q))
    results = [sim.step(HOLD, [None]) for _ in range(2)]
    return bool(results[-1].success[0, 0]), sim._inner.environment(0)._info


@check
def on_the_plate_is_success_and_beside_it_is_none() -> None:
    sim = build(1, terminate_on_success=False)
    assert put(sim, (0, 0, 0.002))[0], "on the plate"
    assert put(sim, (0.04, -0.02, 0.002))[0], "at its rim"
    assert not put(sim, (0.0, 0.15, 0.002))[0], "on the table beside it"
    sim.close()


@check
def the_operator_puts_objects_on_plates_and_what_it_holds_is_no_success() -> None:
    sim = build(1, reward="dense")
    solved = 0
    for seed in (1, 3, 5, 6):
        sim.reset([Episode(seed, 0, seed)])
        operator, paid, facts = sim.expert(), 0.0, []
        for _ in range(40):
            result = sim.step(operator()[:, None], [None])
            info, paid = sim._inner.environment(0)._info, paid + float(result.reward[0, 0])
            facts.append([bool(info[name]) for name in ("is_src_obj_grasped", "consecutive_grasp", "success")])
            assert facts[-1][2] == result.success[0, 0]
            if result.terminated[0]:
                break
        grasps, held, success = (list(column) for column in zip(*facts, strict=True))
        if success[-1]:
            solved += 1
            assert held.index(True) - grasps.index(True) == 4, "five control steps of one grasp"
            assert not any(success[: held.index(True)]), "it is held in the air"
            assert np.isclose(paid, 1.2), f"RLinf's reward adds up to {paid}"
    assert solved >= 3, f"{solved} of 4 solved"
    sim.close()


@check
def facts_do_not_depend_on_how_often_they_are_read() -> None:
    sim = build(1)
    sim.reset([Episode(0, 0, 1)])
    operator, env = sim.expert(), env_of(sim)
    for _ in range(9):
        sim.step(operator()[:, None], [None])
    counted = int(env._grasps[0])
    for _ in range(9):
        env.get_info()
    assert int(env._grasps[0]) == counted and 0 < counted < 9
    sim.close()


@check
def an_object_is_moved_at_the_fifth_step_where_the_task_says_so() -> None:
    sim = build(1, task="PutOnPlateInScene25PositionChangeTo-v1")
    sim.reset([Episode(0, 0, 0, initial_state=NUMBER)])
    env, places = env_of(sim), []
    for _ in range(6):
        places.append(env._both(lambda body: body.pose.p)[0, 0, :2].numpy().copy())
        sim.step(HOLD, [None])
    positions = env.scenes[0].positions
    assert np.allclose(places[4], positions[0], atol=0.02), f"{places[4]} before"
    assert np.allclose(places[5], positions[2], atol=0.02), f"{places[5]} after"
    sim.close()


@check
def the_tables_picture_is_behind_robot_and_things() -> None:
    tables, number = {}, 3000
    for task in (MAIN, "PutOnPlateInScene25VisionTexture03-v1", "PutOnPlateInScene25VisionWhole05-v1"):
        sim = build(1, task=task, observations="rgb")
        shown = sim.reset([Episode(0, 0, 0, initial_state=number)])
        env = env_of(sim)
        tables[task] = shown.images["3rd_view_camera"][0], env.scenes[0], partial(env.parts.draw_texture, 1)
        sim.close()
    plain, scene, _ = tables[MAIN]
    colour = env.parts.draw_table(scene.table, 1, 1)[0, 0]
    behind = (plain == colour).all(axis=-1)
    assert 0.4 < behind.mean() < 0.95, f"{behind.mean():.0%} of the picture is the table"
    covered = tables["PutOnPlateInScene25VisionTexture03-v1"][0]
    assert np.array_equal((covered == colour).all(axis=-1), behind), "a texture covers robot and things alone"
    whole, _, texture = tables["PutOnPlateInScene25VisionWhole05-v1"]
    rows, columns = (np.flatnonzero((~behind).any(axis=axis)) for axis in (1, 0))
    down, across = (max((each[0] + each[-1]) // 2, 1) for each in (rows, columns))
    part = texture(64, 48)[0][down : down + 24, across : across + 32].astype(float)
    assert np.allclose(whole, plain * 0.5 + part * 0.5, atol=1), "half of the texture everywhere"


@check
def provenance_says_that_things_are_shapes() -> None:
    config = ManiSkillConfig(task=MAIN, shapes=True, control_mode=PLATE_CONTROL, image_size=24)
    assert ManiSkill.provenance(config)["scene"].startswith("shapes in place of RL4VLA's")
    assert ManiSkill.spec_of(config).tasks[0].name == f"{MAIN}-shapes"
