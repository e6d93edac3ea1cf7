"""Baseline of the adapter's speed: the package's own loop, interleaved with the adapter's in one process.

In the root of the repository, `PYTHONPATH=.:sims <python> -m tests.benchmarks.maniskill_speed PushCube-v1 state` with
the Python of ManiSkill's environment prints control steps per second, medians of interleaved rounds: the package's
loop, ours with chunks of one action, ours with chunks of eight.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.maniskill.package import make_environment
from embodied_rl_sims.maniskill.settings import ManiSkillConfig
from embodied_rl_sims.maniskill.simulator import ManiSkill

_STEPS, _ROUNDS = 48, 7


def time_bare_loop(config: ManiSkillConfig) -> Callable[[], None]:
    """Return a function that runs `_STEPS` random actions in the package's documented loop, observing at every step."""
    from importlib import import_module

    env = make_environment(config).unwrapped
    parse = import_module("mani_skill.envs.utils.observations").parse_obs_mode_to_struct
    env._obs_mode, env.obs_mode_struct = config.observations, parse(config.observations)
    actions = _actions(env.single_action_space.shape[0])

    def episode() -> None:
        env.reset(seed=1)
        for action in actions:
            env.step(action)

    return episode


def time_our_loop(config: ManiSkillConfig, chunk: int) -> Callable[[], None]:
    """Return a function that runs the same actions through the simulator, with `chunk` actions per call."""
    sim = ManiSkill(config, 1)
    actions = _actions(sim.spec.action_dim)

    def episode() -> None:
        sim.reset([Episode(0, 0, 1)])
        for start in range(0, _STEPS, chunk):
            sim.step(actions[None, start : start + chunk], [None])

    return episode


def measure_loops(config: ManiSkillConfig) -> dict[str, float]:
    """Measure control steps per second of each loop."""
    loops = {
        "package": time_bare_loop(config),
        "chunk 1": time_our_loop(config, 1),
        "chunk 8": time_our_loop(config, 8),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for round_ in range(_ROUNDS + 1):
        for name, loop in loops.items():
            began = time.perf_counter()
            loop()
            if round_:  # the first one compiles and fills caches
                seconds[name].append(time.perf_counter() - began)
    return {name: _STEPS / statistics.median(each) for name, each in seconds.items()}


def _actions(size: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, (_STEPS, size)).astype(np.float32)


if __name__ == "__main__":
    task, observations = sys.argv[1:]
    assert observations in ("rgb", "state"), "give a task, and rgb or state"
    chosen = ManiSkillConfig(task, observations=observations, image_size=64, horizon=1000, terminate_on_success=False)
    for loop_name, rate in measure_loops(chosen).items():
        print(f"{loop_name:>8}: {rate:.1f} control steps/s")
