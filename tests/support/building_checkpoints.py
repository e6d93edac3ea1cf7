"""Small checkpoints in the formats of lerobot and openpi, written here file by file as these projects write them.

Names, shapes and types of tensors come from the recorded lists of what the projects store, `parity/golden/keys_*.json`,
the weights from `recipe`, so that the recorded tensors of `parity/golden` are those of these very checkpoints.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from tests.support import key_lists, pi_inputs
from tests.support import pi_sizes as sizes
from tests.support.tiny_tokenizer import SPECIAL, tiny_tokenizer

GOLDEN = Path(__file__).parents[1] / "parity" / "golden"
FAMILIES = ("pi0", "pi05")
CORE = "paligemma_with_expert."
EMBEDDING = pi_inputs.EMBEDDING.removeprefix("model.")
HEAD = pi_inputs.HEAD.removeprefix("model.")
PROMPT_STEP = {"pi0": "pi0_new_line_processor", "pi05": "pi05_prepare_state_tokenizer_processor_step"}
STATISTICS = {"state": ("state", sizes.STATE_DIM), "action": ("action", sizes.ACTION_DIM)}
NUMBERS = {"observation.state": "state", "action": "action"}
CAMERAS = {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist", "right_wrist_0_rgb": None}
OPTIONS = {"vision_heads": sizes.VISION["num_attention_heads"]}
Stats = Mapping[str, Mapping[str, np.ndarray]]

INNER = sizes.LANGUAGE["num_heads"] * sizes.LANGUAGE["head_dim"]
VISION = {1152: sizes.VISION["hidden_size"], 4304: sizes.VISION["intermediate_size"], 256: 16, 2048: 40, 3: 3, 14: 14}
LANGUAGE = {2048: sizes.LANGUAGE["width"], 16384: sizes.LANGUAGE["mlp_dim"], 257152: sizes.VOCABULARY}
EXPERT = {1024: sizes.EXPERT["width"], 4096: sizes.EXPERT["mlp_dim"], 257152: sizes.VOCABULARY, 32: sizes.PADDED_DIM}
EXPERT |= {2048: 2 * sizes.EXPERT["width"], 3072: 3 * sizes.EXPERT["width"]}
LAYERS = {"{27}": f"{{{sizes.VISION['num_hidden_layers']}}}", "{18}": f"{{{sizes.LANGUAGE['depth']}}}"}


# tensors


def tensors(family: str) -> dict[str, Tensor]:
    """lerobot's names without `model.` → float32; output layer and embedding of the language model are equal."""
    listed = json.loads((GOLDEN / f"keys_{family}_lerobot.json").read_text())["keys"]
    shapes = {name: _small(name, shape) for short, shape in listed.items() for name in key_lists.expand([_less(short)])}
    return {name.removeprefix("model."): value.clone() for name, value in pi_inputs.weights(shapes).items()}


def mixed(family: str, project: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """bfloat16 as a project's training stores it: what it keeps in float32 stays so."""
    listed = json.loads((GOLDEN / f"keys_{family}_{project}.json").read_text())["float32_in_bfloat16"]
    kept = {name.removeprefix("model.") for name in key_lists.expand(map(_less, listed))}
    return {name: value if name in kept else value.bfloat16() for name, value in given.items()}


def prefixed(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As lerobot names them."""
    return {f"model.{name}": value for name, value in given.items()}


def shard(folder: Path) -> None:
    """Spread a folder's weights over two files with an index, as transformers does with large ones."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {f"model-0000{half + 1}-of-00002.safetensors": list(whole)[half::2] for half in range(2)}
    for name, keys in halves.items():
        save_file({key: whole[key] for key in keys}, folder / name, _PT)
    weight_map = {key: name for name, keys in halves.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _less(short: str) -> str:
    """A line of a list of keys, with as many layers as are small."""
    for full, few in LAYERS.items():
        short = short.replace(full, few)
    return short


def _small(name: str, shape: Sequence[int]) -> list[int]:
    """The shape of a full network's tensor in the small one."""
    table = VISION if "vision_tower" in name or "projector" in name else EXPERT
    table = LANGUAGE if "language_model" in name or ".paligemma.lm_head" in name else table
    small = [table.get(size, size) for size in shape]
    if name.endswith("q_proj.weight") and "vision" not in name:
        return [INNER, small[1]]
    if name.endswith("o_proj.weight") and "vision" not in name:
        return [small[0], INNER]
    if name.endswith(("k_proj.weight", "v_proj.weight")) and "vision" not in name:
        return [sizes.LANGUAGE["head_dim"], small[1]]
    return small


# lerobot


def statistics() -> dict[str, dict[str, np.ndarray]]:
    """ "state" and "action" → mean, std, min, max, q01 and q99; the last entry of each never moved."""
    return {key: sizes.statistics(*arguments) for key, arguments in STATISTICS.items()}


def lerobot(
    folder: Path,
    family: str,
    *,
    weights: Mapping[str, Tensor] | None = None,
    stats: Stats | None = None,
    modes: Mapping[str, str] | None = None,
    tokenizer: bool = True,
    old: bool = False,
    relative: bool = False,
    action_names: Sequence[str] | None = None,
    **config: Any,
) -> Path:
    """A folder such as lerobot's training leaves behind.

    Args:
        folder: it is made.
        family: "pi0" or "pi05".
        weights: with their prefix; by default all, float32.
        stats: as `statistics`; those by default.
        modes: of normalisation, where they are not the family's.
        tokenizer: whether it is in the folder, or a name on a hub.
        old: as version 0.4 writes it, without relative actions and artifacts.
        relative: whether actions are relative to the state, but for the gripper's.
        action_names: what lerobot knows of the action's entries; names only where actions may be relative.
        config: further keys of config.json.
    """
    folder.mkdir(parents=True)
    save_file(dict(prefixed(tensors(family)) if weights is None else weights), folder / "model.safetensors", _PT)
    kind = "QUANTILES" if family == "pi05" else "MEAN_STD"
    norm_map = {"VISUAL": "IDENTITY", "STATE": kind, "ACTION": kind} | dict(modes or {})
    written = configuration(family, norm_map, **config)
    offsets = {"enabled": relative, "exclude_joints": ["gripper"], "action_names": action_names}
    before = _before(family, written, None if old else offsets, tokenizer and not old)
    known = {
        f"{feature}.{name}": torch.as_tensor(np.asarray(value, np.float32))
        for feature, key in NUMBERS.items()
        for name, value in (statistics() if stats is None else stats).get(key, {}).items()
    }
    after = _after(written, None if old else relative)
    for name, content in {"config.json": written, "policy_preprocessor.json": before, _AFTER: after}.items():
        (folder / name).write_text(json.dumps(content, indent=4 if name == "config.json" else 2))
    for step in (*before["steps"], *after["steps"]):
        if "state_file" in step:
            save_file(known, folder / step["state_file"])
    if tokenizer:
        tokenizer_files(folder / "tokenizer")
    return folder


_PT = {"format": "pt"}
_AFTER = "policy_postprocessor.json"


def tokenizer_files(folder: Path) -> Path:
    """The tokenizer as transformers stores it."""
    folder.mkdir(parents=True)
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    told = {"backend": "tokenizers", **SPECIAL, "tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told, indent=2) + "\n")
    return folder


def use_tokenizer(file: Path, *, length: int, pad: int) -> None:
    """Store a tokenizer.json as it is after it was used: with the padding and the truncation of a batch inside."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_padding(length=length, pad_id=pad, pad_token=tokenizer.id_to_token(pad))
    tokenizer.enable_truncation(length)
    file.write_text(tokenizer.to_str(pretty=True))


def configuration(family: str, norm_map: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """config.json."""
    seen = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, *shape]} for name, shape in sizes.CAMERAS.items()
    }
    return {
        "type": family,
        "n_obs_steps": 1,
        "input_features": {**seen, "observation.state": {"type": "STATE", "shape": [sizes.STATE_DIM]}},
        "output_features": {"action": {"type": "ACTION", "shape": [sizes.ACTION_DIM]}},
        "device": "cuda",
        "use_amp": False,
        "push_to_hub": True,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "dtype": "float32",
        "chunk_size": sizes.CHUNK,
        "n_action_steps": sizes.CHUNK - 1,
        "max_state_dim": sizes.PADDED_DIM,
        "max_action_dim": sizes.PADDED_DIM,
        "num_inference_steps": sizes.STEPS,
        "min_period": 0.004,
        "max_period": 4.0,
        "image_resolution": [sizes.IMAGE_SIZE, sizes.IMAGE_SIZE],
        "empty_cameras": 0,
        "tokenizer_max_length": sizes.PROMPT_LENGTH[family],
        "normalization_mapping": dict(norm_map),
        "optimizer_lr": 2.5e-05,
        "optimizer_betas": [0.9, 0.95],
    } | changes


def _before(
    family: str, config: Mapping[str, Any], offsets: Mapping[str, Any] | None, artifact: bool
) -> dict[str, Any]:
    """policy_preprocessor.json: π0 writes its prompt before it normalises, π0.5 after, since the state is in it."""
    told = {"max_length": config["tokenizer_max_length"], "task_key": "task", "padding_side": "right"}
    told |= {"padding": "max_length", "truncation": True}
    told |= {"tokenizer_name": "tokenizer" if artifact else "google/paligemma-3b-pt-224"}
    words = _step("tokenizer_processor", told) | ({"artifacts": {"tokenizer_name": "tokenizer"}} if artifact else {})
    text = [_step(PROMPT_STEP[family]), words]
    device = _step("device_processor", {"device": "cpu", "float_dtype": None})
    shift = [] if offsets is None else [_step("relative_actions_processor", offsets)]
    features = {**config["input_features"], **config["output_features"]}
    scale = _normaliser("normalizer_processor", features, config)
    first = [_step("rename_observations_processor", {"rename_map": {}}), _step("to_batch_processor")]
    middle = [*text, device, *shift, scale] if family == "pi0" else [*shift, scale, *text, device]
    steps = [*first, *middle]
    scale["state_file"] = f"policy_preprocessor_step_{steps.index(scale)}_normalizer_processor.safetensors"
    return {"name": "policy_preprocessor", "steps": steps}


def _after(config: Mapping[str, Any], relative: bool | None) -> dict[str, Any]:
    scale = _normaliser("unnormalizer_processor", config["output_features"], config)
    scale["state_file"] = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    shift = [] if relative is None else [_step("absolute_actions_processor", {"enabled": relative})]
    device = _step("device_processor", {"device": "cpu", "float_dtype": None})
    return {"name": "policy_postprocessor", "steps": [scale, *shift, device]}


def _step(name: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"registry_name": name, "config": dict(config or {})}


def _normaliser(name: str, features: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return _step(name, {"eps": 1e-08, "features": dict(features), "norm_map": config["normalization_mapping"]})


# openpi


def openpi(
    folder: Path,
    family: str,
    *,
    weights: Mapping[str, Tensor] | None = None,
    assets: Mapping[str, Stats] | None = None,
    width: int | None = None,
    converted: bool = False,
) -> Path:
    """A folder such as openpi's training leaves behind, less the optimizer.

    Args:
        folder: it is made.
        family: "pi0" or "pi05".
        weights: by default all but the tied embedding, float32.
        assets: name → statistics; by default those of one robot called "tiny".
        width: entries that statistics are padded to with zeros, as older versions did.
        converted: whether it comes from openpi's converter, which writes config.json, instead of its trainer, which
            leaves a pickle.
    """
    folder.mkdir(parents=True)
    kept = {name: value for name, value in tensors(family).items() if name != EMBEDDING} if weights is None else weights
    save_file(dict(kept), folder / "model.safetensors", {EMBEDDING: HEAD})
    for name, known in ({"tiny": statistics()} if assets is None else assets).items():
        file = folder / "assets" / name / "norm_stats.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"norm_stats": _norm_stats(known, width)}, indent=2))
    if converted:
        sizes_of = {"action_dim": sizes.PADDED_DIM, "action_horizon": sizes.CHUNK, "paligemma_variant": "gemma_2b"}
        told = {**sizes_of, "action_expert_variant": "gemma_300m", "precision": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(told, indent=2))
    else:
        (folder / "metadata.pt").write_bytes(POISON)
    return folder


POISON = b"cbuiltins\nexec\n(S'raise SystemExit(\"a pickle was opened\")'\ntR."
"""A pickle that ends whatever opens it."""


def _norm_stats(known: Stats, width: int | None) -> dict[str, dict[str, list[float]]]:
    return {
        {"state": "state", "action": "actions"}[name]: {
            key: _padded(values[key], width) for key in ("mean", "std", "q01", "q99") if key in values
        }
        for name, values in known.items()
    }


def _padded(values: np.ndarray, width: int | None) -> list[float]:
    return [*map(float, values), *([0.0] * (0 if width is None else width - len(values)))]


# the simulator


def simulator(cameras: Sequence[str] = ("front", "wrist"), size: tuple[int, int] = (48, 64)) -> SimulatorSpec:
    """One with the robot of `pi_sizes`, whose actions no limit cuts."""
    return SimulatorSpec(
        cameras=tuple(Camera(name, *size) for name in cameras),
        state_names=tuple(f"joint_{index}" for index in range(sizes.STATE_DIM)),
        action_names=tuple(sizes.ACTION_NAMES),
        action_low=(-100.0,) * sizes.ACTION_DIM,
        action_high=(100.0,) * sizes.ACTION_DIM,
        control_hz=10,
        horizon=20,
        tasks=tuple(Task(text, "only") for text in sizes.TASKS),
        words=("pick", "up", "the", "red", "cube"),
    )
