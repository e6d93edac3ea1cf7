"""What a checkpoint says of a run's progress, checked: its files may be whole and still be of another run."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors.learning.checkpoint import STATE, CheckpointError
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import TransportError, UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runs.untrusted_files import shorten
from embodied_rl.runtime.processes.handle import RunFailed
from embodied_rl.training.metrics import RunTotals

NOT_OF_A_STATE = (RunFailed, Unavailable, TransportError, torch.OutOfMemoryError)
"""Errors of a process, a simulator, a robot or a device, whatever the checkpoint holds."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        version: of the weights. ranks: how many it ran on. totals: see there.
    """

    version: int
    ranks: int
    totals: RunTotals


def read_progress(folder: Path, iteration: int, metadata: Mapping[str, Any]) -> Progress:
    """Return what the metadata of a checkpoint says.

    Raises:
        CheckpointError: an entry is missing, or cannot be.
    """
    try:
        version, ranks, said = metadata["version"], metadata["ranks"], metadata["totals"]
        if type(version) is not int or not 0 <= version < 2**63 or type(ranks) is not int or ranks < 1:
            raise ValueError("version or ranks is no count")
        if not isinstance(said, dict):
            raise TypeError("totals is no group of keys")
        totals = freeze_config(RunTotals, said, "totals")
        _check_totals(totals, iteration)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE} is damaged: {type(error).__name__}: {shorten(error)}.") from error
    return Progress(version, ranks, totals)


def _check_totals(totals: RunTotals, iteration: int) -> None:
    for item in fields(totals):
        value, least = getattr(totals, item.name), -1 if item.name in ("best", "best_iteration") else 0
        if not math.isfinite(value) or not least <= value < 2**63:
            raise ValueError(f"totals.{item.name} cannot be {value}")
    if totals.best > 1 or totals.best_iteration > iteration:
        raise ValueError("the best success is above 1, or of a later iteration")


@contextmanager
def explain_other_state(folder: Path) -> Iterator[None]:
    """Name a checkpoint whose state does not fit what restores it in the `with` block.

    Raises:
        CheckpointError: the state does not fit.
    """
    try:
        yield
    except NOT_OF_A_STATE:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UserError) and str(folder) in str(error):
            raise
        remedy = "Restore it from a copy; or remove it, and resume continues from the one before."
        reason = f"{type(error).__name__}: {shorten(error)}"
        raise CheckpointError(f"{folder} holds no state of this run: {reason}. {remedy}") from error
