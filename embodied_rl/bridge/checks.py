"""What must hold before a robot is commanded. Each fault is one line with its remedy, and the robot does not move."""

import time
from collections.abc import Callable

from embodied_rl.bridge.inbox import Inbox
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.robots.description import RobotDescription
from embodied_rl.robots.fitting import check_policy
from embodied_rl.transport.interface import Publisher, Transport

LOOKING_S = 0.02


def check_served_policy(spec: PolicyDescription | None, robot: RobotDescription, who: str) -> PolicyDescription:
    """Check that a policy behind a server was made for a robot, and return what it expects.

    Raises:
        UserError: it was not, or does not say.
    """
    if spec is None:
        raise UserError(
            f"{who} does not say what its policy expects and returns, and a robot is not moved on a guess. Serve it "
            "with embodied-rl serve."
        )
    try:
        check_policy(robot, spec)
    except UserError as error:
        raise UserError(f"{who} does not fit robot={robot.name}: {error}") from None
    if spec.control_hz is None:
        raise UserError(
            f"{who} does not say how many actions a second it was trained for; robot={robot.name} takes "
            f"{robot.control_hz:g}. Export the policy anew with this version."
        )
    return spec


def wait_for_topics(node: Transport, robot: RobotDescription, inbox: Inbox, patience_s: float) -> None:
    """Wait until every topic that an observation needs has said something.

    Raises:
        UserError: one has not; the message says what is known of why.
    """

    def missing() -> list[str]:
        return [name for name in inbox.mapping.topics if name not in inbox.newest]

    if wait_until(node, lambda: not missing(), patience_s):
        inbox.observe(inbox.keep(), "")  # a joint that is missing, a picture of another size
        return
    name = missing()[0]
    topic, subscription = robot.topics[name], inbox.subscriptions[name]
    faults = subscription.find_faults()
    if faults:
        reason = f"{faults[0]}. Correct topics.{name} in the robot's file"
    elif subscription.last_refusal:
        reason = f"{subscription.last_refusal}. Correct topics.{name} in the robot's file"
    elif node.list_publishers(topic.name):
        reason = f"{topic.name}: it is there and says nothing. See whether its driver runs"
    else:
        reason = (
            f"{topic.name}: nobody publishes it. Start the robot's driver, correct topics.{name}.name in the robot's "
            "file, or set ROS_DOMAIN_ID as the robot has it"
        )
    raise UserError(f"No message within {patience_s:g} s. {reason}.")


def check_command_topic(node: Transport, robot: RobotDescription, publisher: Publisher, patience_s: float) -> None:
    """Check that somebody takes the commands, and that nobody else gives any.

    Raises:
        UserError: nobody listens, the ends do not fit, or there is a second publisher.
    """
    name = robot.command.name
    matched = wait_until(node, lambda: publisher.count_matched() > 0 or bool(find_rivals(publisher)), patience_s)
    if rivals := find_rivals(publisher):
        raise UserError(f"{rivals}. A robot takes commands of one: stop the other one.")
    if faults := publisher.find_faults():
        raise UserError(f"{faults[0]}. Correct command in the robot's file.")
    if not matched:
        raise UserError(f"{name}: nobody takes commands there. Start the robot's controller, or correct command.name.")


def find_rivals(publisher: Publisher) -> str:
    """Return in words who else publishes commands; empty for nobody."""
    rivals = publisher.find_rivals()
    return "" if not rivals else f"{publisher.topic}: {rivals[0].node or 'another node'} gives commands, too"


def wait_until(node: Transport, condition: Callable[[], bool], patience_s: float) -> bool:
    """Wait for a condition of what arrives; return False if it does not hold in time."""
    until = time.monotonic() + patience_s
    while not node.spin_until(condition, min(LOOKING_S, patience_s)):
        if time.monotonic() >= until or node.kind == "in_process":
            return condition()
    return True
