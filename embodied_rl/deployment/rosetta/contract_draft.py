"""A robot file that is made from the sources of a contract."""

import re
from collections.abc import Mapping
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.robots.fields import split_field
from embodied_rl.deployment.rosetta.contract_keys import (
    ContractActionStep,
    ContractImageStep,
    ContractQos,
    ContractSource,
    ContractTask,
)
from embodied_rl.deployment.rosetta.contract_writing import DOTTED, JOINT_STATE, STAMPED, STAMPED_TWIST, write_yaml
from embodied_rl.interfaces.errors import UserError

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


class Draft:
    """A robot file in construction.

    Args:
        name: of the robot. fps: of the contract.
    """

    def __init__(self, name: str, fps: int) -> None:
        self._name, self._fps = name, fps
        self._topics: dict[str, dict[str, Any]] = {}
        self._cameras: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._actions: dict[str, Any] = {}
        self._command: dict[str, Any] = {}
        self._operator: dict[str, Any] = {}

    def add_camera(self, name: str, source: Any, where: str) -> None:
        """Add a camera; raise `UserError` if the source is invalid or not supported."""
        parsed = _read_source(source, where)
        if len(parsed.apply) != 1:
            raise _unsupported(f"{where}.apply: a camera must have one step, resize: [height, width].")
        step = freeze_config(ContractImageStep, _as_keys(parsed.apply[0], where), f"{where}.apply")
        topic = self._add_topic(parsed, name, where)
        height, width = step.resize
        self._cameras[name] = {"topic": topic, "height": height, "width": width, "resize": "nearest", "fit": "stretch"}

    def add_state(self, sources: Any, where: str) -> None:
        """Add the state entries of one or several sources; raise `UserError` as `add_camera`."""
        for source in sources if isinstance(sources, list) else [sources]:
            parsed = _read_source(source, where)
            if parsed.apply:
                raise _unsupported(f"{where}.apply: states are in SI units: train with SI units, and remove it.")
            topic = self._add_topic(parsed, parsed.channel.topic, where)
            for selected in _read_select(parsed, where):
                if selected in self._state:
                    raise _invalid(f"{where}.select: {selected} is listed twice.")
                field = _read_selector(parsed.channel.type, selected, where)
                self._state[selected] = {"unit": _find_unit(selected), "reads": f"{topic}.{field}"}

    def set_action(self, source: Any, where: str) -> None:
        """Set the command and its actions; raise `UserError` as `add_camera`."""
        if isinstance(source, list):
            raise _unsupported(f"{where}: a command on several topics is not supported: use one controller.")
        parsed = _read_source(source, where)
        channel = parsed.channel
        kind = _KINDS.get(channel.type)
        if kind is None:
            raise _unsupported(f"{where}.channel.type={channel.type} is none of {', '.join(_KINDS)}.")
        if parsed.align.strategy != "hold":
            raise _unsupported(f"{where}.align.strategy: commands are held until the next one: set hold.")
        low, high = _read_clamp(parsed, where)
        for selected in _read_select(parsed, where):
            self._actions[selected] = self._make_action(kind, selected, low, high, where)
        if (kind, channel.safety) in (("trajectory", "zeros"), ("twist", "hold")):
            raise _unsupported(f"{where}.channel.safety={channel.safety}: the robot brakes to rest: remove it.")
        self._command = {"topic": channel.topic, "kind": kind, "type": channel.type, "qos": "command"}

    def set_instruction(self, tasks: Mapping[str, ContractTask]) -> None:
        """Set the topic of the instruction; raise `UserError` if it is not latched, or there are others."""
        if not tasks:
            return
        if list(tasks) != ["task"] or tasks["task"].channel.type != "std_msgs/msg/String":
            raise _unsupported("tasks: one task of std_msgs/msg/String is supported.")
        if tasks["task"].channel.qos.durability != "transient_local":
            raise _unsupported(
                "tasks.task.channel.qos.durability: instructions must be latched, transient_local: remove tasks, and "
                "set operator.instruction to the topic if its publisher is latched."
            )
        self._operator["instruction"] = tasks["task"].channel.topic

    def write(self) -> str:
        """Return the text of the robot file."""
        return write_yaml(self._make_keys())

    def list_missing(self) -> list[str]:
        """Return the dotted keys with ? as the value."""
        return _find_unknown(self._make_keys(), "")

    def _make_keys(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "verified": "never run on hardware",
            "control_hz": self._fps,
            "command_hz": UNKNOWN,
            "topics": self._topics,
            "cameras": self._cameras,
            "state": self._state,
            "actions": self._actions,
            "command": self._command,
            **({"operator": self._operator} if self._operator else {}),
        }

    def _make_action(self, kind: str, selected: str, low: Any, high: Any, where: str) -> dict[str, Any]:
        field, _, target = selected.rpartition(".") if kind == "twist" else selected.partition(".")
        if kind == "trajectory":
            if target and field not in ("position", "positions"):
                raise _unsupported(f"{where}.select: {selected}: a trajectory must consist of positions.")
            target = target or selected
        else:
            target = selected.removeprefix("twist.")
        return {
            "unit": {"m/s": "m", "rad/s": "rad"}.get(_find_unit(selected), UNKNOWN) if kind == "twist" else UNKNOWN,
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
        self._topics[name] = {
            "name": channel.topic,
            "type": channel.type,
            "qos": _find_profile(channel.qos, channel.type, where),
            "rate_hz": UNKNOWN,
            "max_age_s": ages[align.strategy],
        }
        return name


def _unsupported(message: str) -> UserError:
    return UserError(message, code="contract-unsupported")


def _invalid(message: str) -> UserError:
    return UserError(message, code="contract-invalid")


def _read_source(source: Any, where: str) -> ContractSource:
    """Parse a source."""
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


def _read_selector(type_name: str, selected: str, where: str) -> str:
    if type_name == JOINT_STATE:
        group, dot, joint = selected.partition(".")
        field = f"{group}[{joint}]" if dot else f"position[{selected}]"
    elif type_name in DOTTED:
        field = selected
    else:
        raise _unsupported(f"{where}.channel.type={type_name} is none of {JOINT_STATE}, {', '.join(DOTTED)}.")
    split_field(field)
    return field


def _read_clamp(parsed: ContractSource, where: str) -> tuple[Any, Any]:
    if not parsed.apply:
        return UNKNOWN, UNKNOWN
    first, *more = parsed.apply
    if more or not isinstance(first, Mapping):
        raise _unsupported(f"{where}.apply: commands are in SI units; only one clamp is supported.")
    step = freeze_config(ContractActionStep, _as_keys(first, where), f"{where}.apply")
    return step.clamp.min, step.clamp.max


def _find_profile(qos: ContractQos, type_name: str, where: str) -> str:
    if qos.history != "keep_last" or qos.liveliness != "automatic":
        raise _unsupported(f"{where}.channel.qos: only history: keep_last and liveliness: automatic are supported.")
    if qos.durability == "transient_local":
        return "latched"
    if qos.reliability == "reliable":
        return "command"
    return "sensor_data" if "Image" in type_name else "state"


def _find_unit(selected: str) -> str:
    return next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, selected)), UNKNOWN)


def _find_unknown(keys: Any, where: str) -> list[str]:
    if isinstance(keys, Mapping):
        below = ((key, value, f"{where}.{key}" if where else str(key)) for key, value in keys.items())
        return [found for _, value, place in below for found in _find_unknown(value, place)]
    return [where] if keys == UNKNOWN else []
