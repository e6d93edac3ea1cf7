"""What tests run in Isaac Lab's own environment: `python inside.py <arrays.npz> '[[<function>, {<arguments>}], …]'`.

Each function returns named arrays, which go into the file with the function's number before their names. One process
runs all, because Isaac Lab compiles its kernels in each. Robots are of boxes: the package's, and those of `scenes.py`.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import scenes
import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Unavailable
from embodied_rl.testing.simulator_contract import Check
from embodied_rl_sims.common import fold_seed
from embodied_rl_sims.isaaclab import IsaacLab, IsaacLabConfig
from embodied_rl_sims.isaaclab.launch import make_config, start_runtime

FOLDER = Path(tempfile.mkdtemp())
scenes.write_arm(FOLDER / "arm.usda")
STATE = {"id": "Isaac-Cartpole-Direct", "shapes": True}
CAMERA = {"id": "Isaac-Cartpole-Camera-Direct", "cameras": ("tiled_camera",), "image_size": 48, "shapes": True}
MANAGED = {"id": "Isaac-Cartpole", "shapes": True}
ARM = {
    "id": "Isaac-Reach-Franka",
    "options": {"scene.robot.spawn.usd_path": str(FOLDER / "arm.usda"), "scene.ground": None},
}
TASKS = {"state": STATE, "camera": CAMERA, "managed": MANAGED, "arm": ARM}


def build(num_envs: int, task: str, **settings: Any) -> IsaacLab:
    options = {**TASKS[task].get("options", {}), **settings.pop("options", {})}
    return IsaacLab(IsaacLabConfig(**{**TASKS[task], **settings, "options": options}), num_envs)


def episodes(*seeds: int | None) -> list[Episode | None]:
    return [None if seed is None else Episode(seed, 0, seed) for seed in seeds]


def contract(task: str, checks: list[str], **settings: Any) -> dict[str, Array]:
    """What each check of the contract finds wrong."""
    found = {}
    for name in checks:
        try:
            getattr(Check(lambda rows: build(rows, task, **settings)), name)()
            found[name] = np.array("")
        except AssertionError as error:
            found[name] = np.array(str(error))
    return found


def own_loop(task: str, seeds: list[int], steps: int, seeded: bool) -> dict[str, Array]:
    """Observations, rewards and terminations by ours and by the package's own loop, with the same actions.

    Ours runs all seeds side by side; the package each alone where `seeded`, otherwise all with the first one's seed.
    """
    ours = build(len(seeds), task, seeded=seeded)
    actions = np.random.default_rng(0).uniform(-0.2, 0.2, (len(seeds), steps, ours.spec.action_dim)).astype(np.float32)
    seen = [ours.reset(episodes(*seeds)).state]
    rest = []
    for j in range(steps):
        result = ours.step(actions[:, j : j + 1], episodes(*seeds))
        seen.append(result.observation.state)
        rest.append([result.reward[:, 0], result.terminated])
    ours.close()
    rows = [[row] for row in range(len(seeds))] if seeded else [list(range(len(seeds)))]
    theirs = [package_loop(task, len(each), seeds[each[0]], actions[each]) for each in rows]
    return {
        "ours_state": np.array(seen),
        "ours_rest": np.array(rest, np.float32),
        "package_state": np.concatenate([state for state, _ in theirs], axis=1),
        "package_rest": np.concatenate([rest for _, rest in theirs], axis=2),
    }


def package_loop(task: str, num_envs: int, seed: int, actions: Array) -> tuple[Array, Array]:
    """The package's documented calls: states [T + 1, N, S]; rewards and terminations [T, 2, N]."""
    config = IsaacLabConfig(**TASKS[task])
    own = make_config(config, num_envs)
    start_runtime(own)
    environment: Any = gymnasium.make(config.id, cfg=own).unwrapped
    environment.reset()  # its first one leaves velocities at zero
    seen, rest = [environment.reset(seed=fold_seed(seed, 31))[0]["policy"].clone()], []
    for j in range(actions.shape[1]):
        observation, reward, terminated, *_ = environment.step(torch.from_numpy(actions[:, j]))
        seen.append(observation["policy"].clone())
        rest.append(torch.stack([reward, terminated.float()]))
    environment.close()
    return torch.stack(seen).numpy(), torch.stack(rest).numpy()


def final(task: str, horizon: int, **settings: Any) -> dict[str, Array]:
    """The final observation of truncated episodes, and the observation there of episodes that run on."""
    found: dict[str, Array] = {}
    for name, length in (("ended", horizon), ("going", 10 * horizon)):
        simulator = build(2, task, horizon=length, **settings)
        simulator.reset(episodes(3, 4))
        actions = np.full((2, horizon, simulator.spec.action_dim), 0.3, np.float32)
        result = simulator.step(actions, episodes(5, 6))
        observation = result.final_observation if name == "ended" else result.observation
        found |= {f"{name}_{camera}": image for camera, image in observation.images.items()}
        found |= {f"{name}_state": observation.state, f"{name}_truth": observation.privileged}
        found |= {f"{name}_next": result.observation.state, f"{name}_truncated": result.truncated}
        simulator.close()
    return found


def history() -> dict[str, Array]:
    """Past positions of an environment, beside another that ends episodes early, and beside one that does not."""
    found = {}
    for name, push in (("ending", 1.0), ("going", 0.0)):
        simulator = build(2, "managed", seeded=True, options={"observations.policy.history_length": 3})
        states, ended = [simulator.reset(episodes(3, 4)).state[0]], 0
        for number in range(12):
            actions = np.array([[[0.0]] * 5, [[push]] * 5], np.float32)
            result = simulator.step(actions, episodes(5 + number, 30 + number))
            states.append(result.observation.state[0])
            ended += int(1 in result.ended and 0 not in result.ended)
            if 1 in result.ended:
                found[f"{name}_fresh"] = result.observation.state[1]
        found |= {name: np.array(states), f"{name}_ended": np.array(ended)}
        simulator.close()
    return found


def success() -> dict[str, Array]:
    """Results of episodes that succeed by lasting, by a termination term, and by an entry of a class's `extras`."""
    register_reporting()
    found = {}
    bound = {"terminations.cart_out_of_bounds.params": {"bounds": (-1.2, 1.2)}}
    kinds: dict[str, dict[str, Any]] = {
        "time_out": {"task": "state", "success": "time_out", "horizon": 6},
        "term": {"task": "managed", "success": "cart_out_of_bounds", "options": with_robot(bound)},
        "extras": {"task": "state", "id": "Reporting-Cartpole", "success": "success", "reward": "success"},
    }
    for name, settings in kinds.items():
        simulator = build(2, seeded=True, **settings)
        simulator.reset(episodes(3, 4))
        actions = np.zeros((2, 60, 1), np.float32)
        actions[0] = 1.0
        result = simulator.step(actions, episodes(5, 6))
        for part in ("terminated", "truncated", "success", "reward", "steps", "ended"):
            found[f"{name}_{part}"] = getattr(result, part)
        found[f"{name}_state"] = result.observation.state
        if result.final_observation is not None:
            found[f"{name}_final"] = result.final_observation.state
        simulator.close()
    return found


def with_robot(options: dict[str, Any]) -> dict[str, Any]:
    """Complete the parameters of a termination term: they replace its own."""
    from isaaclab.managers import SceneEntityCfg

    robot = SceneEntityCfg("robot", joint_names=["slider_to_cart"])
    return {path: {**value, "asset_cfg": robot} for path, value in options.items()}


def register_reporting() -> None:
    """Register a cart-pole that reports a success, the cart at y > 1.2 m, and runs on."""
    from isaaclab_tasks.core.cartpole.cartpole_direct_env import CartpoleEnv
    from isaaclab_tasks.core.cartpole.cartpole_direct_env_cfg import CartpoleEnvCfg

    class Reporting(CartpoleEnv):
        def _get_dones(self) -> tuple[Any, Any]:
            dones = super()._get_dones()
            self.extras["success"] = self.joint_pos[:, self._cart_dof_idx[0]] > 1.2
            return dones

    gymnasium.register("Reporting-Cartpole", entry_point=Reporting, kwargs={"env_cfg_entry_point": CartpoleEnvCfg})


def refusals() -> dict[str, Array]:
    """The message of each setting that cannot be."""
    cases: dict[str, dict[str, Any]] = {
        "id": {"task": "state", "id": "Isaac-Cartpole-Direkt"},
        "camera": {"task": "camera", "cameras": ("front",)},
        "option": {"task": "state", "options": {"scene.spacing": 3}},
        "preset": {"task": "state", "physics": "bullet"},
        "terms": {"task": "managed", "state_terms": ("joints",)},
        "seeded": {"task": "arm", "seeded": True},
        "asset": {"task": "state", "options": {"scene.cartpole.spawn.usd_path": str(FOLDER / "absent.usda")}},
        "isaacsim": {"task": "state", "physics": "isaacsim_physx"},
        "size": {"task": "camera", "options": {"scene.tiled_camera.data_types": ["depth"]}},
    }
    found = {
        name: np.array(message_of(lambda settings=settings: build(1, **settings))) for name, settings in cases.items()
    }
    first = build(1, "state", success="upright")
    found["second"] = np.array(message_of(lambda: build(1, "state")))
    first.reset(episodes(0))
    found["success"] = np.array(message_of(lambda: first.step(np.zeros((1, 1, 1), np.float32), episodes(1))))
    first.close()
    return found


def message_of(call: Callable[[], object]) -> str:
    """What a call is refused with."""
    try:
        call()
    except (UserError, Unavailable) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def facts() -> dict[str, Array]:
    """Facts of the package that the adapter relies on, and specifications."""
    from isaaclab.utils.math import quat_from_euler_xyz

    zero = torch.zeros(1)
    found = {"identity": quat_from_euler_xyz(zero, zero, zero)[0].numpy()}
    for task in ("state", "camera", "arm"):
        simulator = build(1, task, horizon=7)
        spec = simulator.spec
        found |= {f"{task}_names": np.array(spec.state_names), f"{task}_truth": np.array(spec.privileged_names)}
        found |= {f"{task}_horizon": np.array(spec.horizon), f"{task}_hz": np.array(spec.control_hz)}
        simulator.close()
    return found


if __name__ == "__main__":
    place, calls = sys.argv[1:]
    given = []
    for function, arguments in json.loads(calls):
        began = time.perf_counter()
        given.append(globals()[function](**arguments))
        print(f"{function} {arguments}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    np.savez(
        place, **{f"{number}/{name}": array for number, found in enumerate(given) for name, array in found.items()}
    )
