"""Read lerobot's policy folders: config.json, model.safetensors, and the processor files.

A processor file lists steps. The step of a normaliser names a safetensors file, which holds the statistics as
`<feature>.<statistic>`. Newer versions also keep the tokenizer in the folder. Folders from before processors hold
their statistics among the weights; lerobot has a script that migrates them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.actors.normalisation import Normalisation
from embodied_rl.checkpoints import lerobot_processors, lerobot_settings, tensor_files, unsupported
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics
from embodied_rl.checkpoints.lerobot_processors import NORMALISER, TOKENIZER
from embodied_rl.runs.untrusted_files import shorten

CONFIG, BEFORE, AFTER = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
STATE, ACTION, IMAGES = lerobot_processors.STATE, "action", lerobot_settings.IMAGES
EMPTY_CAMERA = "empty_camera_"
KINDS = {
    "IDENTITY": "identity",
    "MEAN_STD": "mean_std",
    "MIN_MAX": "min_max",
    "QUANTILES": "quantiles",
    "QUANTILE10": "quantile10",
}
BOUNDS = {"min_max": ("min", "max"), "quantiles": ("q01", "q99"), "quantile10": ("q10", "q90")}


def recognise_folder(folder: Path) -> bool:
    """Return whether a folder is a lerobot policy folder."""
    return (folder / CONFIG).is_file() and '"input_features"' in (folder / CONFIG).read_text("utf-8", "replace")


def read_folder(folder: Path, asset: str | None = None) -> FoundCheckpoint:
    """Read a lerobot policy folder.

    Args:
        folder: the policy folder.
        asset: must be None, because the format holds one embodiment.

    Raises:
        CheckpointError: a file is missing or damaged, the kind of statistics is unknown, or an asset was given.
    """
    if asset is not None:
        raise CheckpointError(f"policy.statistics={asset}: there is no such file or folder.")
    config = tensor_files.parse_json(folder / CONFIG)
    unsupported.check_lerobot(folder, config.get("type"))
    lerobot_settings.check_settings(config, folder / CONFIG)
    policy = str(config["type"]) if "type" in config else None
    before, after = lerobot_processors.read_processors(folder / BEFORE, folder / AFTER, policy)
    relative = _settings(before, lerobot_processors.RELATIVE)
    names = tuple(relative.get("action_names") or ())
    return FoundCheckpoint(
        format="lerobot",
        folder=folder,
        policy=policy,
        config=config | _said_by_steps(before),
        tensors=tensor_files.find_tensors(folder),
        statistics=_statistics(folder, config, before, after),
        cameras=tuple(
            name.removeprefix(IMAGES)
            for name in config.get("input_features", {})
            if name.startswith(IMAGES) and not name.startswith(IMAGES + EMPTY_CAMERA)
        ),
        executed=config.get("n_action_steps"),
        denoise_steps=config.get("num_inference_steps", config.get("num_steps")),
        relative=bool(relative.get("enabled", False)),
        exceptions=tuple(relative.get("exclude_joints") or ()) if names else (),  # without names it excludes nothing
        action_names=names,
        tokenizer=_tokenizer(folder),
        files=tensor_files.read_contents(folder, _small_files(folder)),
    )


def _statistics(
    folder: Path, config: Mapping[str, Any], before: lerobot_processors.Steps, after: lerobot_processors.Steps
) -> FoundStatistics:
    step = before.get(NORMALISER, {})
    _modes(step.get("config") or {}, config, folder / (BEFORE if step else CONFIG))
    if "state_file" not in step:
        return FoundStatistics(None, None, str(folder / BEFORE))
    state, action = (_normalisation(folder, config, step, BEFORE, key) for key in ("STATE", "ACTION"))
    undone = after.get(lerobot_processors.UNNORMALISER, {})
    if "state_file" in undone and _normalisation(folder, config, undone, AFTER, "ACTION") != action:
        raise CheckpointError(f"{folder / AFTER} normalises actions by other statistics than {BEFORE}; not supported.")
    return FoundStatistics(state, action, where=str(folder / Path(step["state_file"]).name))


def _normalisation(
    folder: Path, config: Mapping[str, Any], step: Mapping[str, Any], named_in: str, key: str
) -> Normalisation | None:
    """Return the normalisation of state or action that a step does; `named_in`: the file of the step."""
    file, told = folder / Path(step["state_file"]).name, step.get("config") or {}
    if not file.is_file():
        raise CheckpointError(f"{folder / named_in} names {file.name}, which is missing.")
    name, mode = {"STATE": STATE, "ACTION": ACTION}[key], _modes(told, config, folder / named_in).get(key, "IDENTITY")
    features = _features(config)
    if mode == "IDENTITY" and name in features:
        return Normalisation.identity(features[name])
    if key == "STATE" and "features" in told and told["features"].get(STATE, {}).get("type") != "STATE":
        raise CheckpointError(f"{folder / named_in} leaves {STATE} out of what it normalises; not supported.")
    return read_normalisation(_tensors(file), name, mode, float(told.get("eps", 1e-8)), file)


def _modes(told: Mapping[str, Any], config: Mapping[str, Any], file: Path) -> Mapping[str, str]:
    """Return kind of features → mode of normalisation; a step's own modes count, otherwise the configuration's.

    Raises:
        CheckpointError: pictures are normalised.
    """
    modes = told["norm_map"] if "norm_map" in told else config.get("normalization_mapping", {})
    if (mode := modes.get("VISUAL", "IDENTITY")) != "IDENTITY":
        raise CheckpointError(f"{file} normalises pictures by {mode} (VISUAL); supported is IDENTITY alone.")
    return modes


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is damaged, or no safetensors file: {shorten(error)}.") from error


def _settings(steps: lerobot_processors.Steps, name: str) -> Mapping[str, Any]:
    """Return the settings of a step; none without the step."""
    return steps.get(name, {}).get("config") or {}


def _said_by_steps(before: lerobot_processors.Steps) -> dict[str, Any]:
    """Return the entries of the configuration that lerobot takes from the steps: prompt length and normalisation."""
    words, scale = (_settings(before, name) for name in (TOKENIZER, NORMALISER))
    length = {"tokenizer_max_length": words["max_length"]} if "max_length" in words else {}
    return length | ({"normalization_mapping": scale["norm_map"]} if "norm_map" in scale else {})


def _features(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of entries of each input and output vector of the policy."""
    listed = {**config.get("input_features", {}), **config.get("output_features", {})}
    return {name: entry["shape"][0] for name, entry in listed.items() if len(entry["shape"]) == 1}


def read_normalisation(
    values: Mapping[str, torch.Tensor], feature: str, mode: str, epsilon: float, where: Path
) -> Normalisation | None:
    """Return a feature's normalisation in a mode that lerobot names; None if the file has no statistics of it.

    Raises:
        CheckpointError: the mode is unknown, the file lacks a statistic that the mode needs, or a value is invalid.
    """
    if mode not in KINDS:
        raise CheckpointError(f"{where}: normalisation {mode!r} is not known; known: {', '.join(KINDS)}.")
    known = {name.rpartition(".")[2]: value.double().numpy() for name, value in values.items() if _of(name, feature)}
    if not known:
        return None
    kind = KINDS[mode]
    needed = BOUNDS.get(kind, ("mean", "std") if kind == "mean_std" else ())
    if missing := [name for name in needed if name not in known]:
        raise CheckpointError(f"{where} has no {missing[0]!r} of {feature}, which normalisation {mode} needs.")
    try:
        return _made(kind, known, epsilon)
    except ValueError as error:
        raise CheckpointError(f"{where}, {feature}: {error}") from error


def _made(kind: str, known: Mapping[str, np.ndarray], epsilon: float) -> Normalisation:
    if kind == "identity":
        return Normalisation.identity(len(next(iter(known.values()))))
    if kind == "mean_std":
        return Normalisation(kind, tuple(known["mean"].tolist()), tuple((known["std"] + epsilon).tolist()))
    low, high = (known[name] for name in BOUNDS[kind])
    return Normalisation.from_bounds(kind, low, np.where(high == low, low + epsilon, high))


def _of(name: str, feature: str) -> bool:
    return name.rpartition(".")[0] == feature


def _small_files(folder: Path) -> list[Path]:
    below = [file for file in folder.glob("*/*.json") if file.name.startswith(("tokenizer", "special_tokens"))]
    return [*folder.glob("*.json"), *folder.glob("policy_*.safetensors"), *below]


def _tokenizer(folder: Path) -> str:
    """Return the text of the tokenizer.json in the folder or one of its subfolders; empty if there is none."""
    files = [folder / "tokenizer.json", *sorted(folder.glob("*/tokenizer.json"))]
    return next((tensor_files.read_text(file) for file in files if file.is_file()), "")
