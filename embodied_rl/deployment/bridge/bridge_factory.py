"""Parts of a bridge: settings of core and executor, connection to the policy, its latency, and the source clock."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.settings import OVERRUN_S, CoreSettings, StreamRule
from embodied_rl.deployment.execution.settings import Settings, Strategy, check_budget, choose_replan
from embodied_rl.deployment.policy_client.client import PolicyClient, connect
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError

SLOWEST = 0.99
"""Share of answers that must arrive in time."""


def make_core_settings(robot: RobotDescription, config: BridgeConfig, latest: LatestMessages) -> CoreSettings:
    """Return the core's settings for a robot; raises UserError: a real robot would move without its dead man's switch.

    In lockstep a control step is one tick and time stands still between ticks. Motion is not compared with commands in
    lockstep, because a simulator may let a policy press against its table, as in training; nor in a dry run.
    """
    compared = not (config.lockstep or config.dry_run)
    measured = {entry.measured for entry in robot.actions if entry.measured}
    measuring = {term.topic for entry in robot.state if entry.name in measured for term in entry.terms}
    topics = {name: robot.topics[name] for name in latest.mapping.topics}
    deadman = bool(robot.operator.deadman) or robot.operator.device.deadman is not None
    deadman = deadman and not config.lockstep  # time stands still without commands
    if deadman and not config.deadman and not robot.operator.reset:
        raise UserError(
            f"deadman=false: {robot.name} has a dead man's switch, and is not a simulated robot: its file has no "
            "operator.reset. Leave deadman=false out, and hold the switch.",
            code="deadman-required",
        )
    return CoreSettings(
        limits=robot.limits,
        control_hz=robot.control_hz,
        command_hz=robot.control_hz if config.lockstep else robot.command_hz,
        streams=tuple(
            StreamRule(
                name,
                each.max_age_s,
                each.may_repeat,
                measures=name in measuring,
                sees=name in latest.mapping.picture_topics,
            )
            for name, each in topics.items()
        ),
        measured=tuple(bool(entry.measured) for entry in robot.actions),
        keeps=tuple(entry.keeps for entry in robot.actions),
        tracking_error=robot.tracking_error if compared else (math.inf,) * len(robot.actions),
        lost_s=None if config.lockstep else find_stop_timeout_s(robot),
        probe=robot.probe and compared,
        silence_s=None if config.lockstep else robot.silence_s,
        deadman_s=robot.operator.deadman_timeout_s if deadman and config.deadman else None,
    )


def find_stop_timeout_s(robot: RobotDescription) -> float | None:
    """Return the time in seconds after which a robot without commands is at rest; None: it does not stop.

    The command topics' `timeout_s` give it; the longest counts. Without one, a robot with position commands stays at
    the last one, and a robot with velocity commands does not stop.
    """
    found: list[float] = []
    for name, topic in robot.command_topics.items():
        stays = all(robot.actions[place].kind == "position" for place in robot.list_commanded(name))
        if not (topic.timeout_s or stays):
            return None
        found.append(topic.timeout_s or max(OVERRUN_S, 3 / robot.command_hz))
    return max(found)


def open_policy(config: BridgeConfig, robot: RobotDescription) -> PolicyClient:
    """Connect to the policy's server, and check that the policy fits the robot; raises UserError, NoPolicyAnswer."""
    assert config.policy is not None, "the caller checked"
    client = connect(config.policy, config.server)
    try:
        check_served_policy(client.spec, robot, config.policy)
    except BaseException:
        client.close()
        raise
    return client


def measure_latency(client: PolicyClient, latest: LatestMessages, instruction: str, count: int) -> list[float]:
    """Infer on the present observation; return the latencies in seconds of `count` answers after a first one."""
    found = list[float]()
    for _ in range(count + 1):
        began = time.monotonic()
        client.infer(latest.observe(latest.snapshot(), instruction), whole=True)
        found.append(time.monotonic() - began)
    return found[1:]


def make_source_clock(
    latest: LatestMessages, robot: RobotDescription, now_ns: Callable[[], int]
) -> Callable[[], int] | None:
    """Return the clock of the robot's stamps: /clock if simulated, `now_ns` if clocks agree, None to estimate it."""
    if robot.use_sim_time:
        return lambda: latest.clock_ns or 0
    return now_ns if robot.clocks_agree else None


def choose_settings(
    config: BridgeConfig, robot: RobotDescription, spec: PolicyDescription, latencies: Sequence[float]
) -> Settings:
    """Return the settings of the executor; raises UserError: the policy is too slow for its chunks.

    Args:
        latencies: measured, in seconds, without the first answer; empty in lockstep.
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
