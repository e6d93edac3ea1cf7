"""Demonstrations by the package's own motion planners, as joint-control actions."""

from importlib import import_module, metadata
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Unavailable
from embodied_rl_sims.maniskill.physics import renew_scene
from embodied_rl_sims.maniskill.single import find_seed

MODE = "pd_joint_pos"


class Planner:
    """A planner of whole episodes in its own environment; the same actions give the same episode elsewhere.

    Args:
        task: the package's id.
        env: a `BaseEnv` of one environment in control mode `MODE`; closed with this object.

    Raises:
        UserError: the package lacks a planner for the task.
        Unavailable: the planning library would crash the process.
    """

    def __init__(self, task: str, env: Any) -> None:
        if int(np.__version__.partition(".")[0]) > 1:
            raise Unavailable(
                f"mplib {metadata.version('mplib')}, ManiSkill's motion planner, is built for NumPy 1 and ends the "
                f"process with NumPy {np.__version__}: pip install 'numpy<2' in the simulator's environment."
            )
        solvers = import_module("mani_skill.examples.motionplanning.panda.run").MP_SOLUTIONS
        if task not in solvers:
            raise UserError(
                f"sim.task={task}: the package plans for {', '.join(sorted(solvers))} alone.", code="operator-missing"
            )
        self._solve, self._env = solvers[task], env

    def plan(self, episode: Episode) -> Array:
        """Plan an episode: float32 [T, A]; T = 0 if the planner finds no path."""
        recorder = _ActionRecorder(self._env)
        self._solve(recorder, seed=find_seed(episode), debug=False, vis=False)
        size = self._env.single_action_space.shape[0]
        return np.array(recorder.actions, np.float32).reshape(-1, size)

    def close(self) -> None:
        self._env.close()


class _ActionRecorder:
    """A wrapper of an environment that records its actions, float32, clipped to the limits."""

    def __init__(self, env: Any) -> None:
        self.unwrapped, self.actions = env, []

    def reset(self, seed: int) -> Any:
        renew_scene(self.unwrapped)
        return self.unwrapped.reset(seed=seed)

    def step(self, action: Array) -> Any:
        space = self.unwrapped.single_action_space
        self.actions.append(np.clip(action, space.low, space.high).astype(np.float32))
        return self.unwrapped.step(self.actions[-1])
