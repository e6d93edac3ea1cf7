"""Inspection of a robot's topics for `embodied-rl doctor robot=<yaml>`. It publishes nothing."""

import math
from collections.abc import Callable, Iterator

from embodied_rl.deployment.robots.description import CommandTopic, RobotDescription
from embodied_rl.deployment.robots.keys import name_command
from embodied_rl.deployment.robots.mapping import ObservationMapping
from embodied_rl.deployment.robots.robot_monitor import ObservedTopic, RobotMonitor
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS
from embodied_rl.deployment.transport.interface import Endpoint, Transport
from embodied_rl.deployment.transport.qos import QoS, find_incompatible, offer, request
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis

DISCOVERY_S = 5.0
"""Time limit for the discovery of publishers."""
ENOUGH = 0.9
"""Smallest accepted share of the nominal rate."""
CLOSE_S = 0.05
"""Largest time by which a stamp may be in the future, with synchronised clocks."""
NETWORK = "start its driver; is ROS_DOMAIN_ID the same, and do both sides discover each other (docs/ros2.md)?"

Watching = Callable[[float], object]
"""Waits for a number of seconds while messages arrive."""


def inspect_robot(
    robot: RobotDescription, transport: Transport, seconds: float = 3.0, watch: Watching | None = None
) -> list[Diagnosis]:
    """Listen to a robot and return a row for each check; see docs/robots.md for the rows.

    Args:
        robot: its description. transport: an open one that no other thread spins.
        seconds: duration of the measurement. watch: waits while messages arrive; None spins the transport.
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
        return [
            _check_verified(robot),
            *_check_clock(seen),
            *(_check_topic(name, each) for name, each in seen.topics.items()),
            *_check_stamps(seen),
            *_check_observation(seen),
            *(row for name in robot.command_topics for row in _check_command(robot, name, transport)),
            *_check_operator(robot, transport),
        ]
    finally:
        seen.close()


def _check_verified(robot: RobotDescription) -> Diagnosis:
    never = "never" in robot.verified
    remedy = "begin with dry_run=true, low limits and a hand on the emergency stop" if never else ""
    return Diagnosis(f"robot {robot.name}", "warn" if never else "ok", robot.verified, remedy)


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
        yield from _check_limits(robot, values)
    if robot.cameras:
        try:
            mapping.read_pictures(seen.messages)
        except UserError as error:
            yield Diagnosis("pictures", "fail", str(error), "correct cameras.… in the robot's file")
        else:
            yield Diagnosis("pictures", "ok", ", ".join(camera.name for camera in robot.cameras))


def _check_limits(robot: RobotDescription, values: dict[str, float]) -> Iterator[Diagnosis]:
    outside: list[str] = []
    checked = 0
    for entry, limits in zip(robot.actions, robot.entry_limits, strict=True):
        if not entry.measured or (math.isinf(limits.low) and math.isinf(limits.high)):
            continue
        checked += 1
        value = values[entry.measured]
        if not limits.low <= value <= limits.high:
            outside.append(f"{entry.measured} is {value:.4g} {entry.unit}, outside {limits.low:g} to {limits.high:g}")
    if outside:
        remedy = "bring the robot inside by its own means, or correct the limits in its file"
        yield Diagnosis("limits", "fail", "; ".join(outside), remedy)
    elif checked:
        yield Diagnosis("limits", "ok", f"{checked} measured entries lie within them")


def _check_command(robot: RobotDescription, name: str, transport: Transport) -> Iterator[Diagnosis]:
    command, key = robot.command_topics[name], name_command(name)
    label = f"{command.name} ({key})"
    listening = [each for each in transport.list_subscriptions(command.name) if not each.own]
    problems = [problem for each in listening if (problem := _compare(command, each))]
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
        found = "it is unknown whether the robot stops when commands end"
        yield Diagnosis(f"{key} timeout", "fail" if speed else "warn", found, remedy)


def _compare(command: CommandTopic, listening: Endpoint) -> str | None:
    if listening.type_name != command.type_name:
        return f"{_list_nodes([listening])} takes {listening.type_name}, the file says {command.type_name}"
    return find_incompatible(offer(command.qos), listening.qos)


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
            if problems := [problem for each in publishers if (problem := _find_mismatch(each, type_name, qos))]:
                remedy = f"nothing arrives: let it publish {type_name}, at least {qos.reliability} and {qos.durability}"
                yield Diagnosis(what, "fail", f"{topic}: {problems[0]}", remedy)
                continue
            remedy = "" if publishers else "start the operator's device before the robot moves"
            found = f"{topic}: {_list_nodes(publishers) if publishers else 'no publisher'}"
            yield Diagnosis(what, "ok" if publishers else "warn", found, remedy)


def _find_mismatch(publisher: Endpoint, type_name: str, qos: QoS) -> str | None:
    """Return why a publisher does not reach a subscription of this type and QoS; None if it does."""
    if publisher.type_name != type_name:
        return f"{_list_nodes([publisher])} publishes {publisher.type_name}, and the subscription is for {type_name}"
    reason = find_incompatible(publisher.qos, qos)
    return None if reason is None else f"{_list_nodes([publisher])}: {reason}"


def _list_nodes(ends: list[Endpoint]) -> str:
    return ", ".join(sorted({each.node or "a node without a name" for each in ends}))
