"""Which topics of a robot are recorded, and what a recorder requests of their publishers."""

from collections.abc import Iterable
from dataclasses import dataclass

from embodied_rl.deployment.recording.steps import STATUS, STEPS
from embodied_rl.deployment.robots.description import OperatorTopics, RobotDescription
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import UserError

DEPTH = 500
"""Messages that wait in the middleware while Python is busy: a second of joint states at 500 Hz."""
PICTURES = 60
"""The same of large messages: 2 s of a camera at 30 Hz, which may already be 55 MB."""
LARGE = {f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "PointCloud2")}
TEXT, SWITCH = "std_msgs/msg/String", "std_msgs/msg/Bool"


@dataclass(frozen=True)
class RecordedTopic:
    """A topic to record.

    Attributes:
        name, type_name: as ROS 2 writes them.
        reliable: it is small and rare: it is requested reliably where that is offered.
        latched: what was said before the recorder came is wanted, too; implies `reliable`.
    """

    name: str
    type_name: str
    reliable: bool = False
    latched: bool = False

    @property
    def requests(self) -> tuple[QoS, ...]:
        """Return what to request, the first one that the publishers offer.

        Best effort by default: it meets publishers of both reliabilities, and asks none of a robot's to send again.
        """
        depth = PICTURES if self.type_name in LARGE else DEPTH
        latched = [QoS("reliable", "transient_local", depth)] if self.latched else []
        reliable = [QoS("reliable", depth=depth)] if self.latched or self.reliable else []
        return (*latched, *reliable, QoS("best_effort", depth=depth))


def list_topics(robot: RobotDescription) -> tuple[RecordedTopic, ...]:
    """Return every topic of a robot, of its operator and of the bridge, in the order of their names.

    Raises:
        UserError: the robot gives one topic two types.
    """
    listed = [
        RecordedTopic(topic.name, topic.type_name, latched=topic.qos == "latched") for topic in robot.topics.values()
    ]
    listed += [RecordedTopic(topic.name, topic.type_name) for topic in robot.command_topics.values()]
    if robot.use_sim_time:
        listed.append(RecordedTopic("/clock", "rosgraph_msgs/msg/Clock"))
    listed += _list_operator(robot.operator)
    listed += [RecordedTopic(STATUS, TEXT, latched=True), RecordedTopic(STEPS, TEXT, reliable=True)]
    return merge_topics(listed)


def merge_topics(listed: Iterable[RecordedTopic]) -> tuple[RecordedTopic, ...]:
    """Return topics without repetitions, in the order of their names.

    Raises:
        UserError: one topic has two types.
    """
    merged: dict[str, RecordedTopic] = {}
    for topic in listed:
        known = merged.setdefault(topic.name, topic)
        if known.type_name != topic.type_name:
            raise UserError(f"{topic.name} is {known.type_name} and {topic.type_name}: give it one type")
        reliable, latched = known.reliable or topic.reliable, known.latched or topic.latched
        merged[topic.name] = RecordedTopic(topic.name, topic.type_name, reliable, latched)
    return tuple(merged[name] for name in sorted(merged))


def _list_operator(topics: OperatorTopics) -> list[RecordedTopic]:
    types = {
        topics.estop: (SWITCH, True),
        topics.deadman: (SWITCH, False),
        topics.teleop: (topics.teleop_type, False),
        topics.label: (TEXT, False),  # yesterday's label must not count today
        topics.reset: (TEXT, True),
        topics.outcome: (TEXT, True),
        topics.instruction: (TEXT, True),
    }
    return [
        RecordedTopic(name, kind, reliable=kind == TEXT, latched=latched)
        for name, (kind, latched) in types.items()
        if name
    ]
