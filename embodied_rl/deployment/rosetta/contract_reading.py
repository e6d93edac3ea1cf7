"""Convert a contract of rosetta to a robot file; unsupported keys raise errors.

Contracts lack limits, rates and units. The robot file has `?` in their place, and can be loaded once these are filled
in.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.robots.consistency import check_consistency
from embodied_rl.deployment.robots.fields import split_field
from embodied_rl.deployment.robots.reading import RobotKeys, describe_robot
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.rosetta.contract_keys import (
    ContractActionStep,
    ContractImageStep,
    ContractKeys,
    ContractSource,
)
from embodied_rl.deployment.rosetta.contract_writing import (
    ACTION,
    DOTTED,
    IMAGE,
    JOINT_STATE,
    OURS,
    STAMPED,
    STAMPED_TWIST,
    STATE,
    make_contract,
    write_yaml,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import name_file

UNKNOWN = "?"
"""Value of keys that contracts lack and a person must fill in."""
_KINDS = {
    "std_msgs/msg/Float64MultiArray": "forward",
    "trajectory_msgs/msg/JointTrajectory": "trajectory",
    "geometry_msgs/msg/Twist": "twist",
    STAMPED_TWIST: "twist",
}
_UNITS = (
    (r"(.*\.)?(twist\.)?linear\.\w", "m/s"),
    (r"(.*\.)?(twist\.)?angular\.\w|angular_velocity\.\w", "rad/s"),
    (r"linear_acceleration\.\w", "m/s²"),
    (r"pose\.pose\.position\.\w", "m"),
    (r"(.*\.)?orientation\.\w", "1"),
)
"""Units of fields; the unit of a joint is unknown, because it may be revolute or prismatic."""


_UNSUPPORTED = {
    "teleop": "operators drive the robot through the topics of `operator` in the robot file",
    "rewards": "rewards come from the simulator or from `reward=`",
    "signals": "episodes end by the operator's label, or by the simulator",
    "info": "robot files do not have it",
    "complementary_data": "robot files do not have it",
    "adjunct": "additional topics are given when recording",
}


def read_contract(file: Path) -> tuple[str, list[str]]:
    """Return the text of a robot file, and its dotted keys with ? as the value.

    Raises:
        UserError: the contract is damaged or not supported; the message names file and key.
    """
    contract = read_strict_yaml(file)
    with name_file(file):
        if OURS in contract:  # the robot file, if it agrees with the rest of the contract
            ours = contract.pop(OURS)
            if not isinstance(ours, Mapping):
                raise _invalid(f"{OURS} must have keys: remove it, and fill in the resulting file.")
            robot = describe_robot(freeze_config(RobotKeys, dict(ours), OURS))
            check_consistency(robot)
            if (difference := _find_difference(make_contract(robot), contract, "")) is not None:
                said = f"{difference} disagrees with {OURS}: change both, or remove {OURS}."
                raise UserError(said, code="contract-contradicts-robot")
            return write_yaml(ours), []
        keys = _Draft(contract).keys
    return write_yaml(keys), _find_unknown(keys, "")


def _find_difference(wanted: Any, found: Any, where: str) -> str | None:
    """Return the first key at which two values differ, or None."""
    if not (isinstance(wanted, Mapping) and isinstance(found, Mapping)):
        return None if wanted == found else where
    for key in [*wanted, *(key for key in found if key not in wanted)]:
        below = f"{where}.{key}" if where else str(key)
        if key not in wanted or key not in found:
            return below
        if (deeper := _find_difference(wanted[key], found[key], below)) is not None:
            return deeper
    return None


class _Draft:
    """A robot file in construction: `keys`."""

    def __init__(self, contract: Mapping[str, Any]) -> None:
        for key in contract:
            if key in _UNSUPPORTED:
                raise _unsupported(f"{key}: {_UNSUPPORTED[key]}. Remove it from the contract to convert the rest.")
        given = freeze_config(ContractKeys, {key: value for key, value in contract.items() if not key.startswith("x-")})
        self._topics, self._cameras, self._state, self._actions = (dict[str, Any]() for _ in range(4))
        self._fps = given.fps
        for key, source in given.observations.items():
            if key.startswith(IMAGE):
                self._add_camera(key.removeprefix(IMAGE), source, f"observations.{key}")
            elif key == STATE:
                self._add_state(source, f"observations.{key}")
            else:
                raise _unsupported(f"observations.{key}: only images and one {STATE} are supported.")
        if list(given.actions) != [ACTION]:
            found = ", ".join(given.actions) or "none"
            raise _unsupported(f"actions: one command, {ACTION!r}, is supported, not {found}.")
        self.keys = {
            "name": given.robot_type,
            "verified": "never run on hardware",
            "control_hz": given.fps,
            "command_hz": UNKNOWN,
            "topics": self._topics,
            "cameras": self._cameras,
            "state": self._state,
            "actions": self._actions,
            "command": self._make_command(given.actions[ACTION], f"actions.{ACTION}"),
        }
        if tasks := given.tasks:
            channel = tasks["task"].channel if list(tasks) == ["task"] else None
            if channel is None or channel.type != "std_msgs/msg/String":
                raise _unsupported("tasks: one task of std_msgs/msg/String is supported.")
            if channel.qos.durability != "transient_local":
                raise _unsupported(
                    "tasks.task.channel.qos.durability: instructions must be latched, transient_local: remove tasks, "
                    "and set operator.instruction to the topic if its publisher is latched."
                )
            self.keys["operator"] = {"instruction": channel.topic}

    def _add_camera(self, name: str, source: Any, where: str) -> None:
        parsed = _read_source(source, where)
        if len(parsed.apply) != 1:
            raise _unsupported(f"{where}.apply: a camera must have one step, resize: [height, width].")
        step = freeze_config(ContractImageStep, _as_keys(parsed.apply[0], where), f"{where}.apply")
        topic = self._add_topic(parsed, name, where)
        height, width = step.resize
        self._cameras[name] = {"topic": topic, "height": height, "width": width, "resize": "nearest", "fit": "stretch"}

    def _add_state(self, sources: Any, where: str) -> None:
        """Add the state entries of one or several sources."""
        for source in sources if isinstance(sources, list) else [sources]:
            parsed = _read_source(source, where)
            if parsed.apply:
                raise _unsupported(f"{where}.apply: states are in SI units: train with SI units, and remove it.")
            topic, type_name = self._add_topic(parsed, parsed.channel.topic, where), parsed.channel.type
            for selected in _read_select(parsed, where):
                if selected in self._state:
                    raise _invalid(f"{where}.select: {selected} is listed twice.")
                field = selected
                if type_name == JOINT_STATE:
                    group, dot, joint = selected.partition(".")
                    field = f"{group}[{joint}]" if dot else f"position[{selected}]"
                elif type_name not in DOTTED:
                    known = ", ".join((JOINT_STATE, *DOTTED))
                    raise _unsupported(f"{where}.channel.type={type_name} is none of {known}.")
                split_field(field)
                self._state[selected] = {"unit": _find_unit(selected), "reads": f"{topic}.{field}"}

    def _make_command(self, source: Any, where: str) -> dict[str, Any]:
        """Add the actions; return the command."""
        if isinstance(source, list):
            raise _unsupported(f"{where}: a command on several topics is not supported: use one controller.")
        parsed = _read_source(source, where)
        channel = parsed.channel
        kind = _KINDS.get(channel.type)
        if kind is None:
            raise _unsupported(f"{where}.channel.type={channel.type} is none of {', '.join(_KINDS)}.")
        if parsed.align.strategy != "hold":
            raise _unsupported(f"{where}.align.strategy: commands are held until the next one: set hold.")
        low: Any = UNKNOWN
        high: Any = UNKNOWN
        if parsed.apply:
            first, *more = parsed.apply
            if more or not isinstance(first, Mapping):
                raise _unsupported(f"{where}.apply: commands are in SI units; only one clamp is supported.")
            clamp = freeze_config(ContractActionStep, _as_keys(first, where), f"{where}.apply").clamp
            low, high = clamp.min, clamp.max
        for selected in _read_select(parsed, where):
            self._actions[selected] = self._make_action(kind, selected, low, high, where)
        if (kind, channel.safety) in (("trajectory", "zeros"), ("twist", "hold")):
            raise _unsupported(f"{where}.channel.safety={channel.safety}: the robot brakes to rest: remove it.")
        return {"topic": channel.topic, "kind": kind, "type": channel.type, "qos": "command"}

    def _make_action(self, kind: str, selected: str, low: Any, high: Any, where: str) -> dict[str, Any]:
        target, unit = selected.removeprefix("twist."), UNKNOWN
        if kind == "trajectory":
            field, _, joint = selected.partition(".")
            if joint and field not in ("position", "positions"):
                raise _unsupported(f"{where}.select: {selected}: a trajectory must consist of positions.")
            target = joint or selected
        if kind == "twist":
            unit = {"m/s": "m", "rad/s": "rad"}.get(_find_unit(selected), UNKNOWN)
        return {
            "unit": unit,
            "kind": {"trajectory": "position", "twist": "velocity"}.get(kind, UNKNOWN),
            "low": low,
            "high": high,
            "measured": selected if selected in self._state and kind != "twist" else "",
            "target": target,
            "limits": dict.fromkeys(("low", "high", "speed", "acceleration", "jerk"), UNKNOWN),
        }

    def _add_topic(self, parsed: ContractSource, suggested_name: str, where: str) -> str:
        """Add a topic; return its short name."""
        channel, align = parsed.channel, parsed.align
        timeline = "header" if channel.type in STAMPED else "receive"
        if align.timeline != timeline:
            raise _unsupported(f"{where}.align.timeline={align.timeline}: {channel.type} must have {timeline}.")
        if align.strategy == "asof" and not align.tolerance_ms:
            raise _invalid(f"{where}.align.tolerance_ms: asof needs a time above 0.")
        ages = {"asof": (align.tolerance_ms or 0) / 1e3, "drop": 1 / self._fps, "hold": UNKNOWN}
        name = re.sub(r"\W", "_", suggested_name.strip("/"))
        if name in self._topics:
            raise _invalid(f"{where}.channel.topic: {channel.topic} is read twice: merge its entries into one source.")
        qos = channel.qos
        if qos.history != "keep_last" or qos.liveliness != "automatic":
            raise _unsupported(f"{where}.channel.qos: only history: keep_last and liveliness: automatic are supported.")
        profile = "sensor_data" if "Image" in channel.type else "state"
        if qos.durability == "transient_local" or qos.reliability == "reliable":
            profile = "latched" if qos.durability == "transient_local" else "command"
        self._topics[name] = {
            "name": channel.topic,
            "type": channel.type,
            "qos": profile,
            "rate_hz": UNKNOWN,
            "max_age_s": ages[align.strategy],
        }
        return name


def _unsupported(message: str) -> UserError:
    return UserError(message, code="contract-unsupported")


def _invalid(message: str) -> UserError:
    return UserError(message, code="contract-invalid")


def _read_source(source: Any, where: str) -> ContractSource:
    parsed = freeze_config(ContractSource, _as_keys(source, where), where)
    if parsed.channel.decoder or parsed.channel.encoder:
        raise _unsupported(f"{where}.channel: decoder and encoder name code, which is not run: use a known type.")
    if parsed.kind != "continuous":
        raise _unsupported(f"{where}.kind={parsed.kind}: entries must be continuous.")
    return parsed


def _as_keys(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _invalid(f"{where} must have keys.")
    return value


def _read_select(parsed: ContractSource, where: str) -> tuple[str, ...]:
    if not parsed.select:
        raise _invalid(f"{where}.select is missing: it lists the entries.")
    return parsed.select


def _find_unit(selected: str) -> str:
    return next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, selected)), UNKNOWN)


def _find_unknown(keys: Any, where: str) -> list[str]:
    if isinstance(keys, Mapping):
        below = ((key, value, f"{where}.{key}" if where else str(key)) for key, value in keys.items())
        return [found for _, value, place in below for found in _find_unknown(value, place)]
    return [where] if keys == UNKNOWN else []
