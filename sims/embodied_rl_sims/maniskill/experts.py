"""Demonstrators: the package's motion planners for joint control, a scripted operator for end-effector control."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Unavailable
from embodied_rl_sims.maniskill.package import make_environment
from embodied_rl_sims.maniskill.plate_operator import put_on_plate
from embodied_rl_sims.maniskill.settings import ManiSkillConfig
from embodied_rl_sims.maniskill.single import SingleEnvironment, find_seed, renew_scene
from embodied_rl_sims.rows import Rows

OPERATOR_MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose")
OPEN, CLOSED = 1.0, -1.0

_STEP = 0.1
_ABOVE = np.array([0, 0, 0.08])  # offset from a cube's centre
_BEHIND = np.array([-0.08, 0, 0])


def pick_cube(env: Any) -> Array:
    """Hover over the cube, descend, grasp it, carry it to the goal; return [x, y, z, gripper]."""
    hand, cube, goal = _place(env.agent.tcp), _place(env.cube), _place(env.goal_site)
    to_cube = cube - hand
    if np.linalg.norm(to_cube) < 0.015:
        holds = bool(env.agent.is_grasping(env.cube)[0])
        return _move(goal - cube if holds else np.zeros(3), CLOSED)
    if np.linalg.norm(to_cube[:2]) > 0.01:
        return _move(to_cube + _ABOVE, OPEN)
    return _move(to_cube, OPEN)


def push_cube(env: Any) -> Array:
    """Move behind the cube with closed fingers, then push it along x to the goal; return [x, y, z, gripper]."""
    hand, cube, goal = _place(env.agent.tcp), _place(env.obj), _place(env.goal_region)
    to_cube = cube - hand
    if to_cube[0] > 0.03 and abs(to_cube[1]) < 0.015 and to_cube[2] > -0.015:
        return _move(np.array([goal[0] - cube[0], *to_cube[1:]]), CLOSED)
    to_start = to_cube + _BEHIND
    is_over_start = np.linalg.norm(to_start[:2]) < 0.015
    return _move(to_start if is_over_start else to_start + _ABOVE, CLOSED)


OPERATORS: dict[str, Callable[[Any], Array]] = {"PickCube-v1": pick_cube, "PushCube-v1": push_cube}
"""Task → an operator: environment → float64 [4]."""


def choose_action(env: Any, task: str, control_mode: str) -> Array:
    """Return the operator's present action: float32 [4] for "pd_ee_delta_pos", float32 [7] for "pd_ee_delta_pose"."""
    *move, gripper = OPERATORS[task](env)
    turn = [0.0, 0.0, 0.0] if control_mode == "pd_ee_delta_pose" else []
    return np.array([*move, *turn, gripper], np.float32)


def _place(body: Any) -> Array:
    return body.pose.p[0].cpu().numpy().astype(float)


def _move(offset: Array, gripper: float) -> Array:
    """Return the action of one control step towards `offset`."""
    return np.array([*np.clip(offset / _STEP, -1, 1), gripper])


PLANNER_MODE = "pd_joint_pos"


class Planner:
    """A planner of whole episodes in its own environment; the same actions give the same episode elsewhere.

    Args:
        task: the package's id.
        env: a `BaseEnv` of one environment in control mode `PLANNER_MODE`; closed with this object.

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


def make_expert(config: ManiSkillConfig, rows: Rows) -> Callable[[], Array]:
    """Return an operator for all environments; each call gives a step's actions, float32 [n, A], zeros for parked rows.

    Raises:
        UserError: the task does not have a demonstrator in this control mode.
        Unavailable: the motion planner cannot be loaded.
    """
    if config.has_plates:
        return rows.make_operator(lambda row, _: put_on_plate(_env_of(rows, row)))
    if config.control_mode != PLANNER_MODE:
        if config.control_mode not in OPERATOR_MODES or config.task not in OPERATORS:
            raise UserError(
                f"no demonstrator for sim.task={config.task} with sim.control_mode={config.control_mode}. "
                f"{' and '.join(OPERATORS)} have an operator in {' and '.join(OPERATOR_MODES)}; with {PLANNER_MODE}, "
                "the package's motion planners serve these and others.",
                code="operator-missing",
            )
        return rows.make_operator(lambda row, _: choose_action(_env_of(rows, row), config.task, config.control_mode))
    planning = Planner(config.task, make_environment(replace(config, observations="state")))
    plans: dict[int, tuple[Episode, Array]] = {}

    def act(row: int, episode: Episode) -> Array:
        """Plan the episode when it begins; repeat the plan's last action after its end."""
        if row not in plans or plans[row][0] != episode:
            plans[row] = (episode, planning.plan(episode))
        plan = plans[row][1]
        if len(plan):
            return plan[min(rows.clock(row), len(plan) - 1)]
        joints = _env_of(rows, row).agent.robot.get_qpos()[0, : rows.spec.action_dim - 1].numpy()
        return np.array([*joints, OPEN], np.float32)  # hold the present position, with the gripper open

    return rows.make_operator(act)


def _env_of(rows: Rows, row: int) -> Any:
    environment = rows.environment(row)
    assert isinstance(environment, SingleEnvironment)
    return environment.env
