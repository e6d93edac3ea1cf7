"""Reader of Isaac-GR00T's N1.7 folders: config.json, weights, and the files of its processor.

processor_config.json says what a robot's state and actions consist of (`modality_configs`, by the robot's tag) and how
pictures and texts are prepared; statistics.json has the statistics of each group of entries, and embodiment_id.json
each robot's number. They are beside the weights or in a folder `processor`. No tokenizer is: it is the language
model's. Older versions (N1, N1.5, N1.6) have another vision-language model, whose code their folders bring along.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.checkpoints import foreign, gr00t_settings, unsupported
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics
from embodied_rl.config.freeze import suggest_name

CONFIG, PROCESSOR, STATISTICS, ROBOTS = "config.json", "processor_config.json", "statistics.json", "embodiment_id.json"
MARK = re.compile(r'"(model_type|architectures)"\s*:\s*\[?\s*"gr00t', re.IGNORECASE)
CONSTANT_STATE, CONSTANT_ACTION = 1e12, 1e-5
"""Scales of entries without spread: a state becomes 0, an action stays within this part of its value."""


def recognise_folder(folder: Path) -> bool:
    """Return whether a folder is a GR00T of NVIDIA's, of any version."""
    return (folder / CONFIG).is_file() and bool(MARK.search((folder / CONFIG).read_text("utf-8", "replace")))


def read_folder(folder: Path, asset: str | None = None) -> FoundCheckpoint:
    """Read an Isaac-GR00T folder for the robot with the tag `asset`; None takes the only one.

    Raises:
        CheckpointError: a file is missing or damaged, the version, a setting or the robot is not supported.
    """
    config = foreign.parse_json(folder / CONFIG)
    unsupported.check_gr00t(folder, config)
    gr00t_settings.check_model(config, folder / CONFIG)
    home = folder / "processor" if (folder / "processor" / PROCESSOR).is_file() else folder
    settings = _read_mapping(home / PROCESSOR, "processor_kwargs")
    gr00t_settings.check_processor(settings, home / PROCESSOR)
    robots, statistics = _read_mapping(home / PROCESSOR, "processor_kwargs", "modality_configs"), home / STATISTICS
    known = foreign.parse_json(statistics) if statistics.is_file() else {}
    tags = [tag for tag in robots if isinstance(known.get(tag), dict)]
    tag = asset or (tags[0] if len(tags) == 1 else None)
    if asset is not None and asset not in tags:
        raise CheckpointError(
            f"policy.embodiment={asset}: {home} has no modality configuration with statistics for this robot."
            f"{suggest_name(asset, tags)}",
            code="embodiment-unknown",
        )
    tensors, files = foreign.find_tensors(folder), [*folder.glob("*.json"), *folder.glob("processor/*.json")]
    shared = {"format": "gr00t", "folder": folder, "policy": "gr00t", "tensors": tensors,
              "denoise_steps": config.get("num_inference_timesteps"),
              "files": foreign.read_contents(folder, files)}  # fmt: skip
    prepared = gr00t_settings.read_preparation(settings, home / PROCESSOR)
    if tag is None:
        choose = "choose one with policy.embodiment=<tag>, inspect: embodiment=<tag>, of "
        listed = choose + ", ".join(tags) if tags else "none has statistics"
        problem = f"{home} has {len(robots)} robots: {listed}."
        found = FoundStatistics(None, None, str(statistics), problem)
        return FoundCheckpoint(config=config | {"gr00t": prepared}, statistics=found, cameras=(), **shared)
    robot = Robot(robots[tag], known[tag], settings, home)
    numbers = foreign.parse_json(home / ROBOTS) if (home / ROBOTS).is_file() else {}
    prepared |= {"embodiment": tag, **robot.state_keys(), "trained": robot.count_actions()}
    prepared |= {"robot": numbers[tag]} if type(numbers.get(tag)) is int else {}
    state, action = robot.state(), robot.action()
    return FoundCheckpoint(
        config=config | {"gr00t": prepared, "normalization_mapping": robot.modes()},
        statistics=FoundStatistics(state, action, str(statistics)),
        cameras=robot.cameras(),
        executed=robot.count_actions(),
        clipped=action.kind != "mean_std",
        **shared,
    )


def _read_mapping(file: Path, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under keys of a JSON file.

    Raises:
        CheckpointError: the file is missing or damaged, or there is no such mapping.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; the processor's settings are in it.", code="checkpoint-file-missing")
    found: Any = foreign.parse_json(file)
    for key in keys:
        found = found.get(key)
        if not isinstance(found, dict):
            raise damaged_error(f"{file} is damaged: {'.'.join(keys)} should be a mapping.")
    return found


class Robot:
    """What a processor's files say of one robot.

    Attributes:
        entries: its modality configuration. known: its statistics. settings: of the processor. home: the folder.
    """

    def __init__(
        self, entries: Mapping[str, Any], known: Mapping[str, Any], settings: Mapping[str, Any], home: Path
    ) -> None:
        """Raise `CheckpointError` if its configuration is damaged, or not supported."""
        self.known, self.settings, self.home = known, settings, home
        self.entries = gr00t_settings.check_robot(entries, settings, home / PROCESSOR)
        self._percentiles = bool(settings.get("use_percentiles", False))

    def cameras(self) -> tuple[str, ...]:
        """Return the names of its views, in order."""
        return tuple(self.entries["video"]["modality_keys"])

    def count_actions(self) -> int:
        """Return how many actions of a chunk its data had."""
        return len(self.entries["action"]["delta_indices"])

    def state_keys(self) -> dict[str, Any]:
        """Return the keys of our configuration that describe its state."""
        groups = self.entries["state"]["modality_keys"]
        sizes = [len(self._bounds("state", group)[0]) for group in groups]
        return {"state_sizes": sizes, "state_forms": [self._form(group) for group in groups]}

    def modes(self) -> dict[str, str]:
        """Return lerobot's names of its normalisations, for other statistics; MIXED has none."""
        bounds = "QUANTILES" if self._percentiles else "MIN_MAX"
        forms = {self._form(group) for group in self.entries["state"]["modality_keys"]}
        means = self.entries["state"].get("mean_std_embedding_keys") or ()
        state = "MIXED" if "sin_cos" in forms or means else bounds
        return {"STATE": state, "ACTION": "MEAN_STD" if self.action().kind == "mean_std" else bounds}

    def state(self) -> Normalisation:
        """Return the normalisation of its state before groups take their forms."""
        centers, scales = [], []
        for group in self.entries["state"]["modality_keys"]:
            if self._form(group) == "sin_cos":
                size = len(self._bounds("state", group)[0])
                center, scale = np.zeros(size), np.ones(size)
            elif group in (self.entries["state"].get("mean_std_embedding_keys") or ()):
                center, scale = self._means("state", group)
            else:
                low, high = self._bounds("state", group)
                still = np.isclose(low, high)
                center = np.where(still, low, (low + high) / 2)
                scale = np.where(still, CONSTANT_STATE, (high - low) / 2)
            centers.append(center)
            scales.append(scale)
        return self._join("quantiles" if self._percentiles else "min_max", centers, scales)

    def action(self) -> Normalisation:
        """Return the normalisation of its actions.

        Raises:
            CheckpointError: some groups are normalised by means, and others by bounds.
        """
        entry = self.entries["action"]
        groups, means = entry["modality_keys"], entry.get("mean_std_embedding_keys") or ()
        if set(means) >= set(groups):
            pairs = [self._means("action", group) for group in groups]
            return self._join("mean_std", [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        if means:
            raise unsupported_error(
                f"{self.home / PROCESSOR} normalises some actions by means and others by bounds; not supported yet."
            )
        bounds = [self._bounds("action", group) for group in groups]
        centers = [(low + high) / 2 for low, high in bounds]
        scales = [np.maximum((high - low) / 2, CONSTANT_ACTION * np.maximum(abs(low), 1)) for low, high in bounds]
        return self._join("quantiles" if self._percentiles else "min_max", centers, scales)

    def _form(self, group: str) -> str:
        state = self.entries["state"]
        turned = state.get("sin_cos_embedding_keys") or ()
        if self.settings.get("apply_sincos_state_encoding") and group in turned:
            return "sin_cos"
        if group in (state.get("mean_std_embedding_keys") or ()) or not self.settings.get("clip_outliers", True):
            return "plain"
        return "clipped"

    def _bounds(self, kind: str, group: str) -> tuple[np.ndarray, np.ndarray]:
        low, high = ("q01", "q99") if self._percentiles else ("min", "max")
        return self._read(kind, group, low), self._read(kind, group, high)

    def _means(self, kind: str, group: str) -> tuple[np.ndarray, np.ndarray]:
        """Return means and deviations; entries that never moved keep their values."""
        mean, std = self._read(kind, group, "mean"), self._read(kind, group, "std")
        return np.where(std == 0, 0, mean), np.where(std == 0, 1, std)

    def _read(self, kind: str, group: str, name: str) -> np.ndarray:
        """Return a statistic of a group, float64 [entries]."""
        where = f"{self.home / STATISTICS}, {kind}.{group}"
        try:
            values = np.asarray(self.known[kind][group][name], np.float64)
        except (KeyError, TypeError, ValueError):
            message = f"{where} has no numbers {name!r}, which the processor normalises with."
            raise CheckpointError(message, code="statistics-missing") from None
        if values.ndim != 1 or not values.size or not np.isfinite(values).all():
            raise damaged_error(f"{where}: {name!r} should be a list of finite numbers.")
        return values

    def _join(self, kind: str, centers: Sequence[np.ndarray], scales: Sequence[np.ndarray]) -> Normalisation:
        try:
            center, scale = (tuple(np.concatenate(part).tolist()) for part in (centers, scales))
            return Normalisation(kind, center, scale)
        except ValueError as error:
            raise damaged_error(f"{self.home / STATISTICS}: {error}") from error
