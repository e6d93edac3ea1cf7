"""Which steps of a dataset are cloned, by who decided them: its feature `source`, a `Source` for each step."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

NAMES = {source.name.lower(): source for source in Source}
_ABSENT = {Source.HOLD}
"""Who is left out where nobody asked: a robot that holds still while a policy infers shows no task."""


def choose_steps(dataset: "LeRobotDataset", sources: Sequence[str] | None) -> NDArray[np.bool_] | None:
    """Return which steps are cloned, bool [frames].

    Args:
        dataset: what is cloned.
        sources: names of `NAMES`; None takes everybody but who holds still.

    Returns:
        None where all steps are, or where the dataset does not say who decided them and nobody asked.

    Raises:
        UserError: a name is unknown, the dataset does not say who decided its steps, or no step is left.
    """
    wanted = set(NAMES.values()) - _ABSENT if sources is None else _read_names(sources)
    if (found := _read_sources(dataset, asked=sources is not None)) is None:
        return None
    chosen = np.isin(found, sorted(wanted))
    if not chosen.any():
        there = ", ".join(_name(value) for value in sorted(set(found.tolist())))
        raise UserError(
            f"dataset={dataset.folder}: no step is left to clone; its steps were decided by: {there}. "
            f"Choose with sources=[{there.partition(',')[0]}]."
        )
    return None if chosen.all() else chosen


def describe_left_out(dataset: "LeRobotDataset", chosen: NDArray[np.bool_] | None) -> str | None:
    """Return one line: which steps are not cloned; None where all are, or nobody knows."""
    if chosen is None or (found := _read_sources(dataset, asked=False)) is None:
        return None
    counts = Counter(_name(value) for value in found[~chosen].tolist())
    parts = ", ".join(f"{number} by {name}" for name, number in counts.most_common())
    return f"{int((~chosen).sum())} of {len(chosen)} steps are not cloned ({parts}); sources=[…] chooses whose are"


def count_steps_ahead(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many steps from each one on are cloned, int64 [frames]: 0 for one that is not itself.

    A chunk of actions ends there as at the end of its episode: what comes later followed a step that is not shown.
    """
    steps = np.arange(len(chosen))
    following = np.minimum.accumulate(np.where(chosen, len(chosen), steps)[::-1])[::-1]
    return following - steps


def _read_names(sources: Sequence[str]) -> set[Source]:
    for name in sources:
        if name not in NAMES:
            raise UserError(f"sources: '{name}' is none of {', '.join(NAMES)}.{suggest_name(name, tuple(NAMES))}")
    if not sources:
        raise UserError(f"sources=[] leaves nothing to clone; choose among {', '.join(NAMES)}.")
    return {NAMES[name] for name in sources}


def _read_sources(dataset: "LeRobotDataset", asked: bool) -> NDArray[Any] | None:
    """Return who decided each step, uint8 [frames]; None where the feature is missing, or another program's."""
    from embodied_rl.datasets.lerobot.info import SOURCE

    feature = dataset.info.features.get(SOURCE)
    fits = feature is not None and feature.dtype == "uint8" and feature.shape == (1,)
    found = dataset.column(SOURCE, np.arange(len(dataset))).ravel() if fits else None
    if found is not None and found.max(initial=0) <= max(Source):
        return found
    if asked:
        why = f"has no feature '{SOURCE}'" if feature is None else f"has a feature '{SOURCE}' with another meaning"
        raise UserError(f"dataset={dataset.folder} {why}: nobody knows who decided its steps. Leave out sources=.")
    return None


def _name(value: int) -> str:
    return Source(value).name.lower()
