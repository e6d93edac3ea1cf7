"""Requests to a simulated robot as JSON in a text message: an episode, or faults.

Anyone on the network may send them, so every value is validated.
"""

import json
from typing import Any, cast

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, SimulatorSpec
from embodied_rl.schema import FaultsNode

LONGEST = 4096
"""Maximum characters of a request."""
_LARGEST = 2**63 - 1
_KEYS = ("index", "task", "seed", "initial_state", "split")


def read_episode(text: str, spec: SimulatorSpec) -> Episode:
    """Parse a request for an episode: {"index", "task", "seed", "initial_state", "split"}, the last two optional.

    Raises:
        UserError: the request is invalid.
    """
    fields = _read_object(text)
    for key in fields:
        if key not in _KEYS:
            raise UserError(f"unknown key {key[:40]!r}.{suggest_name(key[:40], _KEYS)}", code="key-unknown")
    index, task, seed = (_read_number(fields, key) for key in ("index", "task", "seed"))
    state = None if fields.get("initial_state") is None else _read_number(fields, "initial_state")
    split = fields.get("split", "train")
    if split not in ("train", *spec.splits):
        raise UserError(
            f"split={str(split)[:40]!r} is none of {', '.join(('train', *spec.splits))}", code="split-unknown"
        )
    if task >= len(spec.tasks):
        raise UserError(f"task={task}: there are tasks 0 … {len(spec.tasks) - 1}", code="task-unknown")
    return Episode(index, task, seed, state, split=str(split))


def read_faults(text: str) -> FaultsNode:
    """Parse a request for faults; {} ends all faults; raise `UserError` if the request is invalid."""
    return freeze_config(FaultsNode, _read_object(text), "faults")


def make_printable(text: str, longest: int = 300) -> str:
    """Return an untrusted text for a terminal: control characters and unpaired surrogates are escaped."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:longest])
    return shown + ("…" if len(text) > longest else "")


def _read_object(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise UserError(f"it has {len(text)} characters; the limit is {LONGEST}", code="request-invalid")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is not JSON: {str(error)[:100]}", code="request-invalid") from None
    if not isinstance(fields, dict):
        raise UserError('it is not a JSON object, such as {"index": 0, "task": 0, "seed": 0}', code="request-invalid")
    return cast("dict[str, Any]", fields)


def _read_number(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UserError(f"{key} must be an integer of at least 0, not {str(value)[:40]}", code="request-invalid")
    return value
