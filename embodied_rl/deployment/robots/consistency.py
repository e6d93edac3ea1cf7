"""Checks of a robot's description. Each error is one line with the key and the remedy."""

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from embodied_rl.config.freeze import suggest_name
from embodied_rl.deployment.execution.operator_device import check_device
from embodied_rl.deployment.robots.description import COMMAND_TYPES, ActionEntry, CommandTopic, RobotDescription
from embodied_rl.deployment.robots.fields import check_field
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import check_topic, check_type
from embodied_rl.deployment.transport.qos import find_profile
from embodied_rl.interfaces.errors import UserError

UNITS = ("m", "rad", "s", "kg", "N", "Nm", "m/s", "rad/s", "m/s²", "rad/s²", "A", "V", "K", "1")
"""Units of states and actions: SI, and 1 for dimensionless ones."""
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
INFO = ("sensor_msgs/msg/CameraInfo",)
TELEOP_TYPES = ("sensor_msgs/msg/Joy", "geometry_msgs/msg/Twist")
TWIST_TARGETS = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")
POSITION_TARGETS = tuple(f"position.{axis}" for axis in "xyz")
ORIENTATION_TARGETS = tuple(f"orientation.{angle}" for angle in ("roll", "pitch", "yaw"))
FARTHEST = {"rad": (20 * math.pi, "degrees"), "m": (100.0, "millimetres")}
"""Largest plausible limit of a position or displacement, ten turns or 100 m, and the unit that is likely meant by a
larger one. In a wrong unit the small motions of `MotionProbe` would be large."""
LEAST_HZ, LARGEST_HZ = 1e-3, 1e5
"""Range of all rates."""
LARGEST_PICTURE = 8192
"""Largest width and height in pixels of a policy's picture."""
LEAST_HORIZON_S, LONGEST_HORIZON_S = 0.05, 0.5


def check_consistency(robot: RobotDescription) -> None:
    """Check everything that does not need message types; raises UserError with the key."""
    _check_rates(robot)
    for name, topic in robot.topics.items():
        where = f"topics.{name}"
        _check_names(where, topic.name, topic.type_name, topic.qos, "name")
        _check_range(topic.rate_hz, f"{where}.rate_hz", LEAST_HZ, LARGEST_HZ, "times per second")
        _check_positive(topic.max_age_s, f"{where}.max_age_s")
        if topic.max_age_s * topic.rate_hz < 1:
            raise UserError(
                f"{where}.max_age_s={topic.max_age_s:g} ends before the next message, at rate_hz={topic.rate_hz:g}: "
                f"take {2 / topic.rate_hz:.3g} or more.",
                code="topic-age-too-short",
            )
    _check_unique("topics", (topic.name for topic in robot.topics.values()))
    _check_cameras(robot)
    if not robot.state:
        raise UserError(
            "state has no entries: list what the robot measures, see docs/robots.md.", code="robot-state-missing"
        )
    for entry in robot.state:
        _check_unit(entry.unit, f"state.{entry.name}.unit")
        if not entry.terms:
            raise UserError(
                f"state.{entry.name}.reads is empty: name a number, such as joints.position[elbow].",
                code="robot-state-missing",
            )
        for term in entry.terms:
            _check_known(term.topic, robot.topics, f"state.{entry.name}.reads", "a topic of topics")
    _check_actions(robot)
    if "" in robot.commands:
        raise UserError("commands: each topic needs a name.", code="command-name-missing")
    for entry in robot.actions:
        _check_known(entry.command, robot.command_topics, f"actions.{entry.name}.command", "a topic of commands")
    for name, command in robot.command_topics.items():
        _check_command(robot, name, command)
    _check_operator(robot)


def check_messages(robot: RobotDescription, messages: Messages) -> None:
    """Check message types and fields against a ROS 2 release; raises UserError: unknown type or field."""
    for name, topic in robot.topics.items():
        with name_key(f"topics.{name}.type"):
            messages.find_class(topic.type_name)
    for entry in robot.state:
        for term in entry.terms:
            with name_key(f"state.{entry.name}.reads"):
                check_field(messages, robot.topics[term.topic].type_name, term.field)


@contextmanager
def name_key(where: str) -> Iterator[None]:
    """Prefix `UserError` messages with a key."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}", code=error.code) from None


def _check_rates(robot: RobotDescription) -> None:
    if not robot.name or not robot.verified:
        raise UserError(
            "name and verified must be non-empty: the robot, and the hardware or simulator it was tested on.",
            code="key-missing",
        )
    for key in ("control_hz", "command_hz"):
        _check_range(getattr(robot, key), key, LEAST_HZ, LARGEST_HZ, "times per second")
    ratio = robot.command_hz / robot.control_hz
    if ratio < 1 or abs(ratio - round(ratio)) > 1e-9:
        near = max(1, round(ratio)) * robot.control_hz
        raise UserError(
            f"command_hz={robot.command_hz:g} must be a multiple of control_hz={robot.control_hz:g}, such as {near:g}.",
            code="control-rate-invalid",
        )
    for key in ("silence_s", "open_loop_s"):
        if not 1 <= getattr(robot, key) * robot.control_hz * (1 + 1e-9) < math.inf:
            step_s = 1 / robot.control_hz
            raise UserError(
                f"{key}={getattr(robot, key):g} must last a control step, {step_s:g} s, at least.",
                code="value-out-of-range",
            )


def _check_cameras(robot: RobotDescription) -> None:
    for camera in robot.cameras:
        where = f"cameras.{camera.name}"
        for key, name, types in (("topic", camera.topic, IMAGES), ("info", camera.info, INFO)):
            if key == "info" and not name:
                continue
            _check_known(name, robot.topics, f"{where}.{key}", "a topic of topics")
            if (found := robot.topics[name].type_name) not in types:
                raise UserError(
                    f"{where}.{key}={name} has type {found}: a camera needs {' or '.join(types)}.",
                    code="camera-type-unsupported",
                )
        for side in ("height", "width"):
            _check_range(getattr(camera, side), f"{where}.{side}", 1, LARGEST_PICTURE, "pixels")


def _check_actions(robot: RobotDescription) -> None:
    if not robot.actions:
        raise UserError(
            "actions has no entries: list what is commanded, see docs/robots.md.", code="robot-actions-missing"
        )
    names = [entry.name for entry in robot.state]
    if not len(robot.actions) == len(robot.entry_limits) == len(robot.tracking_error):
        raise UserError(
            "limits and tracking_error need one entry per action, in the order of the actions.",
            code="robot-limits-invalid",
        )
    for entry in robot.actions:
        where = f"actions.{entry.name}"
        _check_unit(entry.unit, f"{where}.unit")
        if not -math.inf < entry.action_low < entry.action_high < math.inf:
            raise UserError(
                f"{where}.low={entry.action_low:g} must be below {where}.high={entry.action_high:g}.",
                code="robot-limits-invalid",
            )
        if entry.measured:
            _check_known(entry.measured, names, f"{where}.measured", "an entry of state")
            if (other := robot.state[names.index(entry.measured)].unit) != entry.unit:
                raise UserError(
                    f"{where}.unit={entry.unit} is compared with state.{entry.measured}.unit={other}: make them equal.",
                    code="unit-mismatch",
                )
    for entry, limits, error in zip(robot.actions, robot.entry_limits, robot.tracking_error, strict=True):
        _check_box(entry, limits.low, limits.high)
        if math.isfinite(error) and not entry.measured:
            raise UserError(
                f"actions.{entry.name}.tracking_error: only what is measured can be compared with its command: name "
                "the entry of the state that measures it, or write unlimited.",
                code="tracking-error-not-measured",
            )


def _check_box(entry: ActionEntry, low: float, high: float) -> None:
    """Check low and high limits; those of velocities and displacements can only be enforced if measured."""
    where, finite = f"actions.{entry.name}", [abs(bound) for bound in (low, high) if math.isfinite(bound)]
    if entry.kind == "position" and len(finite) < 2:
        raise UserError(f"{where}.limits: a position needs both low and high, as numbers.", code="robot-limits-invalid")
    farthest = max(finite, default=0.0)
    if entry.kind != "velocity" and entry.unit in FARTHEST and farthest > FARTHEST[entry.unit][0]:
        most, other = FARTHEST[entry.unit]
        raise UserError(
            f"{where}.limits: {farthest:g} {entry.unit} is beyond {most:.3g} {entry.unit}. Are these {other}? Give "
            "all numbers of the action in its unit.",
            code="unit-implausible",
        )
    if entry.kind != "position" and finite and not entry.measured:
        raise UserError(
            f"{where}.limits: low and high cannot be enforced without a measurement: name the entry "
            f"of the state in {where}.measured, or write low: unlimited and high: unlimited.",
            code="limits-not-measured",
        )


def _check_command(robot: RobotDescription, name: str, command: CommandTopic) -> None:
    where, period_s = robot.name_command(name), 1 / robot.command_hz
    if "/action/" in command.type_name:
        raise UserError(
            f"{where}.type={command.type_name}: actions are not supported; use a topic of a controller that takes "
            "one, such as control_msgs/msg/GripperCommand with kind: gripper.",
            code="command-type-unsupported",
        )
    _check_names(where, command.name, command.type_name, command.qos, "topic")
    if command.type_name not in (allowed := COMMAND_TYPES[command.kind]):
        raise UserError(
            f"{where}.type={command.type_name}: commands of kind {command.kind} are {' or '.join(allowed)}. Other "
            "types are not sent: choose a controller that takes one of these.",
            code="command-type-unsupported",
        )
    if not 0 <= command.timeout_s < math.inf:
        raise UserError(
            f"{where}.timeout_s={command.timeout_s:g} must be 0 (unknown) or more.", code="value-out-of-range"
        )
    if 0 < command.timeout_s <= period_s:
        raise UserError(
            f"{where}.timeout_s={command.timeout_s:g}: the robot would stop between two commands, which come every "
            f"{period_s:g} s. Raise command_hz, or the driver's timeout.",
            code="command-timeout-too-short",
        )
    places = robot.list_commanded(name)
    _check_targets(command, where, [robot.actions[place] for place in places])
    if command.kind == "pose":
        _check_pose(command, where, {robot.actions[place].target for place in places})
    if command.kind == "gripper":
        _check_positive(command.max_effort, f"{where}.max_effort")
    elif command.max_effort:
        raise UserError(
            f"{where}.max_effort={command.max_effort:g}: kind {command.kind} does not use it, leave it out.",
            code="key-unused",
        )
    if command.kind == "trajectory":
        _check_trajectory(robot, command.horizon_s, where, places)


def _check_targets(command: CommandTopic, where: str, entries: list[ActionEntry]) -> None:
    targets = [entry.target for entry in entries]
    if not targets:
        raise UserError(
            f"{where}: no action uses this topic: name it in actions.<entry>.command, or leave it out.",
            code="command-without-actions",
        )
    for entry in entries:
        if not entry.target or targets.count(entry.target) > 1:
            raise UserError(
                f"actions.{entry.name}.target={entry.target!r}: each action needs a different target.",
                code="action-target-invalid",
            )
    if command.order and (command.kind != "forward" or sorted(command.order) != sorted(targets)):
        raise UserError(
            f"{where}.order={list(command.order)}: for kind forward it holds each target once, "
            f"{', '.join(targets)}; for other kinds it is left out.",
            code="command-order-invalid",
        )
    if command.kind == "forward":
        return
    position = ("position",)
    known, kinds, why = {
        "twist": (TWIST_TARGETS, ("velocity", "displacement"), "a twist is a speed"),
        "pose": (
            (*POSITION_TARGETS, *ORIENTATION_TARGETS),
            position,
            "a pose is a position; for displacements use kind twist",
        ),
        "gripper": (position, position, "a gripper takes a position"),
        "trajectory": (targets, position, "a trajectory has positions; for speeds use kind forward"),
    }[command.kind]
    for entry in entries:
        if entry.target not in known:
            raise UserError(
                f"actions.{entry.name}.target={entry.target!r}: a {command.kind} has {', '.join(known)}.",
                code="action-target-invalid",
            )
    for entry in entries:
        if entry.kind not in kinds:
            raise UserError(
                f"actions.{entry.name}.kind={entry.kind} cannot be sent as {where}.kind={command.kind}: {why}.",
                code="action-kind-unsupported",
            )


def _check_pose(command: CommandTopic, where: str, targets: set[str]) -> None:
    if missing := [name for name in POSITION_TARGETS if name not in targets]:
        raise UserError(f"actions: a pose needs {missing[0]} as the target of an action.", code="action-target-missing")
    turned = [name for name in ORIENTATION_TARGETS if name in targets]
    if turned and len(turned) < 3:
        raise UserError(
            f"actions: of the orientation {', '.join(turned)} alone are targets: it needs all three.",
            code="action-target-missing",
        )
    length = math.sqrt(sum(value * value for value in command.orientation))
    if not turned and (len(command.orientation) != 4 or not abs(length - 1) <= 1e-3):
        raise UserError(
            f"{where}.orientation={list(command.orientation)}: without orientation targets it is the "
            "fixed quaternion [x, y, z, w] of length 1, such as [1, 0, 0, 0].",
            code="orientation-invalid",
        )
    if turned and command.orientation:
        raise UserError(f"{where}.orientation: actions set the orientation, leave it out.", code="key-unused")


def _check_trajectory(robot: RobotDescription, horizon: float, where: str, places: list[int]) -> None:
    period = 1 / robot.command_hz
    _check_range(horizon, f"{where}.horizon_s", LEAST_HORIZON_S, LONGEST_HORIZON_S, "s")
    if not period < horizon <= 4 * period:
        raise UserError(
            f"{where}.horizon_s={horizon:g}: a trajectory is replaced by the next one after {period:g} s, "
            "and may reach to 4 times that, so that they hardly overlap: take command_hz="
            f"{2 / horizon:g} or another horizon.",
            code="trajectory-horizon-invalid",
        )
    for limits in (robot.entry_limits[place] for place in places):
        largest = limits.acceleration * (horizon - period)
        if math.isfinite(limits.acceleration) and limits.speed > largest * (1 + 1e-9):
            raise UserError(
                f"actions.{limits.name}.limits.speed={limits.speed:g}: at the end of a trajectory the joint brakes "
                f"from it within {horizon - period:g} s, and acceleration={limits.acceleration:g} allows "
                f"{largest:.3g}: lower speed, or raise {where}.horizon_s.",
                code="trajectory-speed-too-high",
            )


def _check_operator(robot: RobotDescription) -> None:
    operator = robot.operator
    used: list[str] = []
    for key in ("estop", "deadman", "teleop", "label", "reset", "outcome", "instruction"):
        if topic := getattr(operator, key):
            used.append(topic)
            with name_key(f"operator.{key}"):
                check_topic(topic)
    _check_positive(operator.deadman_timeout_s, "operator.deadman_timeout_s")
    if operator.teleop_type not in TELEOP_TYPES:
        raise UserError(
            f"operator.teleop_type={operator.teleop_type} is not one of {', '.join(TELEOP_TYPES)}.",
            code="value-unknown",
        )
    check_device(operator.device, robot.entry_limits, operator.teleop_type, "operator.device")
    commanded = [topic.name for topic in robot.command_topics.values()]
    _check_unique("command, commands", commanded)
    _check_unique("operator", [*used, *commanded, *(topic.name for topic in robot.topics.values())])


def _check_names(where: str, topic: str, type_name: str, qos: str, key: str) -> None:
    """Check the full name of a topic, which the file has under `key`, its type and its profile."""
    for name, check, value in ((key, check_topic, topic), ("type", check_type, type_name), ("qos", find_profile, qos)):
        with name_key(f"{where}.{name}"):
            check(value)


def _check_positive(value: float, where: str) -> None:
    if not 0 < value < math.inf:
        raise UserError(f"{where}={value:g} must be above 0.", code="value-out-of-range")


def _check_range(value: float, where: str, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        raise UserError(f"{where}={value:g} must be {least:g} to {most:g} {unit}.", code="value-out-of-range")


def _check_known(name: str, known: Collection[str], where: str, what: str) -> None:
    if name not in known:
        raise UserError(f"{where}: {name!r} is not {what}.{suggest_name(name, list(known))}", code="name-unknown")


def _check_unit(unit: str, where: str) -> None:
    if unit not in UNITS:
        raise UserError(
            f"{where}={unit!r} is not SI: use one of {', '.join(UNITS)}, and a factor in `reads`, such as "
            "0.001 * gripper.width for millimetres.",
            code="unit-unknown",
        )


def _check_unique(where: str, topics: Iterable[str]) -> None:
    seen: set[str] = set()
    for topic in topics:
        if topic in seen:
            raise UserError(
                f"{where}: the topic {topic} is used twice; each topic has one use.", code="robot-topic-used-twice"
            )
        seen.add(topic)
