"""The small files of a lerobot policy folder: configuration, processors, statistics and tokenizer.

Names of steps and keys are lerobot's (0.6; older versions lack `artifacts` and the relative steps). Its loader refuses
configuration keys that it does not know, so no more are written than every version has.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.normalisation import Normalisation
from embodied_rl.formats.layout import Source
from embodied_rl.formats.lerobot import ACTION, AFTER, BEFORE, CONFIG, IMAGES, STATE
from embodied_rl.interfaces.policy import FlowBackbone

EPSILON = 1e-8
MODES = {
    "identity": "IDENTITY",
    "mean_std": "MEAN_STD",
    "quantiles": "QUANTILES",
    "min_max": "MIN_MAX",
    "limits": "MIN_MAX",
}
BEFORE_STATE, AFTER_STATE = (
    "policy_preprocessor_step_3_normalizer_processor.safetensors",
    "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
)


def made(network: FlowBackbone, robot: Embodiment, policy: str, steps: int) -> dict[str, bytes]:
    """Files for a network that does not come from this format.

    Args:
        network: what is exported.
        robot: what it is attached to.
        policy: lerobot's name of it.
        steps: K, denoise steps.
    """
    config = configuration(network, robot, policy, steps)
    known = save(statistics(robot))
    texts = {
        CONFIG: config,
        BEFORE: _before(network, robot, config),
        AFTER: _after(robot, config),
        "tokenizer/tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _pad(robot)},
    }
    written = {name: json.dumps(content, indent=2).encode() for name, content in texts.items()}
    return written | {"tokenizer/tokenizer.json": robot.tokenizer.encode(), BEFORE_STATE: known, AFTER_STATE: known}


def kept(source: Source, robot: Embodiment) -> dict[str, bytes]:
    """The files a network came with; statistics that are others today are written into them."""
    files = {name: text.encode() for name, text in source.texts.items()} | dict(source.blobs)
    if robot.state == source.state and robot.action == source.action:
        return files
    today = statistics(robot)
    return files | {name: save(load(blob) | today) for name, blob in source.blobs.items()}


def configuration(network: FlowBackbone, robot: Embodiment, policy: str, steps: int) -> dict[str, Any]:
    """config.json."""
    height, width = robot.image_size
    seen = {IMAGES + view: _feature("VISUAL", 3, height, width) for view in robot.seen_as}
    return {
        "type": policy,
        "n_obs_steps": 1,
        "input_features": seen | {STATE: _feature("STATE", len(robot.state_names))},
        "output_features": {ACTION: _feature("ACTION", len(robot.action_names))},
        "device": "cpu",
        "normalization_mapping": _modes(robot),
        "chunk_size": network.spec.horizon,
        "n_action_steps": robot.executed,
        "max_state_dim": network.spec.state_dim,
        "max_action_dim": network.spec.action_dim,
        "tokenizer_max_length": network.spec.token_length,
        **network.checkpoint_config("lerobot", steps),
    }


def statistics(robot: Embodiment) -> dict[str, Tensor]:
    """`<feature>.<statistic>` → float32 tensors, of the kind each is normalised with."""
    return {**_entries(STATE, robot.state), **_entries(ACTION, robot.action)}


def _entries(feature: str, known: Normalisation) -> dict[str, Tensor]:
    center, scale = np.asarray(known.center), np.asarray(known.scale)
    low, high = center - scale, center + scale
    found: Mapping[str, Any] = {
        "mean_std": {"mean": center, "std": np.maximum(scale - EPSILON, 0)},
        "quantiles": {"q01": low, "q99": high},
        "identity": {"mean": center, "std": scale},
    }.get(known.kind, {"min": low, "max": high})
    return {f"{feature}.{name}": torch.tensor(value, dtype=torch.float32) for name, value in found.items()}


def _before(network: FlowBackbone, robot: Embodiment, config: Mapping[str, Any]) -> dict[str, Any]:
    length = {"max_length": network.spec.token_length, "task_key": "task", "padding_side": "right"}
    told = {**length, "padding": "max_length", "truncation": True, "tokenizer_name": "tokenizer"}
    features = {**config["input_features"], **config["output_features"]}
    steps = [
        _step("rename_observations_processor", {"rename_map": {}}),
        _step("to_batch_processor", {}),
        _step("relative_actions_processor", _relative(robot)),
        _step("normalizer_processor", _normaliser(features, robot)) | {"state_file": BEFORE_STATE},
        _step(network.LEROBOT_PROMPT, {}),
        _step("tokenizer_processor", told) | {"artifacts": {"tokenizer_name": "tokenizer"}},
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_preprocessor", "steps": steps}


def _after(robot: Embodiment, config: Mapping[str, Any]) -> dict[str, Any]:
    steps = [
        _step("unnormalizer_processor", _normaliser(config["output_features"], robot)) | {"state_file": AFTER_STATE},
        _step("absolute_actions_processor", {"enabled": bool(robot.relative)}),
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_postprocessor", "steps": steps}


def _relative(robot: Embodiment) -> dict[str, Any]:
    absolute = [name for name, source in zip(robot.action_names, robot.relative, strict=False) if source < 0]
    return {"enabled": bool(robot.relative), "exclude_joints": absolute, "action_names": list(robot.action_names)}


def _normaliser(features: Mapping[str, Any], robot: Embodiment) -> dict[str, Any]:
    return {"eps": EPSILON, "features": features, "norm_map": _modes(robot)}


def _modes(robot: Embodiment) -> dict[str, str]:
    return {"VISUAL": "IDENTITY", "STATE": MODES[robot.state.kind], "ACTION": MODES[robot.action.kind]}


def _step(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def _feature(kind: str, *shape: int) -> dict[str, Any]:
    return {"type": kind, "shape": list(shape)}


def _pad(robot: Embodiment) -> str:
    """The token that id 0 stands for."""
    from embodied_rl.actors import tokenizer

    return str(tokenizer.load(robot.tokenizer).id_to_token(0))


def folder_of(name: str, out: Path) -> Path:
    """Where a file goes, its folder made."""
    file = out / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
