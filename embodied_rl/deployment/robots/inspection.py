"""Inspection of a robot's topics for `embodied-rl doctor robot=<yaml>`. It publishes nothing."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from embodied_rl.deployment.robots.description import RobotDescription, Topic
from embodied_rl.deployment.robots.mapping import ObservationMapping, digest_content, read_stamp
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS
from embodied_rl.deployment.transport.interface import Endpoint, Subscription, Transport
from embodied_rl.deployment.transport.qos import find_incompatible, offer, request
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis

DISCOVERY_S = 5.0
"""Time limit for the discovery of publishers."""
ENOUGH = 0.9
"""Smallest accepted share of the nominal rate."""
CLOSE_S = 0.05
"""Largest time by which a stamp may be in the future, with synchronised clocks."""
NETWORK = "start its driver; is ROS_DOMAIN_ID the same, and do both sides discover each other (docs/ros2.md)?"

DEPTH = 1000
"""Queue depth of the subscriptions, so that rates are measured without loss."""
LARGEST_DIGESTED = 500
"""Number of messages per topic that are compared."""
NO_BOX = (-math.inf, math.inf)
CLOCK = Topic("/clock", "rosgraph_msgs/msg/Clock", "clock", 1.0, 2.0)


@dataclass
class ObservedTopic:
    """Messages of one topic.

    Attributes:
        received_ns: of each message. stamps_ns: of the headers; missing and zero stamps are left out.
        last: the last message. digests: of the first messages' contents.
    """

    topic: Topic
    subscription: Subscription
    received_ns: list[int] = field(default_factory=list[int])
    stamps_ns: list[int] = field(default_factory=list[int])
    offsets_s: list[float] = field(default_factory=list[float])
    digests: set[bytes] = field(default_factory=set[bytes])
    last: Any = None

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.received_ns)

    @property
    def rate_hz(self) -> float:
        """Mean rate between the first and the last message; 0 for fewer than two."""
        spent = (self.received_ns[-1] - self.received_ns[0]) * 1e-9 if self.count > 1 else 0.0
        return (self.count - 1) / spent if spent > 0 else 0.0

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two messages; `inf` for fewer than two."""
        pairs = zip(self.received_ns, self.received_ns[1:], strict=False)
        return max(((after - before) * 1e-9 for before, after in pairs), default=math.inf)

    @property
    def offset_s(self) -> float | None:
        """Median of arrival time minus stamp; None without stamps."""
        return statistics.median(self.offsets_s) if self.offsets_s else None


class RobotMonitor:
    """Subscribes to all topics of a robot on an open transport, which the caller spins."""

    def __init__(self, robot: RobotDescription, transport: Transport) -> None:
        self.robot, self.transport = robot, transport
        self.clock = self._listen(CLOCK) if robot.use_sim_time else None
        self.topics = {name: self._listen(topic) for name, topic in robot.topics.items()}

    @property
    def all(self) -> list[ObservedTopic]:
        """All observed topics, the clock included."""
        return [*([self.clock] if self.clock else []), *self.topics.values()]

    @property
    def messages(self) -> dict[str, Any]:
        """Last message of each topic that has one, by short name."""
        return {name: seen.last for name, seen in self.topics.items() if seen.last is not None}

    def reset_counts(self) -> None:
        """Discard the messages so far, such as those during discovery."""
        for seen in self.all:
            for noted in (seen.received_ns, seen.stamps_ns, seen.offsets_s, seen.digests):
                noted.clear()

    def close(self) -> None:
        """Close the subscriptions."""
        for seen in self.all:
            seen.subscription.close()

    def _listen(self, topic: Topic) -> ObservedTopic:
        def arrive(message: Any, received_ns: int, source_ns: int) -> None:
            seen.received_ns.append(received_ns)
            seen.last = message
            if topic is CLOCK:
                seen.stamps_ns.append(_read_clock(message))
                return
            if len(seen.digests) < LARGEST_DIGESTED:
                seen.digests.add(digest_content(message))
            now_ns: int | None = received_ns
            if self.clock is not None:  # simulated time, unknown before the first /clock
                now_ns = None if self.clock.last is None else _read_clock(self.clock.last)
            if (stamp := read_stamp(message)) is not None:
                seen.stamps_ns.append(stamp)
                if now_ns is not None:
                    seen.offsets_s.append((now_ns - stamp) * 1e-9)

        qos = replace(request(topic.qos), depth=DEPTH)
        seen = ObservedTopic(topic, self.transport.create_subscription(topic.name, topic.type_name, qos, arrive))
        return seen


def _read_clock(message: Any) -> int:
    return message.clock.sec * 1_000_000_000 + message.clock.nanosec


def inspect_robot(
    robot: RobotDescription, transport: Transport, seconds: float = 3.0, watch: Callable[[float], object] | None = None
) -> list[Diagnosis]:
    """Listen to a robot and return a row for each check; see docs/robots.md for the rows.

    Args:
        transport: an open one that no other thread spins. seconds: duration of the measurement.
        watch: waits for a number of seconds while messages arrive; None spins the transport.
    """
    spin = watch or (lambda duration: transport.spin_until(lambda: False, duration))
    seen = RobotMonitor(robot, transport)
    try:
        if watch is not None:
            watch(0.0)
        else:
            transport.spin_until(lambda: all(each.subscription.count_matched() for each in seen.all), DISCOVERY_S)
        seen.reset_counts()
        spin(seconds)
        never = "never" in robot.verified
        remedy = "begin with dry_run=true, low limits and a hand on the emergency stop" if never else ""
        return [
            Diagnosis(f"robot {robot.name}", "warn" if never else "ok", robot.verified, remedy),
            *_check_clock(seen),
            *(_check_topic(name, each) for name, each in seen.topics.items()),
            *_check_stamps(seen),
            *_check_observation(seen),
            *(row for name in robot.command_topics for row in _check_command(robot, name, transport)),
            *_check_operator(robot, transport),
        ]
    finally:
        seen.close()


def _check_clock(seen: RobotMonitor) -> Iterator[Diagnosis]:
    if seen.clock is None:
        return
    if seen.clock.count > 1 and len(set(seen.clock.stamps_ns)) == 1:
        remedy = "a robot in lockstep waits for commands: start it without lockstep=true, or let the simulation go on"
        yield Diagnosis("/clock", "fail", "the time stands still", remedy)
    elif seen.clock.count:
        yield Diagnosis("/clock", "ok", f"{seen.clock.rate_hz:.1f} Hz")
    else:
        remedy = "the robot's file says use_sim_time: start the simulation, or set it to false"
        yield Diagnosis("/clock", "fail", "no message", remedy)


def _check_topic(name: str, seen: ObservedTopic) -> Diagnosis:
    topic, label = seen.topic, f"{seen.topic.name} ({name})"
    if faults := seen.subscription.find_mismatches():
        remedy = f"set topics.{name}.type and qos in the robot's file to what the driver says"
        return Diagnosis(label, "fail", faults[0], remedy)
    publishers = [each for each in seen.subscription.transport.list_publishers(topic.name) if not each.own]
    if not publishers:
        return Diagnosis(label, "fail", "no publisher", NETWORK)
    if len(publishers) > 1:
        remedy = "end one of them, or give it another topic or ROS_DOMAIN_ID: their messages would be mixed"
        return Diagnosis(label, "fail", f"{len(publishers)} publishers: {_list_nodes(publishers)}", remedy)
    if seen.subscription.refused:
        return Diagnosis(label, "fail", seen.subscription.last_refusal, "install the same messages on both sides")
    found = f"{seen.rate_hz:.1f} Hz, {topic.rate_hz:g} promised"
    if seen.count < 2:
        remedy = "is the sensor switched on? over several machines: does the network pass such messages?"
        return Diagnosis(label, "fail", f"{seen.count} messages, {topic.rate_hz:g} Hz promised", remedy)
    if seen.longest_gap_s > topic.max_age_s:
        found += f", {seen.longest_gap_s * 1e3:.0f} ms without a message"
        remedy = f"the robot would stop after {topic.max_age_s * 1e3:.0f} ms (topics.{name}.max_age_s): find out why"
        return Diagnosis(label, "fail", found, remedy)
    if seen.rate_hz < ENOUGH * topic.rate_hz:
        return Diagnosis(label, "warn", found, f"raise the driver's rate, or lower topics.{name}.rate_hz")
    if len(seen.digests) == 1 and not topic.may_repeat:
        remedy = f"a frozen sensor, or one without noise: then topics.{name}.may_repeat: true"
        return Diagnosis(label, "fail", f"{found}, with constant content", remedy)
    return Diagnosis(label, "ok", found)


def _check_stamps(seen: RobotMonitor) -> Iterator[Diagnosis]:
    offsets = {name: (each, each.offset_s) for name, each in seen.topics.items() if each.count}
    wrong = False
    for name, (each, offset) in offsets.items():
        label, topic = f"stamps of {each.topic.name}", each.topic
        if each.count > 1 and len(set(each.stamps_ns)) == 1:
            wrong = True
            yield Diagnosis(
                label, "fail", "all are equal", "the driver must stamp each message with the time of its measurement"
            )
        elif offset is not None and not -CLOSE_S <= offset <= topic.max_age_s:
            wrong = True
            said = f"{abs(offset):.3f} s {'behind' if offset > 0 else 'ahead of'} this machine's time"
            remedy = f"keep the clocks together (chrony); topics.{name}.max_age_s is {topic.max_age_s:g} s"
            yield Diagnosis(label, "fail", said, remedy)
    ages = [offset for _, offset in offsets.values() if offset is not None]
    if ages and not wrong:
        yield Diagnosis("stamps", "ok", f"messages are {max(ages) * 1e3:.0f} ms old or less on arrival")


def _check_observation(seen: RobotMonitor) -> Iterator[Diagnosis]:
    mapping, robot = ObservationMapping(seen.robot), seen.robot
    if silent := [seen.topics[name].topic.name for name in mapping.topics if name not in seen.messages]:
        yield Diagnosis("observation", "fail", f"not checked: {', '.join(silent)} have no messages", "see their rows")
        return
    try:
        state = mapping.read_state(seen.messages)
    except UserError as error:
        yield Diagnosis("state", "fail", str(error), "correct state.… in the robot's file, by the driver's names")
    else:
        values = dict(zip((entry.name for entry in robot.state), state.tolist(), strict=True))
        yield Diagnosis("state", "ok", f"{len(values)} entries, joints by name")
        rows = zip(robot.actions, robot.entry_limits, strict=True)
        bounded = [(entry, box) for entry, box in rows if entry.measured and (box.low, box.high) != NO_BOX]
        outside = [
            f"{entry.measured} is {values[entry.measured]:.4g} {entry.unit}, outside {box.low:g} to {box.high:g}"
            for entry, box in bounded
            if not box.low <= values[entry.measured] <= box.high
        ]
        if outside:
            remedy = "bring the robot inside by its own means, or correct the limits in its file"
            yield Diagnosis("limits", "fail", "; ".join(outside), remedy)
        elif bounded:
            yield Diagnosis("limits", "ok", f"{len(bounded)} measured entries lie within them")
    if robot.cameras:
        try:
            mapping.read_pictures(seen.messages)
        except UserError as error:
            yield Diagnosis("pictures", "fail", str(error), "correct cameras.… in the robot's file")
        else:
            yield Diagnosis("pictures", "ok", ", ".join(camera.name for camera in robot.cameras))


def _check_command(robot: RobotDescription, name: str, transport: Transport) -> Iterator[Diagnosis]:
    command, key = robot.command_topics[name], robot.name_command(name)
    label = f"{command.name} ({key})"
    listening = [each for each in transport.list_subscriptions(command.name) if not each.own]
    offered = offer(command.qos)
    found = [_explain(each, "takes", command.type_name, find_incompatible(offered, each.qos)) for each in listening]
    problems = list(filter(None, found))
    if not listening:
        yield Diagnosis(label, "fail", "no subscriber", "activate its controller")
    elif len(problems) == len(listening):
        yield Diagnosis(label, "fail", problems[0], f"correct {key}.type and qos in the robot's file")
    else:
        yield Diagnosis(label, "ok", f"{_list_nodes(listening)} listens")
    if rivals := [each for each in transport.list_publishers(command.name) if not each.own]:
        remedy = "end it: the bridge does not start while another node publishes commands"
        label = f"rivals on {command.name}" if name else "rivals"
        yield Diagnosis(label, "fail", f"{_list_nodes(rivals)} publishes commands, too", remedy)
    if command.timeout_s:
        yield Diagnosis(f"{key} timeout", "ok", f"the robot stops {command.timeout_s:g} s after the last command")
    else:
        speed = any(robot.actions[place].kind != "position" for place in robot.list_commanded(name))
        remedy = f"set the controller's timeout, and write it to {key}.timeout_s"
        unknown = "it is unknown whether the robot stops when commands end"
        yield Diagnosis(f"{key} timeout", "fail" if speed else "warn", unknown, remedy)


def _check_operator(robot: RobotDescription, transport: Transport) -> Iterator[Diagnosis]:
    boolean, teleop = "std_msgs/msg/Bool", robot.operator.teleop_type
    for key, what, type_name, qos in (
        ("estop", "emergency stop", boolean, STOP_QOS),
        ("deadman", "dead man's switch", boolean, request("deadman")),
        ("teleop", "teleoperation", teleop, request("sensor_data")),
    ):
        topic = getattr(robot.operator, key)
        if not topic and key == "estop":
            remedy = "name its topic in operator.estop, besides the one that cuts the power"
            yield Diagnosis(what, "warn", "none in the file", remedy)
        elif topic:
            publishers = [each for each in transport.list_publishers(topic) if not each.own]
            found = [_explain(each, "publishes", type_name, find_incompatible(each.qos, qos)) for each in publishers]
            if problems := list(filter(None, found)):
                remedy = f"nothing arrives: let it publish {type_name}, at least {qos.reliability} and {qos.durability}"
                yield Diagnosis(what, "fail", f"{topic}: {problems[0]}", remedy)
                continue
            remedy = "" if publishers else "start the operator's device before the robot moves"
            nodes = _list_nodes(publishers) if publishers else "no publisher"
            yield Diagnosis(what, "ok" if publishers else "warn", f"{topic}: {nodes}", remedy)


def _explain(end: Endpoint, does: str, type_name: str, reason: str | None) -> str | None:
    """Return why an endpoint does not match: another type, or a reason of its QoS; None if it does."""
    who = _list_nodes([end])
    if end.type_name != type_name:
        return f"{who} {does} {end.type_name}, and {type_name} is needed"
    return None if reason is None else f"{who}: {reason}"


def _list_nodes(ends: list[Endpoint]) -> str:
    return ", ".join(sorted({each.node or "a node without a name" for each in ends}))
