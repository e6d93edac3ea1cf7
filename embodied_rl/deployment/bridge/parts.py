"""What a bridge is made of: the core's settings from a robot's description, and the policy with its latency."""

import math
import os
import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.checks import check_served_policy
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.settings import OVERRUN_S, CoreSettings, StreamRule
from embodied_rl.deployment.policy_server.client import PolicyClient
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError


def make_core_settings(robot: RobotDescription, config: BridgeConfig, inbox: Inbox) -> CoreSettings:
    """Return what the core knows of a robot.

    In lockstep a control step is one tick, time stands still between, and motion is not compared: a simulator may let
    a policy press against its table, as in training. Nor is it in a dry run, in which nothing is commanded.
    """
    obeyed = not (config.lockstep or config.dry_run)
    measured = {entry.measured for entry in robot.actions if entry.measured}
    measuring = {term.topic for entry in robot.state if entry.name in measured for term in entry.terms}
    topics = {name: robot.topics[name] for name in inbox.mapping.topics}
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
                sees=name in inbox.mapping.picture_topics,
            )
            for name, each in topics.items()
        ),
        measured=tuple(bool(entry.measured) for entry in robot.actions),
        keeps=tuple(entry.keeps for entry in robot.actions),
        tracking_error=robot.tracking_error if obeyed else (math.inf,) * len(robot.actions),
        lost_s=None if config.lockstep else find_lost_s(robot),
        probe=robot.probe and obeyed,
        silence_s=None if config.lockstep else robot.silence_s,
        deadman_s=robot.operator.deadman_timeout_s if _has_deadman(robot, config) else None,
    )


def find_lost_s(robot: RobotDescription) -> float | None:
    """Return after how long without a command a robot has come to rest by itself, in seconds; None: it does not.

    Its file says so. An arm that is commanded positions, and of which it says nothing, stays at the last one; a speed
    goes on. Of several command topics the slowest one counts.
    """
    found: list[float] = []
    for name, topic in robot.command_topics.items():
        stays = all(robot.actions[place].kind == "position" for place in robot.list_commanded(name))
        if not (topic.timeout_s or stays):
            return None
        found.append(topic.timeout_s or max(OVERRUN_S, 3 / robot.command_hz))
    return max(found)


def _has_deadman(robot: RobotDescription, config: BridgeConfig) -> bool:
    """Return whether a dead man's switch must be held.

    Raises:
        UserError: it was left out for a robot that is not simulated.
    """
    named = bool(robot.operator.deadman) or robot.operator.device.deadman is not None
    if not named or config.lockstep:  # time stands still while nobody commands
        return False
    if not config.deadman and not robot.operator.reset:
        raise UserError(
            f"deadman=false: {robot.name} has a dead man's switch, and is no simulated robot, which names "
            "operator.reset. Leave deadman=false out, and hold the switch."
        )
    return config.deadman


def open_policy(config: BridgeConfig, robot: RobotDescription) -> tuple[PolicyClient, PolicyDescription]:
    """Connect to the policy's server, and check that the policy is this robot's.

    Raises:
        UserError: the address is none, the token's variable is empty, or the policy is another robot's.
        NoPolicyAnswer: nobody answers there.
    """
    assert config.policy is not None, "the caller checked"
    node, token = config.server, None
    if node.token_variable is not None and not (token := os.environ.get(node.token_variable)):
        raise UserError(f"server.token_variable={node.token_variable}: the environment variable is not set.")
    client = PolicyClient(config.policy, deadline=node.deadline, token=token, names=node.keys, key=node.actions)
    try:
        return client, check_served_policy(client.spec, robot, config.policy)
    except BaseException:
        client.close()
        raise


def measure_latency(client: PolicyClient, inbox: Inbox, words: str, count: int) -> list[float]:
    """Ask with what the robot observes now; return the seconds of `count` answers, the first one left out.

    Raises:
        UserError: the policy refuses the observation. NoPolicyAnswer: it does not answer.
    """
    found, clock = list[float](), time.monotonic
    for _ in range(count + 1):
        began = clock()
        client.infer(inbox.observe(inbox.keep(), words), whole=True)
        found.append(clock() - began)
    return found[1:]


def make_source_clock(inbox: Inbox, robot: RobotDescription, now_ns: Callable[[], int]) -> Callable[[], int] | None:
    """Return the clock of the robot's stamps: /clock where it is simulated, `now_ns` where the clocks agree.

    None: it is estimated.
    """
    if robot.use_sim_time:
        return lambda: inbox.clock_ns or 0
    return now_ns if robot.clocks_agree else None
