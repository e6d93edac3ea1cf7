"""Checks on the state of a checkpoint: an undamaged checkpoint may still belong to another run."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors.learning.checkpoint import STATE, CheckpointError
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import RunFailed, TransportError, UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.rollout.replay.format import ReplayError
from embodied_rl.system.untrusted_files import shorten
from embodied_rl.training.metrics import RunTotals

UNRELATED_ERRORS = (RunFailed, Unavailable, TransportError, torch.OutOfMemoryError)
"""Errors of a process, a simulator, a robot or a device: they do not depend on the checkpoint."""


def read_progress(folder: Path, iteration: int, metadata: Mapping[str, Any]) -> tuple[int, int, RunTotals]:
    """Return the version of the weights, the number of ranks and the totals in the metadata of a checkpoint.

    Raises:
        CheckpointError: an entry is missing, or has an impossible value.
    """
    try:
        version, ranks, entries = metadata["version"], metadata["ranks"], metadata["totals"]
        if type(version) is not int or not 0 <= version < 2**63 or type(ranks) is not int or ranks < 1:
            raise ValueError("version or ranks is not a count")
        if not isinstance(entries, dict):
            raise TypeError("totals is not a group of keys")
        totals = freeze_config(RunTotals, entries, "totals")
        for item in fields(totals):
            value, least = getattr(totals, item.name), -1 if item.name in ("best", "best_iteration") else 0
            if not math.isfinite(value) or not least <= value < 2**63:
                raise ValueError(f"totals.{item.name} cannot be {value}")
        if totals.best > 1 or totals.best_iteration > iteration:
            raise ValueError("the best success is above 1, or of a later iteration")
    except (KeyError, TypeError, ValueError) as error:
        message = f"{folder / STATE} is damaged: {type(error).__name__}: {shorten(error)}."
        raise CheckpointError(message, code="checkpoint-damaged") from error
    return version, ranks, totals


@contextmanager
def explain_state_mismatch(folder: Path) -> Iterator[None]:
    """Convert errors of the `with` block, which restores a checkpoint's state, to a `CheckpointError` with its folder.

    Raises:
        CheckpointError: the state does not fit.
    """
    try:
        yield
    except UNRELATED_ERRORS:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ReplayError) or (isinstance(error, UserError) and str(folder) in str(error)):
            raise
        remedy = "Restore it from a copy; or remove it, and resume continues from the one before."
        reason = f"{type(error).__name__}: {shorten(error)}"
        message = f"{folder} does not hold a state of this run: {reason}. {remedy}"
        raise CheckpointError(message, code="checkpoint-state-mismatch") from error
