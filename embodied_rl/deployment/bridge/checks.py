"""What must hold before a robot is commanded. Each fault is one line with its remedy, and the robot does not move."""

import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.command_publisher import CommandPublisher
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fitting import check_policy
from embodied_rl.deployment.robots.keys import name_command
from embodied_rl.deployment.transport.interface import Publisher, Transport
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError

LOOKING_S = 0.02
PACE_S = 0.5
SEVERAL = 3
"""Changes of /clock, in lockstep within `PACE_S`, that tell a time which goes on by itself."""


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
        UserError: one has not; the message says what is known of why. Or two nodes publish it, such as two robots.
    """

    def missing() -> list[str]:
        return [name for name in inbox.mapping.topics if name not in inbox.newest]

    if wait_until(node, lambda: not missing(), patience_s):
        inbox.observe(inbox.keep(), "")  # a joint that is missing, a picture of another size
        for name in inbox.mapping.topics:
            check_one_publisher(node, robot.topics[name].name)
        return
    name = missing()[0]
    topic, subscription = robot.topics[name], inbox.subscriptions[name]
    faults = subscription.find_mismatches()
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


def check_one_publisher(node: Transport, topic: str) -> None:
    """Check that one node alone says where a robot is, or what it sees.

    Raises:
        UserError: there are several.
    """
    publishers = node.list_publishers(topic)
    if len(publishers) > 1:
        names = " and ".join(sorted(each.node or "a node without a name" for each in publishers))
        raise UserError(
            f"{topic}: {len(publishers)} publish it, {names}, and what they say would be mixed. End one, give one "
            "another topic, or another ROS_DOMAIN_ID."
        )


def check_pace(node: Transport, robot: RobotDescription, inbox: Inbox, *, lockstep: bool, patience_s: float) -> None:
    """Check that a simulated robot's time goes on by itself, or in lockstep that it waits for commands.

    Raises:
        UserError: it is the other way round.
    """
    if not robot.use_sim_time:
        return
    goes_on = lambda: inbox.clock_changes >= SEVERAL  # noqa: E731
    if lockstep and wait_until(node, goes_on, PACE_S):
        raise UserError(
            "lockstep=true: the robot's time goes on by itself (/clock). Start the robot with lockstep=true, or leave "
            "it out here."
        )
    if not lockstep and not wait_until(node, goes_on, patience_s):
        raise UserError(
            f"/clock stands still for {patience_s:g} s: the robot waits for commands, or its simulation is paused. "
            "Start the robot without lockstep=true, or give lockstep=true here, too."
        )


def check_command_topics(node: Transport, commands: CommandPublisher, patience_s: float) -> None:
    """Check that somebody takes the commands on each topic, and that nobody else gives any.

    Raises:
        UserError: nobody listens, the ends do not fit, or there is a second publisher.
    """
    for name, publisher in commands.publishers.items():
        _check_command_topic(node, name_command(name), publisher, patience_s)


def _check_command_topic(node: Transport, key: str, publisher: Publisher, patience_s: float) -> None:
    matched = wait_until(node, lambda: publisher.count_matched() > 0 or bool(find_rivals(publisher)), patience_s)
    if rivals := find_rivals(publisher):
        raise UserError(f"{rivals}. A robot takes commands of one: stop the other one.")
    if faults := publisher.find_mismatches():
        raise UserError(f"{faults[0]}. Correct {key} in the robot's file.")
    if not matched:
        raise UserError(
            f"{publisher.topic}: nobody takes commands there. Start the robot's controller, or correct {key}.topic."
        )


def check_stop_topic(node: Transport, robot: RobotDescription, unheard: str) -> None:
    """Check that the emergency stop is heard, and that whoever releases it can be told from whoever pressed it.

    Args:
        unheard: in words, why one that somebody publishes does not arrive; empty: it does.

    Raises:
        UserError: it is not heard; or several publish it, and the transport does not say who said what.
    """
    name = robot.operator.estop
    if unheard:
        raise UserError(f"{unheard}. Publish std_msgs/msg/Bool there, reliable and transient_local.")
    if not name or node.identifies_publishers:
        return
    ends = node.list_publishers(name)
    if len(ends) > 1:
        names = ", ".join(sorted({each.node or "another node" for each in ends}))
        raise UserError(
            f"{name}: {len(ends)} publishers give the emergency stop ({names}), and transport={node.kind} does not "
            "tell whose message is whose, so that one could release what another one pressed. Let one node publish "
            "it, or use transport=dds."
        )


def find_rivals(publisher: Publisher) -> str:
    """Return in words who else publishes commands; empty for nobody."""
    rivals = publisher.other_publishers()
    return "" if not rivals else f"{publisher.topic}: {rivals[0].node or 'another node'} gives commands, too"


def wait_until(node: Transport, condition: Callable[[], bool], patience_s: float) -> bool:
    """Wait for a condition of what arrives; return False if it does not hold in time."""
    until = time.monotonic() + patience_s
    while not node.spin_until(condition, min(LOOKING_S, patience_s)):
        if time.monotonic() >= until or node.kind == "in_process":
            return condition()
    return True
