"""Topics of a robot that are recorded, and the QoS that the recorder requests."""

from collections.abc import Iterable
from dataclasses import dataclass

from embodied_rl.deployment.recording.steps import STATUS, STEPS
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import UserError

DEPTH = 500
"""Messages that the middleware keeps while Python is busy: 1 s of joint states at 500 Hz."""
LARGE_DEPTH = 60
"""The same for large messages: 2 s of a camera at 30 Hz, up to 55 MB."""
LARGE_TYPES = {f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "PointCloud2")}
TEXT, SWITCH = "std_msgs/msg/String", "std_msgs/msg/Bool"


@dataclass(frozen=True)
class RecordedTopic:
    """A topic to record.

    Attributes:
        name, type_name: ROS 2 names.
        reliable: request reliable QoS if it is offered; for small, rare messages.
        latched: also request messages published before the recorder started; implies `reliable`.
    """

    name: str
    type_name: str
    reliable: bool = False
    latched: bool = False

    @property
    def requests(self) -> tuple[QoS, ...]:
        """Return the QoS to request, in order of preference.

        The default is best effort, which matches all publishers and never requests retransmission.
        """
        depth = LARGE_DEPTH if self.type_name in LARGE_TYPES else DEPTH
        latched = [QoS("reliable", "transient_local", depth)] if self.latched else []
        reliable = [QoS("reliable", depth=depth)] if self.latched or self.reliable else []
        return (*latched, *reliable, QoS("best_effort", depth=depth))


def list_topics(robot: RobotDescription) -> tuple[RecordedTopic, ...]:
    """Return the topics of a robot, of its operator and of the bridge, sorted by name.

    Raises:
        UserError: the robot's file gives one topic two types.
    """
    listed = [
        RecordedTopic(topic.name, topic.type_name, latched=topic.qos == "latched") for topic in robot.topics.values()
    ]
    listed += [RecordedTopic(topic.name, topic.type_name) for topic in robot.command_topics.values()]
    if robot.use_sim_time:
        listed.append(RecordedTopic("/clock", "rosgraph_msgs/msg/Clock"))
    operator = robot.operator
    types = {
        operator.estop: (SWITCH, True),
        operator.deadman: (SWITCH, False),
        operator.teleop: (operator.teleop_type, False),
        operator.label: (TEXT, False),  # a label published before this recording must not count
        operator.reset: (TEXT, True),
        operator.outcome: (TEXT, True),
        operator.instruction: (TEXT, True),
    }
    listed += [
        RecordedTopic(name, kind, reliable=kind == TEXT, latched=latched)
        for name, (kind, latched) in types.items()
        if name
    ]
    listed += [RecordedTopic(STATUS, TEXT, latched=True), RecordedTopic(STEPS, TEXT, reliable=True)]
    return merge_topics(listed)


def merge_topics(listed: Iterable[RecordedTopic]) -> tuple[RecordedTopic, ...]:
    """Return topics without duplicates, sorted by name; raise `UserError` if one topic has two types."""
    merged: dict[str, RecordedTopic] = {}
    for topic in listed:
        known = merged.setdefault(topic.name, topic)
        if known.type_name != topic.type_name:
            raise UserError(
                f"{topic.name} has two types, {known.type_name} and {topic.type_name}: give it one",
                code="topic-types-differ",
            )
        reliable, latched = known.reliable or topic.reliable, known.latched or topic.latched
        merged[topic.name] = RecordedTopic(topic.name, topic.type_name, reliable, latched)
    return tuple(merged[name] for name in sorted(merged))
