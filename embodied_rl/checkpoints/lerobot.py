"""Reader of lerobot's policy folders: config.json, model.safetensors, and the processor files.

A processor file lists steps. The step of a normaliser names a safetensors file, which holds the statistics as
`<feature>.<statistic>`. Newer versions also keep the tokenizer in the folder. Folders of versions without
processors hold their statistics among the weights; lerobot has a script that migrates them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.checkpoints import (
    foreign,
    gr00t_lerobot,
    lerobot_imitation,
    lerobot_processors,
    lerobot_settings,
    unsupported,
)
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics
from embodied_rl.checkpoints.lerobot_processors import ACTION_TOKENIZER, NORMALISER, TOKENIZER
from embodied_rl.system.untrusted_files import shorten

CONFIG, BEFORE, AFTER = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
STATE, ACTION, IMAGES = lerobot_processors.STATE, "action", lerobot_settings.IMAGES
EMPTY_CAMERA = "empty_camera_"
FAST = "action_tokenizer"
"""The folder of a FAST tokenizer inside of a policy's."""
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
    """Read a lerobot policy folder; its format holds one embodiment, so `asset` must be None, or a GR00T's.

    Raises:
        CheckpointError: a file is missing or damaged, the kind of statistics is unknown, or an asset was given.
    """
    config = foreign.parse_json(folder / CONFIG)
    unsupported.check_lerobot(folder, config.get("type"))
    lerobot_settings.check_settings(config, folder / CONFIG)
    if config.get("type") == "groot":
        return gr00t_lerobot.read_folder(folder, config, folder / BEFORE, folder / AFTER, asset)
    if asset is not None:
        raise CheckpointError(f"policy.statistics={asset}: there is no such file or folder.", code="statistics-missing")
    policy = config["type"]
    before, after = lerobot_processors.read_processors(folder / BEFORE, folder / AFTER, policy)
    relative = _settings(before, lerobot_processors.RELATIVE)
    names = tuple(relative.get("action_names") or ())
    tokenizer, normaliser = (_settings(before, name) for name in (TOKENIZER, NORMALISER))
    taken = {"tokenizer_max_length": tokenizer["max_length"]} if "max_length" in tokenizer else {}
    taken |= {"normalization_mapping": normaliser["norm_map"]} if "norm_map" in normaliser else {}
    cameras = tuple(
        name.removeprefix(IMAGES)
        for name in config.get("input_features", {})
        if name.startswith(IMAGES) and not name.startswith(IMAGES + EMPTY_CAMERA)
    )
    if policy in lerobot_imitation.RULES:
        taken["image_statistics"] = _image_statistics(folder, config, before, cameras)
    known = sorted(file for file in folder.glob("*/tokenizer.json") if file.parent.name != FAST)
    named = Path(before.get(TOKENIZER, {}).get("artifacts", {}).get("tokenizer_name", "")).name
    tokenizers = [folder / named / "tokenizer.json", folder / "tokenizer.json", *known]
    words = next((foreign.read_text(file) for file in tokenizers if file.is_file()), "")
    below = [file for file in folder.glob("*/*.json") if file.name.startswith(("tokenizer", "special_tokens"))]
    if policy == "pi0_fast":
        taken["fast"] = _read_fast(folder, config, _settings(before, ACTION_TOKENIZER)) | {"prompt_tokenizer": words}
        below += [file for file in folder.glob(f"{FAST}/**/*.json") if file not in below]
    small_files = [*folder.glob("*.json"), *lerobot_processors.list_state_files(folder, before, after), *below]
    return FoundCheckpoint(
        format="lerobot",
        folder=folder,
        policy=policy,
        config=config | taken,
        tensors=foreign.find_tensors(folder),
        statistics=_statistics(folder, config, before, after),
        cameras=cameras,
        executed=config.get("n_action_steps"),
        denoise_steps=config.get("num_inference_steps", config.get("num_steps")),
        relative=bool(relative.get("enabled", False)),
        exceptions=tuple(filter(None, relative.get("exclude_joints") or ())) if names else (),  # else none
        action_names=names,
        tokenizer=words,
        files=foreign.read_contents(folder, small_files),
    )


def _read_fast(folder: Path, config: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a FAST tokenizer's files; its Python file is not read.

    They lie in one folder, or the byte-pair encoding in one below, as transformers 5 stores it.

    Raises:
        CheckpointError: a file is missing or damaged, or the step leaves out another number of ids than the network.
    """
    if step.get("fast_skip_tokens", config.get("fast_skip_tokens")) != config.get("fast_skip_tokens"):
        raise unsupported_error(f"{folder / BEFORE} has other fast_skip_tokens than {CONFIG}; not supported.")
    processor, places = folder / FAST / "processor_config.json", (folder / FAST / "bpe_tokenizer", folder / FAST)
    place = next((each for each in places if (each / "tokenizer.json").is_file()), folder / FAST)
    for file in (processor, place / "tokenizer.json"):
        if not file.is_file():
            raise CheckpointError(
                f"{file} is missing: copy the files of the FAST tokenizer that {CONFIG} names (action_tokenizer_name="
                f"{ascii(config.get('action_tokenizer_name'))[:80]}) into {folder / FAST}. Its Python file is not "
                "needed.",
                code="tokenizer-missing",
            )
    settings = place / "tokenizer_config.json"
    return {
        "processor": foreign.parse_json(processor),
        "tokenizer": json.dumps(foreign.parse_json(place / "tokenizer.json"), separators=(",", ":")),
        "tokenizer_config": foreign.parse_json(settings) if settings.is_file() else {},
    }


def _image_statistics(
    folder: Path, config: Mapping[str, Any], before: lerobot_processors.Steps, cameras: Sequence[str]
) -> list[Any]:
    """Return means and deviations of the images; see `lerobot_imitation.read_image_statistics`."""
    step, where = before.get(NORMALISER, {}), folder / (BEFORE if NORMALISER in before else CONFIG)
    mode = _listed_modes(_settings(before, NORMALISER), config).get("VISUAL", "IDENTITY")
    file = folder / Path(step["state_file"]).name if "state_file" in step else None
    return lerobot_imitation.read_image_statistics(file, mode, {name: IMAGES + name for name in cameras}, where)


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
        raise unsupported_error(
            f"{folder / AFTER} normalises actions by other statistics than {BEFORE}; not supported."
        )
    return FoundStatistics(state, action, where=str(folder / Path(step["state_file"]).name))


def _normalisation(
    folder: Path, config: Mapping[str, Any], step: Mapping[str, Any], named_in: str, key: str
) -> Normalisation | None:
    """Return the normalisation of state or action by a step; `named_in`: the file of the step."""
    file, settings = folder / Path(step["state_file"]).name, step.get("config") or {}
    if not file.is_file():
        raise CheckpointError(
            f"{folder / named_in} names {file.name}, which is missing.", code="checkpoint-file-missing"
        )
    name, mode = (
        {"STATE": STATE, "ACTION": ACTION}[key],
        _modes(settings, config, folder / named_in).get(key, "IDENTITY"),
    )
    listed = {**config.get("input_features", {}), **config.get("output_features", {})}
    if mode == "IDENTITY" and name in listed and len(shape := listed[name]["shape"]) == 1:
        return Normalisation.identity(shape[0])
    if key == "STATE" and "features" in settings and settings["features"].get(STATE, {}).get("type") != "STATE":
        raise unsupported_error(f"{folder / named_in} leaves {STATE} out of what it normalises; not supported.")
    try:
        stored = load_file(file)
    except SafetensorError as error:
        raise damaged_error(f"{file} is damaged, or not a safetensors file: {shorten(error)}.") from error
    return read_normalisation(stored, name, mode, float(settings.get("eps", 1e-8)), file)


def _modes(settings: Mapping[str, Any], config: Mapping[str, Any], file: Path) -> Mapping[str, str]:
    """Return kind of features → mode of normalisation; raise `CheckpointError` if pictures are normalised."""
    modes = _listed_modes(settings, config)
    seen = config.get("type") in lerobot_imitation.RULES  # whose networks normalise pictures
    if (mode := modes.get("VISUAL", "IDENTITY")) != "IDENTITY" and not seen:
        raise unsupported_error(f"{file} normalises pictures by {mode} (VISUAL); supported is IDENTITY alone.")
    return modes


def _listed_modes(settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, str]:
    return settings["norm_map"] if "norm_map" in settings else config.get("normalization_mapping", {})


def _settings(steps: lerobot_processors.Steps, name: str) -> Mapping[str, Any]:
    """Return the settings of a step; none without the step."""
    return steps.get(name, {}).get("config") or {}


def read_normalisation(
    values: Mapping[str, torch.Tensor], feature: str, mode: str, epsilon: float, where: Path
) -> Normalisation | None:
    """Return a feature's normalisation in a mode of lerobot; None if the file has no statistics of it.

    Raises:
        CheckpointError: the mode is unknown, the file lacks a statistic that the mode needs, or a value is invalid.
    """
    if mode not in KINDS:
        raise unsupported_error(f"{where}: normalisation {mode!r} is not known; known: {', '.join(KINDS)}.")
    parts = {name.rpartition("."): value for name, value in values.items()}
    known = {part[2]: value.double().numpy() for part, value in parts.items() if part[0] == feature}
    if not known:
        return None
    kind = KINDS[mode]
    needed = BOUNDS.get(kind, ("mean", "std") if kind == "mean_std" else ())
    if missing := [name for name in needed if name not in known]:
        raise CheckpointError(
            f"{where} has no {missing[0]!r} of {feature}, which normalisation {mode} needs.", code="statistics-missing"
        )
    try:
        if kind == "identity":
            return Normalisation.identity(len(next(iter(known.values()))))
        if kind == "mean_std":
            return Normalisation(kind, tuple(known["mean"].tolist()), tuple((known["std"] + epsilon).tolist()))
        low, high = (known[name] for name in BOUNDS[kind])
        return Normalisation.from_bounds(kind, low, np.where(high == low, low + epsilon, high))
    except ValueError as error:
        raise damaged_error(f"{where}, {feature}: {error}") from error
