"""Reader and writer of folders of OpenVLA and OpenVLA-OFT in Hugging Face's layout.

A folder has config.json, preprocessor_config.json, one or more safetensors files, the tokenizer's files, and
statistics: `norm_stats` in config.json, or for fine-tuned policies dataset_statistics.json. Parts that OpenVLA-OFT
adds lie beside it, such as `proprio_projector--<step>_checkpoint.pt`; these are pickles, and read only as safetensors.
A folder with an action head is of `openvla_oft_l1`. No file says whether a policy with action tokens is autoregressive
(`openvla`) or decodes in parallel (`openvla_oft`).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.checkpoints import foreign
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics, TensorEntry, TensorFiles
from embodied_rl.checkpoints.weight_names import CheckpointSource, as_foreign
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.backbone import Backbone
from embodied_rl.system.untrusted_files import name_file, shorten

CONFIG, PREPROCESSOR, STATISTICS = "config.json", "preprocessor_config.json", "dataset_statistics.json"
POLICIES = ("openvla", "openvla_oft")
EPSILON = 1e-8
"""OpenVLA-OFT adds it to the distance of bounds."""

ALOHA = "aloha"
"""A word in the name of statistics that OpenVLA-OFT normalises by minimum and maximum instead of quantiles."""

CAMERAS = ("full_image", "wrist_image")
ALOHA_CAMERAS = ("full_image", "left_wrist_image", "right_wrist_image")
"""Names of images in OpenVLA-OFT's evaluations."""

PROJECTOR, HEAD, VISION = "proprio_projector", "action_head", "vision_backbone"
"""The parts of OpenVLA-OFT that are read: one turns the state into a token, one predicts actions as numbers, and one
holds vision towers that read the instruction (FiLM)."""

STARTS = {PROJECTOR: f"{PROJECTOR}.", HEAD: f"{HEAD}.", VISION: f"{VISION}.{VISION}."}
"""Part → how the names of its tensors begin. Towers without FiLM, which are no part, are `vision_backbone.` alone."""

LOW_RANK = {".lora_A.default.": ".down.", ".lora_B.default.": ".up."}
"""Names, there and here, of the low-rank maps that vision towers with FiLM are stored with."""

REFUSED = {"noisy_action_projector": "the projector of the diffusion head"}
"""Other parts of OpenVLA-OFT → what they are."""

CONVERT = (
    'python -c "import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in '
    "torch.load('{name}', weights_only=True).items()}}, '{stem}.safetensors')\""
)
START = "<s>"
"""Llama's start token."""
KEY = "embodied_rl"
"""Name of new statistics."""


def recognise_folder(folder: Path) -> bool:
    """Return whether a folder holds an OpenVLA in Hugging Face's layout."""
    file = folder / CONFIG
    return file.is_file() and bool(re.search(r'"model_type"\s*:\s*"openvla"', file.read_text("utf-8", "replace")))


def read_folder(folder: Path, asset: str | None = None) -> FoundCheckpoint:
    """Read a folder, with the statistics named `asset` if there are several.

    Raises:
        CheckpointError: a file is missing, damaged or a pickle, a part is not supported, or the asset does not exist.
    """
    config, parts = foreign.parse_json(folder / CONFIG), _find_parts(folder)
    if not (folder / PREPROCESSOR).is_file():
        message = f"{folder / PREPROCESSOR} is missing: copy it from the checkpoint that this one was made from."
        raise CheckpointError(message, code="checkpoint-file-missing")
    main = foreign.find_tensors(folder)
    entries: dict[str, TensorEntry] = dict(main)
    for part, file in parts.items():
        entries |= _read_part(part, file)
    separate = folder / STATISTICS
    where = separate if separate.is_file() else folder / CONFIG
    known = foreign.parse_json(separate) if separate.is_file() else config.get("norm_stats") or {}
    key, problem = _choose_key(known, asset, where)
    statistics = FoundStatistics(None, None, str(where), problem)
    if key is not None:
        statistics = _read_entry(known[key], key, where, reads_state=PROJECTOR in parts)
    words = folder / "tokenizer.json"
    return FoundCheckpoint(
        format="openvla",
        folder=folder,
        policy="openvla_oft_l1" if HEAD in parts else "openvla_oft" if parts else None,
        candidates=POLICIES,
        config=config | {"preprocessor": foreign.parse_json(folder / PREPROCESSOR), "statistics_key": key or ""},
        tensors=TensorFiles(entries, main.metadata),
        statistics=statistics,
        reads_state=PROJECTOR in parts,
        cameras=ALOHA_CAMERAS if ALOHA in (key or "") else CAMERAS,
        tokenizer=_read_tokenizer(words) if words.is_file() else "",
        files=foreign.read_contents(folder, [*folder.glob("*.json"), folder / "tokenizer.model"]),
    )


def _read_tokenizer(file: Path) -> str:
    """Return the content of a tokenizer.json.

    Raises:
        CheckpointError: it starts prompts without Llama's start token, which stands before the images.
    """
    content = foreign.read_text(file)
    with name_file(file):
        loaded = tokenizer.load_tokenizer(content)
    start = loaded.token_to_id(START)
    if start is None or loaded.encode("in").ids[:1] != [start]:
        raise unsupported_error(f"{file} starts prompts without {START}: give that of OpenVLA, or of Llama 2.")
    return content


def _find_parts(folder: Path) -> dict[str, Path]:
    """Return the name → safetensors file of the added parts.

    Raises:
        CheckpointError: a part is not supported, a pickle, or there twice.
    """
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*--*_checkpoint.*")):
        part = file.name.partition("--")[0]
        if part in REFUSED:
            message = f"{file} is {REFUSED[part]}, which is not supported; action tokens and the L1 head are."
            raise unsupported_error(message)
        if part not in STARTS:
            raise unsupported_error(f"{file} is an unknown part of a policy; known: {', '.join(STARTS)}.")
        if file.suffix != ".safetensors":
            if file.with_suffix(".safetensors").is_file():
                continue
            message = (
                f"{file} is a pickle, which can run any code when opened, and is not read. If you trust it, convert "
            )
            words = CONVERT.format(name=file.name, stem=file.stem)
            raise CheckpointError(f"{message}it in its folder: {words}", code="checkpoint-is-pickle")
        if part in found:
            message = f"{folder} has {found[part].name} and {file.name}: keep the one that belongs to the weights."
            raise CheckpointError(message, code="checkpoint-ambiguous")
        found[part] = file
    return found


def _read_part(part: str, file: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a part, by names that start with its own; `module.` is of a distributed training.

    Raises:
        CheckpointError: the part is the diffusion head, or vision towers without FiLM.
    """
    found = {name.removeprefix("module."): (name, entry) for name, entry in foreign.read_tensor_file(file).items()}
    if part == HEAD and any(name.startswith("noise_predictor.") for name in found):
        raise unsupported_error(
            f"{file} is a diffusion head, which is not supported; action tokens and the L1 head are."
        )
    entries: dict[str, TensorEntry] = {}
    for name, (stored, entry) in found.items():
        ours = f"{part}.{name}"
        if not ours.startswith(STARTS[part]):
            raise unsupported_error(
                f"{file} has {stored}, which is none of vision towers with FiLM: it is not supported."
            )
        for old, new in LOW_RANK.items():
            ours = ours.replace(old, new)
        entries[ours] = replace(entry, stored=stored)
    return entries


def _choose_key(known: Mapping[str, Any], asset: str | None, where: Path) -> tuple[str | None, str]:
    """Return the name of the statistics to use, or None and the problem; see `FoundStatistics`."""
    if not isinstance(known, dict):
        raise damaged_error(f"{where} is damaged: its statistics should be a mapping.")
    if asset is not None and asset not in known:
        listed = ", ".join(known) or "none"
        message = (
            f"policy.statistics={asset}: no such file, and {where} has {listed}.{suggest_name(asset, tuple(known))}"
        )
        raise CheckpointError(message, code="statistics-missing")
    if asset is None and len(known) > 1:
        return None, f"{where} has statistics of several robots: choose policy.statistics=<one of {', '.join(known)}>."
    return asset or next(iter(known), None), ""


def read_statistics(path: Path, *, reads_state: bool) -> FoundStatistics:
    """Read a dataset_statistics.json with the statistics of one robot, or the one in a folder.

    Raises:
        CheckpointError: the file is missing or damaged, or has statistics of several robots.
    """
    file = path / STATISTICS if path.is_dir() else path
    if not file.is_file():
        message = f"policy.statistics={path} has no {STATISTICS}; give one, as OpenVLA's training writes it."
        raise CheckpointError(message, code="statistics-missing")
    known = foreign.parse_json(file)
    key, problem = _choose_key(known, None, file)
    if key is None:
        return FoundStatistics(None, None, str(file), problem)
    return _read_entry(known[key], key, file, reads_state=reads_state)


def _read_entry(entry: Any, key: str, where: Path, *, reads_state: bool) -> FoundStatistics:
    if not isinstance(entry, dict) or not isinstance(entry.get("action"), dict):
        raise damaged_error(f"{where} is damaged: {key} has no mapping 'action'.")
    state = None
    if reads_state and isinstance(entry.get("proprio"), dict):
        state = _normalisation(entry["proprio"], f"{key}.proprio", where, ALOHA in key)
    return FoundStatistics(state, _normalisation(entry["action"], f"{key}.action", where, ALOHA in key), str(where))


def _normalisation(values: Mapping[str, Any], name: str, where: Path, bounded: bool) -> Normalisation:
    """Return the map of the bounds to -1 and 1; entries that `mask` leaves out keep their units."""
    kind, bounds = ("min_max", ("min", "max")) if bounded else ("quantiles", ("q01", "q99"))
    if missing := [each for each in bounds if each not in values]:
        message = f"{where} has no {missing[0]!r} of {name}, which this policy is normalised with."
        raise CheckpointError(message, code="statistics-missing")
    try:
        low, high = (np.asarray(values[each], np.float64) for each in bounds)
        mask = np.asarray(values.get("mask", np.ones(low.shape)), bool)
        if not low.shape == high.shape == mask.shape or low.ndim != 1:
            raise ValueError("bounds and mask differ in length")
        return Normalisation.from_bounds(kind, np.where(mask, low, -1), np.where(mask, high + EPSILON, 1))
    except (TypeError, ValueError) as error:
        raise damaged_error(f"{where}, {name}: {shorten(error)}.") from error


def make_files(network: Backbone, robot: Embodiment) -> dict[str, bytes]:
    """Return the small files for a network that was not imported from this format."""
    config = as_foreign(network).checkpoint_config("openvla", 0)
    preprocessor, statistics = config.pop("preprocessor"), make_statistics(robot, network.config.state_dim is not None)
    contents = {CONFIG: config | {"norm_stats": statistics}, PREPROCESSOR: preprocessor, STATISTICS: statistics}
    files = {name: json.dumps(content, indent=2).encode() for name, content in contents.items()}
    return files | ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {})


def separate_parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Take the tensors of added parts out of `tensors`; return them as name of a file → its tensors."""
    found: dict[str, dict[str, Tensor]] = {}
    for part, start in STARTS.items():
        for name in [name for name in tensors if name.startswith(start)]:
            plain = name.removeprefix(f"{part}.")
            for theirs, ours in LOW_RANK.items():
                plain = plain.replace(ours, theirs) if part == VISION else plain
            found.setdefault(f"{part}--latest_checkpoint.safetensors", {})[plain] = tensors.pop(name)
    return found


def describe_parts(out: Path) -> Iterator[str]:
    """Yield what makes the pickles that OpenVLA-OFT's own loader takes, for an exported folder with added parts."""
    for file in sorted(out.glob("*--*_checkpoint.safetensors")):
        words = f"torch.save(safetensors.torch.load_file('{file.name}'), '{file.stem}.pt')"
        command = f'python -c "import torch, safetensors.torch; {words}"'
        yield f"OpenVLA-OFT loads {file.name} as a pickle, the only file of this part. To make it, in {out}:"
        yield f"  {command} && rm {file.name}"


def keep_files(network: Backbone, source: CheckpointSource, robot: Embodiment) -> dict[str, bytes]:
    """Return the imported files of a network, with its current statistics if they have changed."""
    files = ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {}) | source.files
    reads_state = network.config.state_dim is not None
    if source.action == robot.action and (not reads_state or source.state == robot.state):
        return files
    return files | {STATISTICS: json.dumps(make_statistics(robot, reads_state), indent=2).encode()}


def make_statistics(robot: Embodiment, reads_state: bool) -> dict[str, Any]:
    """Return the content of a dataset_statistics.json; bounds of an affine map are its quantiles, minimum, maximum."""
    known = {"action": robot.action} | ({"proprio": robot.state} if reads_state else {})
    return {KEY: {name: _make_entry(each) for name, each in known.items()}}


def _make_entry(known: Normalisation) -> dict[str, list[Any]]:
    center, scale = np.asarray(known.center), np.asarray(known.scale)
    plain = (center == 0) & (scale == 1)
    low, high = (center - scale).tolist(), (center + scale - np.where(plain, 0, EPSILON)).tolist()
    spread = {"mean": center.tolist(), "std": (scale / 3**0.5).tolist()}
    return {"q01": low, "q99": high, "min": low, "max": high, **spread, "mask": (~plain).tolist()}
