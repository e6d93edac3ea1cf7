"""Which steps of a dataset are cloned, by who decided them: its feature `source`, a `Source` for each step."""

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
"""Who is left out where nobody asked: a robot that holds still while a policy infers shows no task."""


@dataclass(frozen=True, eq=False)
class ChosenSteps:
    """Which steps are cloned.

    Attributes:
        mask: bool [frames]; None where all are.
        told: one line for the user: what is left out, or why nothing can be; None where there is nothing to say.
    """

    mask: NDArray[np.bool_] | None = None
    told: str | None = None


def choose_steps(dataset: "LeRobotDataset", sources: Sequence[str] | None) -> ChosenSteps:
    """Choose the steps that are cloned.

    Args:
        dataset: what is cloned; where it does not say who decided its steps, all of them are.
        sources: names of `NAMES`; None takes everybody but who holds still.

    Raises:
        UserError: a name is unknown, or no step is left; or names were given, and the dataset does not say.
    """
    wanted = set(NAMES.values()) - _ABSENT if sources is None else _read_names(sources)
    found, doubt = _read_sources(dataset)
    if found is None:
        if sources is not None:
            raise UserError(
                f"dataset={dataset.folder} {doubt}: nobody knows who decided its steps. Leave out sources=."
            )
        other = doubt.startswith("has a feature")
        return ChosenSteps(None, f"The dataset {doubt}: all its steps are cloned" if other else None)
    return _choose(dataset, found, np.isin(found, sorted(wanted)))


def _choose(dataset: "LeRobotDataset", found: NDArray[Any], mask: NDArray[np.bool_]) -> ChosenSteps:
    if mask.all():
        return ChosenSteps()
    if not mask.any():
        there = ", ".join(_name(value) for value in sorted(set(found.tolist())))
        raise UserError(
            f"dataset={dataset.folder}: no step is left to clone; its steps were decided by: {there}. "
            f"Choose with sources=[{there.partition(',')[0]}]."
        )
    counts = Counter(_name(value) for value in found[~mask].tolist())
    parts = ", ".join(f"{number} by {name}" for name, number in counts.most_common())
    told = f"{int((~mask).sum())} of {len(mask)} steps are not cloned ({parts}); sources=[…] chooses whose are"
    return ChosenSteps(mask, told)


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


def _read_sources(dataset: "LeRobotDataset") -> tuple[NDArray[Any] | None, str]:
    """Return who decided each step, uint8 [frames], or None and why that is not known."""
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
