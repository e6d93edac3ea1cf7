"""Settings of the chunk executor, from the measured latency, and the check that chunks last long enough."""

import math
from collections.abc import Sequence

import numpy as np

from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.execution.settings import Settings, Strategy, check_budget, choose_replan
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError

SLOWEST = 0.99
"""Share of answers that must arrive in time."""


def choose_settings(
    config: BridgeConfig, robot: RobotDescription, spec: PolicyDescription, latencies: Sequence[float]
) -> Settings:
    """Return the settings of the executor.

    Args:
        config: of the bridge. robot: its description. spec: of the policy.
        latencies: measured, in seconds, without the first answer; empty in lockstep.

    Raises:
        UserError: the policy is too slow for its chunks; the message has the numbers and a remedy.
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
        raise UserError(f"{_describe_latency(slowest, robot, len(latencies))} {error}", code=error.code) from None
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
            f"{settings.budget}, the smaller of the horizon and open_loop_s in the robot's file. Use a smaller replan, "
            "a faster policy, or a larger budget.",
            code="latency-too-long",
        )
    return settings


def _check_waits(robot: RobotDescription, strategy: Strategy, replan: int, longest: int, slowest: float) -> None:
    if strategy == "stop" and replan > longest:
        raise UserError(
            f"replan={replan}: a chunk would be executed for {replan / robot.control_hz:g} s without an observation, "
            f"and open_loop_s={robot.open_loop_s:g} in the file of {robot.name}. Use replan={longest} or less.",
            code="replan-too-long",
        )
    if strategy != "stop" and slowest >= robot.silence_s:
        raise UserError(
            f"Answers take {slowest:.2f} s, and silence_s={robot.silence_s:g} in the file of {robot.name} drops the "
            "plan earlier. Use a faster policy, strategy=stop, or a longer silence_s.",
            code="latency-too-long",
        )


def _choose_strategy(config: BridgeConfig, spec: PolicyDescription, delay: int) -> Strategy:
    if config.strategy != "auto":
        if config.strategy == "prefix" and delay > spec.prefix_trained_to:
            raise UserError(
                f"strategy=prefix: the policy is trained on prefixes of {spec.prefix_trained_to} actions, and "
                f"its answers take {delay} control steps. Use strategy=naive, or a policy trained on longer ones.",
                code="policy-not-trained-for-delay",
            )
        return config.strategy
    if config.lockstep:
        return "stop"
    return "prefix" if 0 < delay <= spec.prefix_trained_to else "naive"


def _describe_latency(slowest: float, robot: RobotDescription, count: int) -> str:
    steps = slowest * robot.control_hz
    return f"99 % of {count} answers arrived within {1e3 * slowest:.0f} ms, {steps:.1f} control steps of {robot.name}."
