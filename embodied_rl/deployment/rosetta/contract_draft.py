"""The keys of a robot's file while they are read from a contract, source by source."""

import re
from collections.abc import Mapping
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.robots.terms import split_field
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
"""What a contract does not say, and a person has to."""
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
"""Units of the fields that have one; a joint may turn or slide."""


class Draft:
    """A robot's file that is being made.

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
        """Add the camera of an observation. Raises UserError: it says what is not understood here."""
        said = _read_source(source, where)
        if len(said.apply) != 1:
            raise UserError(f"{where}.apply: a camera has one step, resize: [height, width].")
        step = freeze_config(ContractImageStep, _as_keys(said.apply[0], where), f"{where}.apply")
        topic = self._add_topic(said, name, where)
        height, width = step.resize
        self._cameras[name] = {"topic": topic, "height": height, "width": width, "resize": "nearest", "fit": "stretch"}

    def add_state(self, sources: Any, where: str) -> None:
        """Add the entries of the state, of one source or of several. Raises UserError as `add_camera`."""
        for source in sources if isinstance(sources, list) else [sources]:
            said = _read_source(source, where)
            if said.apply:
                raise UserError(f"{where}.apply: states are in SI here, without steps: train with SI, and take it out.")
            topic = self._add_topic(said, said.channel.topic, where)
            for selected in _read_select(said, where):
                if selected in self._state:
                    raise UserError(f"{where}.select: {selected} stands there twice.")
                field = _read_selector(said.channel.type, selected, where)
                self._state[selected] = {"unit": _find_unit(selected), "reads": f"{topic}.{field}"}

    def set_action(self, source: Any, where: str) -> None:
        """Set the command and its actions. Raises UserError as `add_camera`."""
        if isinstance(source, list):
            raise UserError(f"{where}: a command over several topics is not sent: one controller has to take it.")
        said = _read_source(source, where)
        channel = said.channel
        kind = _KINDS.get(channel.type)
        if kind is None:
            raise UserError(f"{where}.channel.type: commands are {', '.join(_KINDS)}, not {channel.type}.")
        if said.align.strategy != "hold":
            raise UserError(f"{where}.align.strategy: a command holds until the next one: hold.")
        low, high = _read_clamp(said, where)
        for selected in _read_select(said, where):
            self._actions[selected] = self._make_action(kind, selected, low, high, where)
        _check_safety(kind, channel.safety, where)
        self._command = {"topic": channel.topic, "kind": kind, "type": channel.type, "qos": "command"}

    def set_instruction(self, tasks: Mapping[str, ContractTask]) -> None:
        """Set the topic of the instruction. Raises UserError: it is not latched, or there are others."""
        if not tasks:
            return
        if list(tasks) != ["task"] or tasks["task"].channel.type != "std_msgs/msg/String":
            raise UserError("tasks: one task, of std_msgs/msg/String, is read.")
        if tasks["task"].channel.qos.durability != "transient_local":
            raise UserError(
                "tasks.task.channel.qos.durability: an instruction is latched here, transient_local: take tasks out, "
                "and name the topic in operator.instruction if its publisher does so."
            )
        self._operator["instruction"] = tasks["task"].channel.topic

    def write(self) -> str:
        """Return the file's text."""
        return write_yaml(self._make_keys())

    def list_missing(self) -> list[str]:
        """Return the dotted keys that stand as ? in the file."""
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
                raise UserError(f"{where}.select: {selected}: a trajectory is commanded by positions here.")
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

    def _add_topic(self, said: ContractSource, called: str, where: str) -> str:
        """Add a topic under a short name, and return that."""
        channel, align = said.channel, said.align
        timeline = "header" if channel.type in STAMPED else "receive"
        if align.timeline != timeline:
            raise UserError(f"{where}.align.timeline={align.timeline}: the time of {channel.type} is {timeline} here.")
        if align.strategy == "asof" and not align.tolerance_ms:
            raise UserError(f"{where}.align.tolerance_ms: asof needs a time above 0.")
        ages = {"asof": (align.tolerance_ms or 0) / 1e3, "drop": 1 / self._fps, "hold": UNKNOWN}
        name = re.sub(r"\W", "_", called.strip("/"))
        if name in self._topics:
            raise UserError(f"{where}.channel.topic: {channel.topic} is read twice: put its entries into one source.")
        self._topics[name] = {
            "name": channel.topic,
            "type": channel.type,
            "qos": _find_profile(channel.qos, channel.type, where),
            "rate_hz": UNKNOWN,
            "max_age_s": ages[align.strategy],
        }
        return name


def _read_source(source: Any, where: str) -> ContractSource:
    """Return a source whose keys are all understood."""
    said = freeze_config(ContractSource, _as_keys(source, where), where)
    if said.channel.decoder or said.channel.encoder:
        raise UserError(f"{where}.channel: decoder and encoder name code, which no file may: publish a known type.")
    if said.kind != "continuous":
        raise UserError(f"{where}.kind={said.kind}: entries are plain numbers here: continuous.")
    return said


def _as_keys(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{where} holds no keys.")
    return value


def _read_select(said: ContractSource, where: str) -> tuple[str, ...]:
    if not said.select:
        raise UserError(f"{where}.select is missing: it names the entries.")
    return said.select


def _read_selector(type_name: str, selected: str, where: str) -> str:
    if type_name == JOINT_STATE:
        group, dot, joint = selected.partition(".")
        field = f"{group}[{joint}]" if dot else f"position[{selected}]"
    elif type_name in DOTTED:
        field = selected
    else:
        raise UserError(f"{where}.channel.type={type_name}: states of {JOINT_STATE}, {', '.join(DOTTED)} are read.")
    split_field(field)
    return field


def _read_clamp(said: ContractSource, where: str) -> tuple[Any, Any]:
    if not said.apply:
        return UNKNOWN, UNKNOWN
    first, *more = said.apply
    if more or not isinstance(first, Mapping):
        raise UserError(f"{where}.apply: commands are in SI here; one clamp alone is understood.")
    step = freeze_config(ContractActionStep, _as_keys(first, where), f"{where}.apply")
    return step.clamp.min, step.clamp.max


def _check_safety(kind: str, safety: str, where: str) -> None:
    if (kind, safety) in (("trajectory", "zeros"), ("twist", "hold")):
        never = "never a move to zero" if safety == "zeros" else "never the last speed again"
        raise UserError(f"{where}.channel.safety={safety}: a stop is a ramp to rest here, {never}: take it out.")


def _find_profile(qos: ContractQos, type_name: str, where: str) -> str:
    if qos.history != "keep_last" or qos.liveliness != "automatic":
        raise UserError(f"{where}.channel.qos: history: keep_last and liveliness: automatic alone are understood.")
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
