"""What others ask of a simulated robot, as JSON in a text message: an episode, or faults.

Whoever is on the network may send such a text, so nothing in it is believed.
"""

import json
from typing import Any, cast

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, SimulatorSpec
from embodied_rl.schema import FaultsNode

LONGEST = 4096
"""Characters of a request."""
_LARGEST = 2**63 - 1
_KEYS = ("index", "task", "seed", "initial_state", "split")


def read_episode(text: str, spec: SimulatorSpec) -> Episode:
    """Return the episode that a text asks for.

    Args:
        text: {"index", "task", "seed", "initial_state", "split"}; the last two may lack.
        spec: of the simulator.

    Raises:
        UserError: it is no such request; the message says what is wrong.
    """
    told = _read_object(text)
    for key in told:
        if key not in _KEYS:
            raise UserError(f"unknown key {key[:40]!r}.{suggest_name(key[:40], _KEYS)}")
    index, task, seed = (_read_number(told, key) for key in ("index", "task", "seed"))
    state = None if told.get("initial_state") is None else _read_number(told, "initial_state")
    split = told.get("split", "train")
    if split not in ("train", *spec.splits):
        raise UserError(f"split={str(split)[:40]!r} is none of {', '.join(('train', *spec.splits))}")
    if task >= len(spec.tasks):
        raise UserError(f"task={task}: there are tasks 0 … {len(spec.tasks) - 1}")
    return Episode(index, task, seed, state, split=str(split))


def read_faults(text: str) -> FaultsNode:
    """Return the faults that a text asks for; what it does not name is sound, so {} heals everything.

    Raises:
        UserError: it is no such request; the message says what is wrong.
    """
    return freeze_config(FaultsNode, _read_object(text), "faults")


def make_printable(text: str, longest: int = 300) -> str:
    """Return a text of strangers as a terminal may show it: control characters and half characters are escaped."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:longest])
    return shown + ("…" if len(text) > longest else "")


def _read_object(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise UserError(f"it has {len(text)} characters; at most {LONGEST} are read")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is no JSON: {str(error)[:100]}") from None
    if not isinstance(told, dict):
        raise UserError('it is no JSON object, such as {"index": 0, "task": 0, "seed": 0}')
    return cast("dict[str, Any]", told)


def _read_number(told: dict[str, Any], key: str) -> int:
    value = told.get(key)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UserError(f"{key} must be a whole number from 0 on, not {str(value)[:40]}")
    return value
