"""Checks before a robot is commanded, and of the topics while it moves. Each error is one line with its remedy."""

import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.controller import Controller
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.commands import CommandPublisher
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fitting import check_policy
from embodied_rl.deployment.transport.interface import Publisher, Transport
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError

POLL_S = 0.02
CLOCK_CHECK_S = 0.5
RUNNING_CLOCK_CHANGES = 3
"""In lockstep, as many changes of /clock within `CLOCK_CHECK_S` mean that the time does not wait for commands."""


def check_served_policy(spec: PolicyDescription | None, robot: RobotDescription, server: str) -> None:
    """Raise UserError if a policy behind a server has no description, or does not fit the robot."""
    if spec is None:
        raise UserError(
            f"{server} does not describe the inputs and outputs of its policy, without which a robot is not moved. "
            "Serve it with embodied-rl serve.",
            code="policy-description-missing",
        )
    try:
        check_policy(robot, spec)
    except UserError as error:
        raise UserError(f"{server} does not fit robot={robot.name}: {error}", code=error.code) from None
    if spec.control_hz is None:
        raise UserError(
            f"{server} does not give the control rate of its policy; robot={robot.name} has {robot.control_hz:g} Hz. "
            "Export the policy again with this version.",
            code="policy-control-rate-missing",
        )


def wait_for_topics(node: Transport, robot: RobotDescription, latest: LatestMessages, timeout_s: float) -> None:
    """Wait for a message on each topic of an observation; raises UserError: none, or several publishers."""

    def missing() -> list[str]:
        return [name for name in latest.mapping.topics if name not in latest.newest]

    if wait_until(node, lambda: not missing(), timeout_s):
        latest.observe(latest.snapshot(), "")  # finds missing joints and pictures of the wrong size
        for name in latest.mapping.topics:
            check_single_publisher(node, robot.topics[name].name)
        return
    name = missing()[0]
    topic, subscription = robot.topics[name], latest.subscriptions[name]
    if problem := next(iter(subscription.find_mismatches()), None) or subscription.last_refusal:
        code, reason = "topic-incompatible", f"{problem}. Correct topics.{name} in the robot's file"
    elif node.list_publishers(topic.name):
        code, reason = "topic-silent", f"{topic.name} has a publisher that sends nothing. Check the robot's driver"
    else:
        code, reason = (
            "topic-without-publisher",
            f"{topic.name} has no publisher. Start the robot's driver, correct topics.{name}.name in the robot's "
            "file, or set ROS_DOMAIN_ID to the robot's",
        )
    raise UserError(f"No message within {timeout_s:g} s. {reason}.", code=code)


def check_single_publisher(node: Transport, topic: str) -> None:
    """Raise UserError if a topic of the robot has several publishers, such as two robots."""
    publishers = node.list_publishers(topic)
    if len(publishers) > 1:
        names = " and ".join(sorted(each.node or "a node without a name" for each in publishers))
        raise UserError(
            f"{topic} has {len(publishers)} publishers, {names}, and their messages would be mixed. End one, or give "
            "it another topic or ROS_DOMAIN_ID.",
            code="topic-several-publishers",
        )


def check_clock(
    node: Transport, robot: RobotDescription, latest: LatestMessages, *, lockstep: bool, timeout_s: float
) -> None:
    """Check that a simulated robot's time runs, or in lockstep that it waits for commands; raises UserError."""
    if not robot.use_sim_time:
        return
    is_running = lambda: latest.clock_changes >= RUNNING_CLOCK_CHANGES  # noqa: E731
    if lockstep and wait_until(node, is_running, CLOCK_CHECK_S):
        raise UserError(
            "lockstep=true: the robot's time (/clock) does not wait for commands. Start the robot with lockstep=true, "
            "or leave it out here.",
            code="lockstep-mismatch",
        )
    if not lockstep and not wait_until(node, is_running, timeout_s):
        raise UserError(
            f"/clock has not changed for {timeout_s:g} s: the robot waits for commands, or its simulation is paused. "
            "Start the robot without lockstep=true, or give lockstep=true here, too.",
            code="lockstep-mismatch",
        )


def check_command_topics(node: Transport, commands: CommandPublisher, timeout_s: float) -> None:
    """Check that each command topic has a matching subscriber and no other publisher; raises UserError."""
    for name, publisher in commands.publishers.items():
        key = RobotDescription.name_command(name)
        matched = wait_until(node, lambda end=publisher: end.count_matched() > 0 or bool(find_rivals(end)), timeout_s)
        if rivals := find_rivals(publisher):
            raise UserError(f"{rivals}. Stop that node: a robot takes commands of one.", code="command-rival")
        if faults := publisher.find_mismatches():
            raise UserError(f"{faults[0]}. Correct {key} in the robot's file.", code="command-topic-incompatible")
        if not matched:
            raise UserError(
                f"{publisher.topic} has no subscriber. Start the robot's controller, or correct {key}.topic.",
                code="command-topic-without-subscriber",
            )


def check_stop_topic(node: Transport, robot: RobotDescription, fault: str) -> None:
    """Check that the e-stop topic is received and its publishers can be distinguished; raises UserError.

    Args:
        fault: the reason for which an e-stop publisher is not received; empty if all are.
    """
    name = robot.operator.estop
    if fault:
        raise UserError(
            f"{fault}. Publish std_msgs/msg/Bool there, reliable and transient_local.", code="estop-not-received"
        )
    if not name or node.identifies_publishers:
        return
    ends = node.list_publishers(name)
    if len(ends) > 1:
        names = ", ".join(sorted({each.node or "another node" for each in ends}))
        raise UserError(
            f"{name}: the emergency stop has {len(ends)} publishers ({names}), and transport={node.kind} does not "
            "identify the publisher of a message, so one could release what another one pressed. Use one publisher, "
            "or transport=dds.",
            code="estop-publishers-ambiguous",
        )


def find_rivals(publisher: Publisher) -> str:
    """Return a description of another publisher of commands; empty if there is none."""
    rivals = publisher.other_publishers()
    return "" if not rivals else f"{publisher.topic}: {rivals[0].node or 'another node'} publishes commands, too"


def wait_until(node: Transport, condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition while messages arrive; return False if it does not hold in time."""
    until = time.monotonic() + timeout_s
    while not node.spin_until(condition, min(POLL_S, timeout_s)):
        if time.monotonic() >= until or node.kind == "in_process":
            return condition()
    return True


class TopicMonitor:
    """Makes the robot hold while another node publishes commands, or an e-stop publisher is not received.

    Attributes:
        why: the reason for holding; empty if the topics are sound and a mode was requested since.
    """

    def __init__(self, commands: CommandPublisher, operator: OperatorListener) -> None:
        self._publishers, self._operator = tuple(commands.publishers.values()), operator
        self._past_problem, self.why = "", ""

    def check(self, controller: Controller) -> None:
        """Look for problems, and block or allow motion."""
        problem, before = self._operator.estop_fault, controller.motion_blocked_reason
        if problem:
            self._past_problem = "a publisher of the emergency stop was not received"
        for publisher in self._publishers:
            if rival := find_rivals(publisher):
                problem, self._past_problem = rival, f"{publisher.topic}: another node published commands"
                break
        controller.motion_blocked_reason = problem
        if problem and not before:
            controller.hold()
        if problem:
            self.why = f"{problem}: hold until that ends and run is requested"
        elif before:
            self.why = f"{self._past_problem}: hold until run is requested"
        elif controller.core.mode != Mode.HOLD:
            self.why = ""
