"""Demonstrators: the package's motion planners for joint control, a scripted operator for end-effector control."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.maniskill import operator, planner
from embodied_rl_sims.maniskill.package import make_environment
from embodied_rl_sims.maniskill.settings import ManiSkillConfig
from embodied_rl_sims.maniskill.single import SingleEnvironment
from embodied_rl_sims.rows import Rows


def make_expert(config: ManiSkillConfig, rows: Rows) -> Callable[[], Array]:
    """Return an operator for all environments; each call gives a step's actions, float32 [n, A], zeros for parked rows.

    Raises:
        UserError: the task does not have a demonstrator in this control mode.
        Unavailable: the motion planner cannot be loaded.
    """
    if config.control_mode == planner.MODE:
        return _planned(config, rows)
    if config.control_mode in operator.MODES and config.task in operator.OPERATORS:
        return _scripted(config, rows)
    raise UserError(
        f"no demonstrator for sim.task={config.task} with sim.control_mode={config.control_mode}. "
        f"{' and '.join(operator.OPERATORS)} have an operator in {' and '.join(operator.MODES)}; with {planner.MODE}, "
        "the package's motion planners serve these and others.",
        code="operator-missing",
    )


def _scripted(config: ManiSkillConfig, rows: Rows) -> Callable[[], Array]:
    def act(row: int) -> Array:
        environment = rows.environment(row)
        assert isinstance(environment, SingleEnvironment)
        return operator.choose_action(environment.env, config.task, config.control_mode)

    return _for_all(rows, lambda row, _: act(row))


def _planned(config: ManiSkillConfig, rows: Rows) -> Callable[[], Array]:
    """Plan each row's episode when it begins; repeat the plan's last action after its end."""
    planning = planner.Planner(config.task, make_environment(replace(config, observations="state")))
    plans: dict[int, tuple[Episode, Array]] = {}

    def act(row: int, episode: Episode) -> Array:
        if row not in plans or plans[row][0] != episode:
            plans[row] = (episode, planning.plan(episode))
        plan = plans[row][1]
        return plan[min(rows.clock(row), len(plan) - 1)] if len(plan) else _rest(rows, row)

    return _for_all(rows, act)


def _rest(rows: Rows, row: int) -> Array:
    """Return joint targets that hold the present position, with the gripper open."""
    environment = rows.environment(row)
    assert isinstance(environment, SingleEnvironment)
    joints = environment.env.agent.robot.get_qpos()[0, : rows.spec.action_dim - 1].numpy()
    return np.array([*joints, operator.OPEN], np.float32)


def _for_all(rows: Rows, act: Callable[[int, Episode], Array]) -> Callable[[], Array]:
    def actions() -> Array:
        chosen = np.zeros((rows.num_envs, rows.spec.action_dim), np.float32)
        for row in range(rows.num_envs):
            episode = rows.episode(row)
            if episode is not None:
                chosen[row] = act(row, episode)
        return chosen

    return actions
