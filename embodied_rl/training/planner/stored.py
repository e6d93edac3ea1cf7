"""Read plans from files: expand `plan=<file>.json` on the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import PLAN
from embodied_rl.runs.untrusted_files import read_json, shorten
from embodied_rl.training.planner.allocation import Allocation

_TELLING = ("cores", "cpu")
"""What makes two machines different, as far as plans go."""


def expand_stored_plan(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides with `plan=<file>.json` replaced by the allocation in the file.

    Raises:
        UserError: the file is missing, holds no plan, or holds a plan for another machine.
    """
    return tuple(word for override in overrides for word in _expanded(override))


def _expanded(override: str) -> list[str]:
    key, _, value = override.partition("=")
    if key != "plan" or not value.endswith(".json"):
        return [override]
    path = Path(value)
    if not path.is_file():
        raise UserError(f"plan={path}: there is no such file; `embodied-rl plan` and every planned run write a {PLAN}.")
    try:
        content = read_json(path)
    except UserError as error:
        raise UserError(f"plan={path} is not a plan ({error})") from None
    try:
        words = format_overrides(_read_allocation(content["chosen"]["allocation"]))
        check_machine(content, words, path)
    except UserError as error:
        raise error if str(path) in str(error) else UserError(f"plan={path} is not a plan ({error}).") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"plan={path} is not a plan ({type(error).__name__}: {shorten(error)}).") from None
    return words


def _read_allocation(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return an allocation of a file, of known words and whole numbers alone: it becomes a part of the command line."""
    return asdict(freeze_config(Allocation, said, "chosen.allocation"))


def format_overrides(allocation: Mapping[str, Any]) -> list[str]:
    """Return the command-line overrides that select an allocation of cores."""
    words = [f"plan={allocation['mode']}", f"plan.ranks={allocation['ranks']}", f"plan.slices={allocation['slices']}"]
    if allocation["workers"]:
        words += [f"plan.workers={allocation['workers']}", f"plan.order={allocation['order']}"]
    if ahead := allocation.get("rollout_workers"):  # plans of earlier versions lack this key
        words.append(f"plan.rollout_workers={ahead}")
    return words


def describe_move(provenance_file: Path) -> str | None:
    """Return a note for the user if a run continues on another machine than it was planned for, else None."""
    try:
        theirs = dict(read_json(provenance_file)["hardware"])
    except (UserError, KeyError, TypeError, ValueError):
        return None  # a run may continue although its provenance file is missing or damaged
    if not (different := list_differences(theirs)):
        return None
    return f"This run was planned for another machine ({different}). It keeps its plan, so that it continues exactly."


def list_differences(theirs: Mapping[str, Any]) -> str:
    """Describe how another machine differs from this one; empty if its plans are valid here."""
    here = provenance.describe_hardware()
    names = [name for name in _TELLING if name in theirs and theirs[name] != here[name]]
    return ", ".join(f"{name}: {theirs[name]}, here {here[name]}" for name in names)


def check_machine(content: Mapping[str, Any], words: Sequence[str], path: Path) -> None:
    """Check that a plan was made for a machine like this one.

    Raises:
        UserError: the machines differ; the message names the difference and the remedy.
    """
    remedy = "plan=auto plans for this machine"
    if content["resources"]["devices"]:
        devices = content["resources"]["devices"]
        raise UserError(f"plan={path} is for {devices} accelerators, which a run here does not spread over; {remedy}.")
    different = list_differences({**content["about"], "cores": content["resources"]["cores"]})
    if different:
        raise UserError(
            f"plan={path} was made for another machine ({different}). {remedy[0].upper()}{remedy[1:]}; "
            f"to use it all the same: {' '.join(words)}"
        )
