"""Choice of the steps of a dataset to clone, by its feature `source`, a `Source` for each step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
"""Sources that are left out by default: a robot that holds still while a policy infers shows no task."""


@dataclass(frozen=True, eq=False)
class ChosenSteps:
    """The steps to clone.

    Attributes:
        mask: bool [frames]; None for all.
        note: one line for the user about omitted steps, or why none can be omitted; None for no note.
    """

    mask: NDArray[np.bool_] | None = None
    note: str | None = None


def choose_steps(dataset: "LeRobotDataset", sources: Sequence[str] | None) -> ChosenSteps:
    """Choose the steps that are cloned.

    Args:
        dataset: to clone; without valid sources, all its steps are cloned.
        sources: names of `NAMES`; None takes all but `_ABSENT`.

    Raises:
        UserError: a name is unknown, or no step is left; or names were given, and the dataset has no valid sources.
    """
    wanted = set(NAMES.values()) - _ABSENT if sources is None else _read_names(sources)
    found, problem = _read_sources(dataset)
    if found is None:
        if sources is not None:
            message = f"dataset={dataset.folder} {problem}: the sources of its steps are unknown. Leave out sources=."
            raise UserError(message, code="dataset-without-sources")
        other = problem.startswith("has a feature")
        return ChosenSteps(None, f"The dataset {problem}: all its steps are cloned" if other else None)
    mask = np.isin(found, sorted(wanted))
    if mask.all():
        return ChosenSteps()
    if not mask.any():
        there = ", ".join(_name(value) for value in sorted(set(found.tolist())))
        raise UserError(
            f"dataset={dataset.folder}: no step is left to clone; its steps were decided by: {there}. "
            f"Choose with sources=[{there.partition(',')[0]}].",
            code="dataset-no-steps-left",
        )
    counts = Counter(_name(value) for value in found[~mask].tolist())
    parts = ", ".join(f"{number} by {name}" for name, number in counts.most_common())
    note = f"{int((~mask).sum())} of {len(mask)} steps are not cloned ({parts}); sources=[…] chooses others"
    return ChosenSteps(mask, note)


def count_steps_ahead(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each step the number of consecutive cloned steps from it on, int64 [frames]; 0 if it is not cloned.

    A chunk of actions ends there, as at the end of its episode.
    """
    steps = np.arange(len(chosen))
    following = np.minimum.accumulate(np.where(chosen, len(chosen), steps)[::-1])[::-1]
    return following - steps


def _read_names(sources: Sequence[str]) -> set[Source]:
    for name in sources:
        if name not in NAMES:
            message = f"sources: '{name}' is not one of {', '.join(NAMES)}.{suggest_name(name, tuple(NAMES))}"
            raise UserError(message, code="source-unknown")
    if not sources:
        message = f"sources=[] leaves nothing to clone; choose among {', '.join(NAMES)}."
        raise UserError(message, code="dataset-no-steps-left")
    return {NAMES[name] for name in sources}


def _read_sources(dataset: "LeRobotDataset") -> tuple[NDArray[Any] | None, str]:
    """Return the source of each step, uint8 [frames], or None and the reason why it is unknown."""
    from embodied_rl.datasets.lerobot.info import SOURCE

    if (feature := dataset.info.features.get(SOURCE)) is None:
        return None, f"has no feature '{SOURCE}'"
    if feature.dtype != "uint8" or feature.shape != (1,):
        return None, f"has a feature '{SOURCE}' of another kind ({feature.dtype}, {feature.shape})"
    found = dataset.column(SOURCE, np.arange(len(dataset))).ravel()
    if (highest := int(found.max(initial=0))) > max(Source):
        return None, f"has a feature '{SOURCE}' with another meaning (its values go up to {highest})"
    return found, ""


def _name(value: int) -> str:
    return Source(value).name.lower()
