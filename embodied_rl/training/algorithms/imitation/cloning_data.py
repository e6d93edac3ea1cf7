"""Cloning batches from a LeRobotDataset on disk, in the units and names of an embodiment, and the steps to clone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.config import assets
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, Source
from embodied_rl.schema import SftConfig
from embodied_rl.training.algorithms.imitation.cloning import CloningBatch, ExecutedPrefix, SFTConfig

if TYPE_CHECKING:
    from embodied_rl.datasets.lerobot.dataset_reader import DatasetSamples, LeRobotDataset

NAMES = {source.name.lower(): source for source in Source}
_ABSENT = {Source.HOLD}
"""Sources that are left out by default: a robot that holds still while a policy infers shows no task."""
STATISTIC_ROWS = 100_000
"""Frames whose states are read for statistics, evenly spaced, at most."""


def open_dataset(folder: str) -> "closing[LeRobotDataset]":
    """Return a context manager that gives the dataset in a folder and closes it afterwards.

    Raises:
        DatasetError: the folder holds no dataset, or a part of the dataset is missing.
        Unavailable: the packages that read a dataset are not installed.
    """
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    return closing(LeRobotDataset(assets.resolve_path(folder)))


def check_stages(config: SftConfig, options: SFTConfig) -> None:
    """Check that no stage is configured that needs a simulator's operator; raise `UserError` otherwise."""
    if options.frames or options.steps:
        raise UserError(
            f"dataset={config.dataset}: algo.frames={options.frames} and algo.steps={options.steps} belong to scripted "
            "operators; set both to 0 and algo.finetune_steps=<steps>, as algo=sft_vla does.",
            code="dataset-with-operator-stages",
        )


def match_dataset(dataset: "LeRobotDataset", embodiment: Embodiment) -> dict[str, str]:
    """Return the dataset's camera of the same name, or of the view's, for each camera; check state and actions, too.

    Raises:
        UserError: a camera, the state or the actions of the dataset do not fit.
    """
    robot = {"state": len(embodiment.state_names), "action": len(embodiment.action_names)}
    for what, column in (("state", "observation.state"), ("action", "action")):
        row = dataset.column(column, np.zeros(1, np.int64)).reshape(1, -1)
        if row.shape[1] != robot[what]:
            raise UserError(
                f"dataset={dataset.folder} has {row.shape[1]} {what} entries, the simulator {robot[what]}: "
                "choose the simulator (or the settings of it) that the dataset was recorded with.",
                code="dataset-size-mismatch",
            )
    known, found = dataset.cameras, dict[str, str]()
    for camera, view in zip(embodiment.cameras, embodiment.view_names, strict=True):
        name = next((name for name in (camera, view) if name in known), None)
        if name is None:
            raise UserError(
                f"The policy sees camera {camera!r} (as {view!r}); the dataset shows {', '.join(known) or 'none'}. "
                "Say which is which with policy.cameras, or choose another dataset.",
                code="dataset-camera-missing",
            )
        found[camera] = name
    return found


def read_states(dataset: "LeRobotDataset") -> NDArray[np.float32]:
    """Read the dataset's states [m, S], for statistics."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), STATISTIC_ROWS)).astype(np.int64))
    return dataset.column("observation.state", rows).reshape(len(rows), -1).astype(np.float32)


def stream_batches(
    dataset: "LeRobotDataset",
    embodiment: Embodiment,
    network: FlowBackbone,
    batch: int,
    seed: int,
    kept: NDArray[np.bool_] | None = None,
    prefix: int = 0,
    chosen: NDArray[np.bool_] | None = None,
) -> Iterator[CloningBatch]:
    """Yield batches endlessly, in an order drawn from the seed, of the frames that are kept, bool [frames].

    A dataset's actions are those that were executed, so prefixes of up to `prefix` actions are taken from them. If only
    some steps are `chosen`, bool [frames], chunks neither start with other steps nor extend over them.

    Raises:
        UserError: a camera, a state or an action of the dataset does not fit the embodiment, or no step is left.
    """
    from embodied_rl.datasets.lerobot.stream import SampleStream, Shuffle

    names, horizon = match_dataset(dataset, embodiment), network.spec.horizon
    ahead = None if chosen is None else count_steps_ahead(chosen)
    if chosen is not None:
        kept = chosen if kept is None else kept & chosen
        if not kept.any():
            raise UserError(
                f"dataset={dataset.folder}: of the steps that sources chooses, the filter keeps none. Choose more of "
                "either: sources=[…], filter.…",
                code="dataset-no-steps-left",
            )
    for samples in SampleStream(dataset, batch, horizon, Shuffle(seed=seed), kept=kept):
        seen = rename_cameras(samples.observation, names)
        inputs, padding, moves = embodiment.inputs(seen, network), samples.padding, samples.actions
        if (count := getattr(network, "observations", 1)) > 1:
            before = [read_before(dataset, samples, steps) for steps in range(count - 1, 0, -1)]
            shown = (rename_cameras(each.observation, names) for each in before)
            inputs.earlier = tuple(embodiment.inputs(each, network) for each in shown)
            moves = np.concatenate([*(each.actions for each in before), moves], axis=1)
            padding = np.concatenate([*(each.padding for each in before), padding], axis=1)
        actions = embodiment.model_actions(moves, seen.state, network.spec.action_dim)
        given = ExecutedPrefix(actions, torch.zeros(len(actions), dtype=torch.int64), prefix) if prefix else None
        if ahead is not None:
            padding[:, -horizon:] |= np.arange(horizon) >= ahead[samples.row, None]
        yield CloningBatch(inputs, actions, torch.from_numpy(padding), given)


def read_before(dataset: "LeRobotDataset", samples: "DatasetSamples", steps: int) -> "DatasetSamples":
    """Read the frames, and one action each, that many control steps before those of `samples`, of the same episodes.

    Where it would be, the episode's first frame is read, and its action counts as padding.
    """
    rows, first = samples.row - steps, dataset.starts[samples.episode]
    found = dataset.read(np.maximum(rows, first), 1)
    return replace(found, padding=found.padding | (rows < first)[:, None])


def rename_cameras(observation: Observation, names: Mapping[str, str]) -> Observation:
    """Return an observation with the images {camera: image `names[camera]`}."""
    return replace(observation, images={camera: observation.images[name] for camera, name in names.items()})


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
    for name in sources or ():
        if name not in NAMES:
            message = f"sources: '{name}' is not one of {', '.join(NAMES)}.{suggest_name(name, tuple(NAMES))}"
            raise UserError(message, code="source-unknown")
    if sources is not None and not sources:
        message = f"sources=[] leaves nothing to clone; choose among {', '.join(NAMES)}."
        raise UserError(message, code="dataset-no-steps-left")
    wanted = set(NAMES.values()) - _ABSENT if sources is None else {NAMES[name] for name in sources}
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
        there = ", ".join(Source(value).name.lower() for value in sorted(set(found.tolist())))
        raise UserError(
            f"dataset={dataset.folder}: no step is left to clone; its steps were decided by: {there}. "
            f"Choose with sources=[{there.partition(',')[0]}].",
            code="dataset-no-steps-left",
        )
    counts = Counter(Source(value).name.lower() for value in found[~mask].tolist())
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
