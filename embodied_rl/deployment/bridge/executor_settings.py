"""How the executor joins a policy's chunks on a robot, from the measured latency; and whether chunks last so long."""

import math
from collections.abc import Sequence

import numpy as np

from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.execution.settings import Settings, Strategy, check_budget, choose_replan
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError

SLOWEST = 0.99
"""The share of answers that must come in time."""


def choose_settings(
    config: BridgeConfig, robot: RobotDescription, spec: PolicyDescription, latencies: Sequence[float]
) -> Settings:
    """Return the settings of the executor.

    Args:
        config: of the bridge. robot: its description. spec: of the policy.
        latencies: seconds of answers that were measured, without the first one; empty in lockstep.

    Raises:
        UserError: the policy answers too late for its chunks; the message has the numbers, and what would fit.
    """
    slowest = float(np.quantile(latencies, SLOWEST)) if len(latencies) else 0.0
    delay = 0 if config.lockstep else max(1, math.ceil(slowest * robot.control_hz - 1e-3))
    strategy = _choose_strategy(config, spec, delay)
    longest = spec.horizon if config.lockstep else math.floor(robot.open_loop_s * robot.control_hz * (1 + 1e-9))
    replan = config.replan or min(choose_replan(delay, strategy, spec.executed), longest)
    if not config.lockstep:
        _check_waits(robot, strategy, replan, longest, slowest)
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    try:
        check_budget(spec.horizon, delay, replan, strategy)
    except UserError as error:
        raise UserError(f"{_describe_latency(slowest, robot, len(latencies))} {error}") from None
    settings = Settings(
        spec.horizon, low, high, strategy, replan, delay, robot.control_hz,
        longest_prefix=spec.prefix_trained_to if strategy == "prefix" else None,
        jump=None if robot.jump is None else np.array(robot.jump, np.float32),
        open_loop=None if strategy == "stop" else min(spec.horizon, longest),
    )  # fmt: skip
    needed = slowest * robot.control_hz + (0 if strategy == "stop" else replan)
    if settings.budget < needed:
        raise UserError(
            f"{_describe_latency(slowest, robot, len(latencies))} With an inference every {replan} control steps an "
            f"action would be executed {needed:.1f} steps after its observation, and the open-loop budget is "
            f"{settings.budget}, the lesser of the horizon and open_loop_s of the robot's file. Take a smaller replan, "
            "a quicker policy, or a larger budget."
        )
    return settings


def _check_waits(robot: RobotDescription, strategy: Strategy, replan: int, longest: int, slowest: float) -> None:
    if strategy == "stop" and replan > longest:
        raise UserError(
            f"replan={replan}: a chunk would be executed for {replan / robot.control_hz:g} s without an observation, "
            f"and open_loop_s={robot.open_loop_s:g} in the file of {robot.name}. Take replan={longest} or less."
        )
    if strategy != "stop" and slowest >= robot.silence_s:
        raise UserError(
            f"Answers take {slowest:.2f} s, and silence_s={robot.silence_s:g} in the file of {robot.name} drops the "
            "plan before. Take a quicker policy, strategy=stop, or a longer silence_s."
        )


def _choose_strategy(config: BridgeConfig, spec: PolicyDescription, delay: int) -> Strategy:
    if config.strategy != "auto":
        if config.strategy == "prefix" and delay > spec.prefix_trained_to:
            raise UserError(
                f"strategy=prefix: the policy is trained to continue {spec.prefix_trained_to} actions, and its answers "
                f"take {delay} control steps. Take strategy=naive, or a policy that is trained on more."
            )
        return config.strategy
    if config.lockstep:
        return "stop"
    return "prefix" if 0 < delay <= spec.prefix_trained_to else "naive"


def _describe_latency(slowest: float, robot: RobotDescription, count: int) -> str:
    steps = slowest * robot.control_hz
    return f"99 % of {count} answers came within {1e3 * slowest:.0f} ms, {steps:.1f} control steps of {robot.name}."
