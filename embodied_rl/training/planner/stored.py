"""Read plans from files: expand `plan=<file>.json` on the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import PLAN
from embodied_rl.system.untrusted_files import read_json, shorten

_COMPARED = ("cores", "cpu")
"""Hardware entries that must agree for a plan to be valid on another machine."""


def expand_stored_plan(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides with `plan=<file>.json` replaced by the allocation in the file.

    Raises:
        UserError: the file is missing, holds no plan, or holds a plan for another machine.
    """
    words = list[str]()
    for override in overrides:
        key, _, value = override.partition("=")
        words += _read_plan(Path(value)) if key == "plan" and value.endswith(".json") else [override]
    return tuple(words)


def _read_plan(path: Path) -> list[str]:
    from embodied_rl.training.planner.allocation import Allocation  # it imports torch, and `--help` answers at once

    if not path.is_file():
        message = f"plan={path}: there is no such file; `embodied-rl plan` and every planned run write a {PLAN}."
        raise UserError(message, code="plan-missing")
    try:
        content = read_json(path)
        # an `Allocation` holds only known words and whole numbers, as it becomes a part of the command line
        allocation = freeze_config(Allocation, content["chosen"]["allocation"], "chosen.allocation")
        words = format_overrides(asdict(allocation))
        devices, cores = content["resources"]["devices"], content["resources"]["cores"]
        about = {**content["about"]}
    except (UserError, KeyError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, UserError) else f"{type(error).__name__}: {shorten(error)}"
        raise UserError(f"plan={path} is not a plan ({reason}).", code="plan-damaged") from None
    if devices:
        message = f"plan={path} is for {devices} accelerators, which a run here does not use; try plan=auto."
        raise UserError(message, code="plan-other-machine")
    if different := list_differences(about | {"cores": cores}):
        raise UserError(
            f"plan={path} was made for another machine ({different}). Plan=auto plans for this machine; "
            f"to use it all the same: {' '.join(words)}",
            code="plan-other-machine",
        )
    return words


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
    names = [name for name in _COMPARED if name in theirs and theirs[name] != here[name]]
    return ", ".join(f"{name}: {theirs[name]}, here {here[name]}" for name in names)
