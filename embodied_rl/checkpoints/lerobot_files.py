"""Writer of the small files of a lerobot policy folder: configuration, processors, statistics and tokenizer.

Names of steps and keys are lerobot's (0.6; older versions lack the relative steps). Its loader refuses unknown
configuration keys, so only keys that every version knows are written.

Since lerobot 0.6.2 the tokenizer is in the folder, which `artifacts` of a step of policy_preprocessor.json names. Older
versions ignore `artifacts`, and pass the step's `tokenizer_name` to transformers, which downloads it. An export
therefore names the tokenizer on the hub if that is known, and always has the folder.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.checkpoints.lerobot import ACTION, AFTER, BEFORE, CONFIG, FAST, IMAGES, KINDS, STATE
from embodied_rl.checkpoints.lerobot_processors import ABSOLUTE, RELATIVE, TOKENIZER
from embodied_rl.checkpoints.weight_names import CheckpointSource, as_foreign
from embodied_rl.interfaces.backbone import Backbone
from embodied_rl.interfaces.errors import UserError

EPSILON = 1e-8
FOLDER, KEY = "tokenizer", "tokenizer_name"
MODES = {ours: theirs for theirs, ours in KINDS.items()} | {"limits": "MIN_MAX"}
"""Our kind of statistics → lerobot's mode of normalisation."""
STEPS_KEYS, DEFAULT_STEPS = ("num_inference_steps", "num_steps"), 10
"""lerobot's keys of the number of denoise steps, and its default."""

BEFORE_STATE, AFTER_STATE = (
    "policy_preprocessor_step_3_normalizer_processor.safetensors",
    "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
)


def make_files(network: Backbone, robot: Embodiment, policy: str, steps: int) -> dict[str, bytes]:
    """Return the files for a network that was not imported from this format, or cannot keep its files.

    `policy` is lerobot's name of the policy, `steps` K, the number of denoise steps.
    """
    config = make_configuration(network, robot, policy, steps)
    known = save(make_statistics(robot) | _make_image_statistics(network))
    before = _make_preprocessor(network, robot, config)
    texts = {CONFIG: config, BEFORE: before, AFTER: _make_postprocessor(network, robot, config)}
    stored = {BEFORE_STATE: known, AFTER_STATE: known}
    if network.READS_INSTRUCTIONS:
        pad = str(tokenizer.load_tokenizer(robot.tokenizer).id_to_token(0))  # id 0 is the padding token
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad}
        texts |= {f"{FOLDER}/tokenizer_config.json": told}
        stored |= {f"{FOLDER}/tokenizer.json": robot.tokenizer.encode()}
    return stored | {name: json.dumps(content, indent=2).encode() for name, content in texts.items()}


def keep_files(
    network: Backbone, source: CheckpointSource, robot: Embodiment, policy: str, steps: int
) -> dict[str, bytes]:
    """Return the imported files of a network, with its current statistics and numbers of executed actions and steps.

    If the processor files hold no statistics, or cannot hold the current ones, new ones are made.
    """
    config, horizon = json.loads(source.files[CONFIG]), network.spec.horizon
    told = as_foreign(network).checkpoint_config("lerobot", steps)
    executed = told.get("n_action_steps", robot.executed)
    default = config.get("num_train_timesteps", DEFAULT_STEPS)  # of Diffusion Policy
    changed = {"n_action_steps": executed} if min(config.get("n_action_steps") or horizon, horizon) != executed else {}
    changed |= {key: told[key] for key in STEPS_KEYS if key in told and (config.get(key) or default) != told[key]}
    files = source.files | ({CONFIG: json.dumps(config | changed, indent=4).encode()} if changed else {})
    if network.READS_INSTRUCTIONS and not any(name.endswith("tokenizer.json") for name in files):
        files[f"{FOLDER}/tokenizer.json"] = robot.tokenizer.encode()
    if source.holds(robot.state, robot.action):
        return files
    statistics = _to_feature_names(source, robot)
    if statistics is None:
        others = {name: content for name, content in files.items() if not name.startswith("policy_")}
        return others | make_files(network, robot, policy, steps)
    for name in [name for name in files if name.endswith(".safetensors")]:
        stored = load(files[name]).items()
        others = {key: value for key, value in stored if key.rpartition(".")[0] not in (STATE, ACTION)}
        files[name] = save(others | statistics)
    return files


def _to_feature_names(source: CheckpointSource, robot: Embodiment) -> dict[str, Tensor] | None:
    """Return the current statistics by `<feature>.<statistic>`, in the kinds of the files; None if not expressible."""
    if not source.where or source.state is None or source.action is None:
        return None
    pairs = {STATE: (robot.state, source.state.kind), ACTION: (robot.action, source.action.kind)}
    if any(kind == "identity" and known.kind != "identity" for known, kind in pairs.values()):
        return None
    entries = (_entries(feature, replace(known, kind=kind)) for feature, (known, kind) in pairs.items())
    return {name: value for found in entries for name, value in found.items()}


def make_configuration(network: Backbone, robot: Embodiment, policy: str, steps: int) -> dict[str, Any]:
    """Return the content of config.json."""
    height, width = robot.image_size
    seen = {IMAGES + view: _feature("VISUAL", 3, height, width) for view in robot.view_names}
    padded = {
        "chunk_size": network.spec.horizon,
        "max_state_dim": network.spec.state_dim,
        "max_action_dim": network.spec.action_dim,
        "tokenizer_max_length": network.spec.token_length,
    }
    return {
        "type": policy,
        "n_obs_steps": 1,
        "input_features": seen | {STATE: _feature("STATE", len(robot.state_names))},
        "output_features": {ACTION: _feature("ACTION", len(robot.action_names))},
        "device": "cpu",
        "normalization_mapping": _modes(network, robot),
        "n_action_steps": robot.executed,
        **(padded if network.READS_INSTRUCTIONS else {}),
        **as_foreign(network).checkpoint_config("lerobot", steps),
    }


def make_statistics(robot: Embodiment) -> dict[str, Tensor]:
    """Return the statistics of state and action as float32 tensors, by `<feature>.<statistic>`."""
    return {**_entries(STATE, robot.state), **_entries(ACTION, robot.action)}


def _make_image_statistics(network: Backbone) -> dict[str, Tensor]:
    """Return means and deviations [3, 1, 1] of the images that a network normalises."""
    found = as_foreign(network).checkpoint_statistics().items()
    pairs = ((f"{IMAGES}{camera}", mean, np.subtract(std, EPSILON)) for camera, (mean, std) in found)
    parts = ((f"{name}.{key}", value) for name, mean, std in pairs for key, value in (("mean", mean), ("std", std)))
    return {name: torch.tensor(np.asarray(value), dtype=torch.float32)[:, None, None] for name, value in parts}


def _entries(feature: str, known: Normalisation) -> dict[str, Tensor]:
    center, scale = np.asarray(known.center), np.asarray(known.scale)
    low, high = center - scale, center + scale
    found: Mapping[str, Any] = {
        "mean_std": {"mean": center, "std": np.maximum(scale - EPSILON, 0)},
        "quantiles": {"q01": low, "q99": high},
        "quantile10": {"q10": low, "q90": high},
        "identity": {"mean": center, "std": scale},
    }.get(known.kind, {"min": low, "max": high})
    return {f"{feature}.{name}": torch.tensor(value, dtype=torch.float32) for name, value in found.items()}


def _make_preprocessor(network: Backbone, robot: Embodiment, config: Mapping[str, Any]) -> dict[str, Any]:
    features = {**config["input_features"], **config["output_features"]}
    steps = [
        _step("rename_observations_processor", {"rename_map": {}}),
        _step("to_batch_processor", {}),
        *([] if _is_plain(network, robot) else [_step(RELATIVE, _make_relative(robot))]),
        _step("normalizer_processor", _normaliser(features, config)) | {"state_file": BEFORE_STATE},
    ]
    if network.READS_INSTRUCTIONS:
        length = {"max_length": network.spec.token_length, "task_key": "task", "padding_side": "right"}
        settings = {**length, "padding": "max_length", "truncation": True, **_make_tokenizer_setting(network, robot)}
        steps.append(_step(as_foreign(network).LEROBOT_PROMPT, {}))
        steps.append(_step(TOKENIZER, settings) | {"artifacts": {"tokenizer_name": FOLDER}})
        further = as_foreign(network).lerobot_steps().items()
        steps += [{"registry_name": name, **entries} for name, entries in further]
    steps.append(_step("device_processor", {"device": "cpu", "float_dtype": None}))
    return {"name": "policy_preprocessor", "steps": steps}


def _is_plain(network: Backbone, robot: Embodiment) -> bool:
    """Return whether the steps of relative actions are left out, as lerobot does for policies without words."""
    return not network.READS_INSTRUCTIONS and not robot.relative


def _make_postprocessor(network: Backbone, robot: Embodiment, config: Mapping[str, Any]) -> dict[str, Any]:
    steps = [
        _step("unnormalizer_processor", _normaliser(config["output_features"], config)) | {"state_file": AFTER_STATE},
        *([] if _is_plain(network, robot) else [_step(ABSOLUTE, {"enabled": bool(robot.relative)})]),
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_postprocessor", "steps": steps}


def _make_relative(robot: Embodiment) -> dict[str, Any]:
    pairs = list(zip(robot.action_names, robot.relative, strict=False))
    absolute = [name for name, source in pairs if source < 0]
    for name, source in pairs:
        if source >= 0 and any(part.lower() in name.lower() for part in absolute):
            raise UserError(
                f"lerobot recognises absolute actions by parts of their names, and {name!r} has one.",
                code="export-not-expressible",
            )
    return {"enabled": bool(robot.relative), "exclude_joints": absolute, "action_names": list(robot.action_names)}


def _normaliser(features: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {"eps": EPSILON, "features": features, "norm_map": config["normalization_mapping"]}


def _modes(network: Backbone, robot: Embodiment) -> dict[str, str]:
    seen = "MEAN_STD" if as_foreign(network).checkpoint_statistics() else "IDENTITY"
    return {"VISUAL": seen, "STATE": MODES[robot.state.kind], "ACTION": MODES[robot.action.kind]}


def _step(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def _feature(kind: str, *shape: int) -> dict[str, Any]:
    return {"type": kind, "shape": list(shape)}


def make_parent(name: str, out: Path) -> Path:
    """Return the path of a file below `out`, after creating its folder."""
    file = out / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _make_tokenizer_setting(network: Backbone, robot: Embodiment) -> dict[str, str]:
    """Return the setting of the tokenizer's step: its name on the hub if it is known, or else the folder."""
    imported = _find_name(network.source.files.get(BEFORE, b"{}")) if network.source is not None else None
    if imported and imported != FOLDER:
        return {KEY: imported}
    cls, loaded = type(as_foreign(network)), tokenizer.load_tokenizer(robot.tokenizer)
    same = bool(cls.HUB_TOKENS) and all(loaded.token_to_id(token) == index for token, index in cls.HUB_TOKENS.items())
    return {KEY: (cls.HUB_TOKENIZER if same else None) or FOLDER}  # of the published policy, if the robot has that one


def _find_name(before: bytes) -> str | None:
    """Return the tokenizer's name in the content of a policy_preprocessor.json; None if it has none."""
    steps = [step for step in json.loads(before).get("steps", []) if step.get("registry_name") == TOKENIZER]
    return steps[0].get("config", {}).get(KEY) if steps else None


def describe_versions(out: Path) -> Iterator[str]:
    """Yield notes on tokenizers in an exported folder that lerobot, or its versions before 0.6.2, do not find."""
    if (out / FAST).is_dir():
        yield (
            f"lerobot reads the FAST tokenizer with its Python file, which is not kept here: copy "
            f"processing_action_tokenizer.py into {out / FAST}, or let lerobot load action_tokenizer_name of {CONFIG}."
        )
    if (out / BEFORE).is_file() and _find_name((out / BEFORE).read_bytes()) == FOLDER:
        yield (
            "lerobot before 0.6.2 does not look for a tokenizer in the folder; give its make_pre_post_processors "
            f'preprocessor_overrides={{"{TOKENIZER}": {{"{KEY}": "{out / FOLDER}"}}}}.'
        )
