"""What the bridge publishes of each control step, so that whoever records a robot knows what was decided and executed.

A step is a text of JSON on `STEPS`; `ControlStep` says what its keys mean. Shapes: `A` action entries.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from embodied_rl.system.untrusted_files import parse_json

STATUS, STEPS = "/policy_bridge/status", "/policy_bridge/steps"
LABELS = ("success", "failure", "abort")
LONGEST_TEXT, MOST_NUMBERS, LONGEST_STEP = 4096, 1024, 2**20
_SOURCES = {source.name.lower(): source for source in Source}


class StepError(UserError):
    """A text on a topic of the bridge, or of the robot's episodes, that does not say what it should."""


@dataclass(frozen=True)
class ControlStep:
    """One control step.

    Attributes:
        time_ns: when it began, which is when its observation was taken, by the clock that stamps the bridge's messages.
        episode: number of the episode; below 0 outside of one. step: control steps since the episode began.
        mode: of the core, a `Mode`.
        source: who decided what was executed.
        proposed, executed: [A] in the policy's units over this control step: what was wanted before the safety filter,
            and what was done; NaN where an entry means nothing, null in JSON. None: nothing was.
        command: [A] as the robot was last told in this step, in SI units; None: nothing was published.
        policy_version, sequence: of the chunk; -1 without one.
        why: in words, why the robot holds or what the filter changed.
        instruction: the words of the task.
        label: how the operator judged the episode in this step: success, failure or abort; empty: not at all.
        observed: topic → when the message that the observation was made of was published, by its publisher's clock
            (`source_ns` of its callback). Without it, recordings are aligned by the times at which messages arrived.
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
        """Return the text of the message on `STEPS`; floats keep every bit."""
        values = asdict(self) | {"source": self.source.name.lower(), "observed": dict(self.observed)}
        for name in ("proposed", "executed", "command"):
            if values[name] is not None:
                values[name] = [float(number) if math.isfinite(number) else None for number in values[name]]
        return json.dumps(values, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "ControlStep":
        """Read a text of `to_json`, whoever wrote it; further keys are left to others.

        Raises:
            StepError: it is no JSON, lacks a key, or holds another value than the key allows.
        """
        values = _parse(text, STEPS)
        return ControlStep(
            time_ns=_read_whole(values, "time_ns"),
            episode=_read_whole(values, "episode"),
            step=_read_whole(values, "step"),
            mode=_read_text(values, "mode"),
            source=_read_source(values),
            proposed=_read_numbers(values, "proposed"),
            executed=_read_numbers(values, "executed"),
            command=_read_numbers(values, "command"),
            policy_version=_read_whole(values, "policy_version", -1),
            sequence=_read_whole(values, "sequence", -1),
            why=_read_text(values, "why"),
            instruction=_read_text(values, "instruction"),
            label=read_label(label, STEPS) if (label := _read_text(values, "label")) else "",
            observed=_read_observed(values),
        )


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode ended, as a simulated robot says it.

    Attributes:
        index: number of the episode. success: it succeeded.
        failed: the task ended in failure; without both, the time limit ended it.
    """

    index: int
    success: bool
    failed: bool

    @property
    def label(self) -> str:
        """Return success, failure, or nothing where the time limit ended the episode."""
        return "success" if self.success else "failure" if self.failed else ""

    @staticmethod
    def from_json(text: str, where: str) -> "EpisodeOutcome":
        """Read {"index", "success", "failure", "truncated"}; raise `StepError` where it is something else."""
        values = _parse(text, where)
        success, failure, late = values.get("success"), values.get("failure"), values.get("truncated", False)
        if not isinstance(success, bool) or not isinstance(failure, bool | str | None) or not isinstance(late, bool):
            raise StepError(
                f"{where}: success, truncated and failure must be true or false, or failure a reason in words"
            )
        return EpisodeOutcome(_read_whole(values, "index", where=where), success, bool(failure) and not late)


def read_label(text: str, where: str) -> str:
    """Return an operator's label: success, failure or abort; raise `StepError` for anything else."""
    if text not in LABELS:
        raise StepError(f"{where}: the label {text[:40]!r} is none of {', '.join(LABELS)}")
    return text


def read_request(text: str, where: str) -> tuple[int, int]:
    """Return index and seed of the episode that somebody asks a simulated robot for; raise `StepError` otherwise."""
    values = _parse(text, where)
    return _read_whole(values, "index", where=where), _read_whole(values, "seed", 0, where=where)


def _parse(text: str, where: str) -> dict[str, Any]:
    if len(text) > LONGEST_STEP:
        raise StepError(f"{where}: a text of {len(text)} characters; {LONGEST_STEP} at most are read")
    values = parse_json(text, where, StepError)
    if not isinstance(values, dict):
        raise StepError(f"{where}: the text holds no keys")
    return values


def _read_whole(values: dict[str, Any], name: str, default: int | None = None, where: str = STEPS) -> int:
    value = values.get(name, default)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise StepError(f"{where}: {name}={str(value)[:40]} is no whole number")
    return value


def _read_text(values: dict[str, Any], name: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise StepError(f"{STEPS}: {name} must be a text of up to {LONGEST_TEXT} characters")
    return value


def _read_source(values: dict[str, Any]) -> Source:
    name = str(values.get("source"))
    if name not in _SOURCES:
        raise StepError(f"{STEPS}: source={name[:40]!r} is none of {', '.join(_SOURCES)}")
    return _SOURCES[name]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _read_numbers(values: dict[str, Any], name: str) -> tuple[float, ...] | None:
    found = values.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) > MOST_NUMBERS:
        raise StepError(f"{STEPS}: {name} must be a list of up to {MOST_NUMBERS} numbers")
    if any(not (number is None or _is_number(number)) for number in found):
        raise StepError(f"{STEPS}: {name} holds something else than numbers and null")
    return tuple(math.nan if number is None else float(number) for number in found)


def _read_observed(values: dict[str, Any]) -> dict[str, int]:
    found = values.get("observed", {})
    whole = isinstance(found, dict) and all(type(time) is int and 0 <= time < 2**63 for time in found.values())
    if not whole or len(found) > MOST_NUMBERS:
        raise StepError(f"{STEPS}: observed must map topics to nanoseconds")
    return found
