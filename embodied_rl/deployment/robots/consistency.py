"""Checks of a robot's description. Each error is one line with the key and the remedy."""

import math
from collections.abc import Iterable

from embodied_rl.deployment.execution.operator_device import check_device
from embodied_rl.deployment.robots.command_checks import check_command
from embodied_rl.deployment.robots.description import CameraEntry, RobotDescription, Topic
from embodied_rl.deployment.robots.fields import check_field
from embodied_rl.deployment.robots.keys import check_known, check_positive, name_key
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import check_topic, check_type
from embodied_rl.deployment.transport.qos import find_profile
from embodied_rl.interfaces.errors import UserError

UNITS = ("m", "rad", "s", "kg", "N", "Nm", "m/s", "rad/s", "m/s²", "rad/s²", "A", "V", "K", "1")
"""Units of states and actions: SI, and 1 for dimensionless ones."""
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
INFO = "sensor_msgs/msg/CameraInfo"
TELEOP_TYPES = ("sensor_msgs/msg/Joy", "geometry_msgs/msg/Twist")
FARTHEST = {"rad": (20 * math.pi, "degrees"), "m": (100.0, "millimetres")}
"""Largest plausible limit of a position or displacement, ten turns or 100 m, and the unit that is likely meant by a
larger one. In a wrong unit the small motions of `MotionProbe` would be large."""
LEAST_HZ, LARGEST_HZ = 1e-3, 1e5
"""Range of all rates."""
LARGEST_PICTURE = 8192
"""Largest width and height in pixels of a policy's picture."""


def check_consistency(robot: RobotDescription) -> None:
    """Check everything that does not need message types; raises UserError with the key."""
    _check_rates(robot)
    for name, topic in robot.topics.items():
        _check_topic(topic, f"topics.{name}")
    _check_unique("topics", (topic.name for topic in robot.topics.values()))
    for camera in robot.cameras:
        _check_camera(camera, robot.topics)
    _check_state(robot)
    _check_actions(robot)
    check_command(robot)
    _check_operator(robot)


def check_messages(robot: RobotDescription, messages: Messages) -> None:
    """Check message types and fields against a ROS 2 release.

    Raises:
        UserError: unknown type or field.
    """
    for name, topic in robot.topics.items():
        with name_key(f"topics.{name}.type"):
            messages.find_class(topic.type_name)
    for entry in robot.state:
        for term in entry.terms:
            with name_key(f"state.{entry.name}.reads"):
                check_field(messages, robot.topics[term.topic].type_name, term.field)


def _check_rates(robot: RobotDescription) -> None:
    if not robot.name or not robot.verified:
        raise UserError(
            "name and verified must be non-empty: the robot, and the hardware or simulator it was tested on.",
            code="key-missing",
        )
    for key in ("control_hz", "command_hz"):
        _check_rate(getattr(robot, key), key)
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


def _check_rate(value: float, where: str) -> None:
    check_positive(value, where)
    if not LEAST_HZ <= value <= LARGEST_HZ:
        raise UserError(
            f"{where}={value:g} must be {LEAST_HZ:g} to {LARGEST_HZ:g} times per second.", code="value-out-of-range"
        )


def _check_topic(topic: Topic, where: str) -> None:
    with name_key(f"{where}.name"):
        check_topic(topic.name)
    with name_key(f"{where}.type"):
        check_type(topic.type_name)
    with name_key(f"{where}.qos"):
        find_profile(topic.qos)
    _check_rate(topic.rate_hz, f"{where}.rate_hz")
    check_positive(topic.max_age_s, f"{where}.max_age_s")
    if topic.max_age_s * topic.rate_hz < 1:
        raise UserError(
            f"{where}.max_age_s={topic.max_age_s:g} ends before the next message, at rate_hz={topic.rate_hz:g}: "
            f"take {2 / topic.rate_hz:.3g} or more.",
            code="topic-age-too-short",
        )


def _check_camera(camera: CameraEntry, topics: dict[str, Topic]) -> None:
    where = f"cameras.{camera.name}"
    for key, name, types in (("topic", camera.topic, IMAGES), ("info", camera.info, (INFO,))):
        if key == "info" and not name:
            continue
        check_known(name, topics, f"{where}.{key}", "a topic of topics")
        if (found := topics[name].type_name) not in types:
            raise UserError(
                f"{where}.{key}={name} has type {found}: a camera needs {' or '.join(types)}.",
                code="camera-type-unsupported",
            )
    if not (1 <= camera.height <= LARGEST_PICTURE and 1 <= camera.width <= LARGEST_PICTURE):
        raise UserError(
            f"{where}: height={camera.height}, width={camera.width}: 1 to {LARGEST_PICTURE} pixels each.",
            code="value-out-of-range",
        )


def _check_state(robot: RobotDescription) -> None:
    if not robot.state:
        raise UserError(
            "state has no entries: list what the robot measures, see docs/robots.md.", code="robot-state-missing"
        )
    for entry in robot.state:
        check_unit(entry.unit, f"state.{entry.name}.unit")
        if not entry.terms:
            raise UserError(
                f"state.{entry.name}.reads is empty: name a number, such as joints.position[elbow].",
                code="robot-state-missing",
            )
        for term in entry.terms:
            check_known(term.topic, robot.topics, f"state.{entry.name}.reads", "a topic of topics")


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
        check_unit(entry.unit, f"{where}.unit")
        if not -math.inf < entry.action_low < entry.action_high < math.inf:
            raise UserError(
                f"{where}.low={entry.action_low:g} must be below {where}.high={entry.action_high:g}.",
                code="robot-limits-invalid",
            )
        if entry.measured:
            check_known(entry.measured, names, f"{where}.measured", "an entry of state")
            if (other := robot.state[names.index(entry.measured)].unit) != entry.unit:
                raise UserError(
                    f"{where}.unit={entry.unit} is compared with state.{entry.measured}.unit={other}: make them equal.",
                    code="unit-mismatch",
                )
    _check_boxes(robot)
    for entry, error in zip(robot.actions, robot.tracking_error, strict=True):
        if math.isfinite(error) and not entry.measured:
            raise UserError(
                f"actions.{entry.name}.tracking_error: only what is measured can be compared with its command: name "
                "the entry of the state that measures it, or write unlimited.",
                code="tracking-error-not-measured",
            )


def _check_boxes(robot: RobotDescription) -> None:
    """Check low and high limits; those of velocities and displacements can only be enforced if measured."""
    for entry, limits in zip(robot.actions, robot.entry_limits, strict=True):
        where = f"actions.{entry.name}"
        bounded = math.isfinite(limits.low) or math.isfinite(limits.high)
        if entry.kind == "position" and not (math.isfinite(limits.low) and math.isfinite(limits.high)):
            raise UserError(
                f"{where}.limits: a position needs both low and high, as numbers.", code="robot-limits-invalid"
            )
        farthest = max(filter(math.isfinite, (abs(limits.low), abs(limits.high))), default=0.0)
        if entry.kind != "velocity" and entry.unit in FARTHEST and farthest > FARTHEST[entry.unit][0]:
            most, other = FARTHEST[entry.unit]
            raise UserError(
                f"{where}.limits: {farthest:g} {entry.unit} is beyond {most:.3g} {entry.unit}. Are these {other}? Give "
                "all numbers of the action in its unit.",
                code="unit-implausible",
            )
        if entry.kind != "position" and bounded and not entry.measured:
            raise UserError(
                f"{where}.limits: low and high cannot be enforced without a measurement: name the entry "
                f"of the state in {where}.measured, or write low: unlimited and high: unlimited.",
                code="limits-not-measured",
            )


def _check_operator(robot: RobotDescription) -> None:
    operator = robot.operator
    used: list[str] = []
    for key in ("estop", "deadman", "teleop", "label", "reset", "outcome", "instruction"):
        if topic := getattr(operator, key):
            used.append(topic)
            with name_key(f"operator.{key}"):
                check_topic(topic)
    check_positive(operator.deadman_timeout_s, "operator.deadman_timeout_s")
    if operator.teleop_type not in TELEOP_TYPES:
        raise UserError(
            f"operator.teleop_type={operator.teleop_type} is not one of {', '.join(TELEOP_TYPES)}.",
            code="value-unknown",
        )
    check_device(operator.device, robot.entry_limits, operator.teleop_type, "operator.device")
    commanded = [topic.name for topic in robot.command_topics.values()]
    _check_unique("command, commands", commanded)
    _check_unique("operator", [*used, *commanded, *(topic.name for topic in robot.topics.values())])


def check_unit(unit: str, where: str) -> None:
    """Raise UserError unless a unit is one of SI."""
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
                f"{where}: the topic {topic} is used twice; each topic has one use.",
                code="robot-topic-used-twice",
            )
        seen.add(topic)
