"""Parts of a bridge: the core's settings, the connection to the policy, its latency, and the source clock."""

import math
import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.settings import OVERRUN_S, CoreSettings, StreamRule
from embodied_rl.deployment.policy_client.client import PolicyClient, connect
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError


def make_core_settings(robot: RobotDescription, config: BridgeConfig, latest: LatestMessages) -> CoreSettings:
    """Return the core's settings for a robot.

    In lockstep a control step is one tick and time stands still between ticks. Motion is not compared with commands in
    lockstep, because a simulator may let a policy press against its table, as in training; nor in a dry run.
    """
    compared = not (config.lockstep or config.dry_run)
    measured = {entry.measured for entry in robot.actions if entry.measured}
    measuring = {term.topic for entry in robot.state if entry.name in measured for term in entry.terms}
    topics = {name: robot.topics[name] for name in latest.mapping.topics}
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
        deadman_s=robot.operator.deadman_timeout_s if _has_deadman(robot, config) else None,
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


def _has_deadman(robot: RobotDescription, config: BridgeConfig) -> bool:
    """Return whether a dead man's switch must be held; raises UserError: a real robot was to move without it."""
    named = bool(robot.operator.deadman) or robot.operator.device.deadman is not None
    if not named or config.lockstep:  # time stands still without commands
        return False
    if not config.deadman and not robot.operator.reset:
        raise UserError(
            f"deadman=false: {robot.name} has a dead man's switch, and is not a simulated robot: its file has no "
            "operator.reset. Leave deadman=false out, and hold the switch.",
            code="deadman-required",
        )
    return config.deadman


def open_policy(config: BridgeConfig, robot: RobotDescription) -> tuple[PolicyClient, PolicyDescription]:
    """Connect to the policy's server, and check that the policy fits the robot.

    Raises:
        UserError: the address is invalid, the token's variable is empty, or the policy does not fit.
        NoPolicyAnswer: the server does not answer.
    """
    assert config.policy is not None, "the caller checked"
    client = connect(config.policy, config.server)
    try:
        return client, check_served_policy(client.spec, robot, config.policy)
    except BaseException:
        client.close()
        raise


def measure_latency(client: PolicyClient, latest: LatestMessages, instruction: str, count: int) -> list[float]:
    """Infer on the present observation; return the latencies in seconds of `count` answers after a first one.

    Raises:
        UserError: the policy refuses the observation. NoPolicyAnswer: it does not answer.
    """
    found, clock = list[float](), time.monotonic
    for _ in range(count + 1):
        began = clock()
        client.infer(latest.observe(latest.snapshot(), instruction), whole=True)
        found.append(clock() - began)
    return found[1:]


def make_source_clock(
    latest: LatestMessages, robot: RobotDescription, now_ns: Callable[[], int]
) -> Callable[[], int] | None:
    """Return the clock of the robot's stamps: /clock if simulated, `now_ns` if clocks agree, None to estimate it."""
    if robot.use_sim_time:
        return lambda: latest.clock_ns or 0
    return now_ns if robot.clocks_agree else None
