"""Messages of the bridge and of simulated robots in JSON: control steps, episode requests and outcomes.

The bridge publishes each control step on `STEPS`. Shapes: `A` action entries.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from embodied_rl.system.untrusted_files import parse_json

STATUS, STEPS = "/policy_bridge/status", "/policy_bridge/steps"
LABELS = ("success", "failure", "abort")
MAX_TEXT, MAX_NUMBERS, MAX_JSON = 4096, 1024, 2**20
_SOURCES = {source.name.lower(): source for source in Source}


class StepError(UserError):
    """A message of the bridge, or about an episode, is invalid."""


@dataclass(frozen=True)
class ControlStep:
    """One control step.

    Attributes:
        time_ns: time of the start of the step and of its observation, by the clock that stamps the bridge's messages.
        episode: number of the episode, negative outside of one. step: control steps since the episode began.
        mode: `Mode` of the core.
        source: source of the executed action.
        proposed, executed: [A] action over this control step in the policy's units, before and after the safety filter;
            NaN (null in JSON) for undefined entries; None without an action.
        command: [A] last command in this step, in SI units; None if no command was published.
        policy_version, sequence: of the chunk; -1 without one.
        why: why the robot holds, or what the filter changed.
        instruction: task instruction.
        label: label by the operator in this step: success, failure or abort; otherwise empty.
        observed: topic → time at which the observation's message was published, by its publisher's clock (`source_ns`
            of its callback). Without it, recordings are aligned by the times of receiving.
    """

    time_ns: int
    episode: int
    step: int
    mode: str
    source: Source
    proposed: tuple[float, ...] | None = None
    executed: tuple[float, ...] | None = None
    command: tuple[float, ...] | None = None
    policy_version: int = -1
    sequence: int = -1
    why: str = ""
    instruction: str = ""
    label: str = ""
    observed: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the message on `STEPS`; floats are exact."""
        values = vars(self) | {"source": self.source.name.lower(), "observed": dict(self.observed)}
        for name in ("proposed", "executed", "command"):
            if values[name] is not None:
                values[name] = [float(number) if math.isfinite(number) else None for number in values[name]]
        return json.dumps(values, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "ControlStep":
        """Parse a message of `to_json`, which need not be trusted; other keys are ignored.

        Raises:
            StepError: it is not JSON, lacks a key, or has an invalid value.
        """
        values = _parse(text, STEPS)
        source, observed = str(values.get("source")), values.get("observed", {})
        if source not in _SOURCES:
            raise StepError(f"{STEPS}: source={source[:40]!r} is none of {', '.join(_SOURCES)}", code="step-invalid")
        times = isinstance(observed, dict) and all(
            type(time) is int and 0 <= time < 2**63 for time in observed.values()
        )
        if not times or len(observed) > MAX_NUMBERS:
            raise StepError(f"{STEPS}: observed must map topics to nanoseconds", code="step-invalid")
        return ControlStep(
            time_ns=_read_integer(values, "time_ns"),
            episode=_read_integer(values, "episode"),
            step=_read_integer(values, "step"),
            mode=_read_text(values, "mode"),
            source=_SOURCES[source],
            proposed=_read_numbers(values, "proposed"),
            executed=_read_numbers(values, "executed"),
            command=_read_numbers(values, "command"),
            policy_version=_read_integer(values, "policy_version", -1),
            sequence=_read_integer(values, "sequence", -1),
            why=_read_text(values, "why"),
            instruction=_read_text(values, "instruction"),
            label=read_label(label, STEPS) if (label := _read_text(values, "label")) else "",
            observed=observed,
        )


@dataclass(frozen=True)
class RecordedStep:
    """A control step, its index among all messages of the steps' topic, and the time at which it was recorded."""

    control: ControlStep
    position: int
    received_ns: int


@dataclass(frozen=True)
class EpisodeOutcome:
    """Outcome of an episode of a simulated robot.

    Attributes:
        index: number of the episode. success: whether it succeeded.
        failed: whether it failed. If neither is true, the time limit ended it.
    """

    index: int
    success: bool
    failed: bool

    @property
    def label(self) -> str:
        """Return success, failure, or an empty text if the time limit ended the episode."""
        return "success" if self.success else "failure" if self.failed else ""

    @staticmethod
    def from_json(text: str, where: str) -> "EpisodeOutcome":
        """Parse {"index", "success", "failure", "truncated"}; raise `StepError` if it is invalid."""
        values = _parse(text, where)
        success, failure, late = values.get("success"), values.get("failure"), values.get("truncated", False)
        if not isinstance(success, bool) or not isinstance(failure, bool | str | None) or not isinstance(late, bool):
            raise StepError(
                f"{where}: success, truncated and failure must be true or false, or failure a text",
                code="outcome-invalid",
            )
        return EpisodeOutcome(_read_integer(values, "index", where=where), success, bool(failure) and not late)


def read_label(text: str, where: str) -> str:
    """Return an operator's label: success, failure or abort; raise `StepError` for another text."""
    if text not in LABELS:
        raise StepError(f"{where}: the label {text[:40]!r} is none of {', '.join(LABELS)}", code="label-unknown")
    return text


def read_request(text: str, where: str) -> tuple[int, int]:
    """Parse a request for an episode of a simulated robot; return its index and seed, or raise `StepError`."""
    values = _parse(text, where)
    return _read_integer(values, "index", where=where), _read_integer(values, "seed", 0, where=where)


def _parse(text: str, where: str) -> dict[str, Any]:
    if len(text) > MAX_JSON:
        raise StepError(f"{where}: {len(text)} characters, at most {MAX_JSON} are read", code="message-too-large")
    values = parse_json(text, where, StepError)
    if not isinstance(values, dict):
        raise StepError(f"{where}: the text must be a JSON object", code="step-invalid")
    return values


def _read_integer(values: dict[str, Any], name: str, default: int | None = None, where: str = STEPS) -> int:
    value = values.get(name, default)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise StepError(f"{where}: {name}={str(value)[:40]} must be an integer", code="step-invalid")
    return value


def _read_text(values: dict[str, Any], name: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise StepError(f"{STEPS}: {name} must be a text of up to {MAX_TEXT} characters", code="step-invalid")
    return value


def _read_numbers(values: dict[str, Any], name: str) -> tuple[float, ...] | None:
    found = values.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) > MAX_NUMBERS:
        raise StepError(f"{STEPS}: {name} must be a list of up to {MAX_NUMBERS} numbers", code="step-invalid")
    if not all(type(number) in (int, float, type(None)) and abs(number or 0) < 1e300 for number in found):
        raise StepError(f"{STEPS}: {name} must contain only numbers and null", code="step-invalid")
    return tuple(math.nan if number is None else float(number) for number in found)
