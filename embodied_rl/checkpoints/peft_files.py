"""Writer of adapters (LoRA, arXiv:2106.09685) in the format of the package peft, for a lerobot policy.

    adapter_config.json          settings, the adapted modules, and the name of the base
    adapter_model.safetensors    base_model.model.<module>.lora_A.weight [r, inputs], ….lora_B.weight [outputs, r], and
                                 base_model.model.<module>.weight of fully trained modules (`modules_to_save`)

The names of modules are lerobot's. lerobot reads such a folder if its config.json has `use_peft`: it loads the
base, then the adapters. Sources: peft/utils/save_and_load.py of peft 0.21, lerobot/policies/factory.py of lerobot 0.6.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.learning.trainable import ADAPTER, list_adapters, read_adapter_settings
from embodied_rl.checkpoints import detection, weight_names
from embodied_rl.checkpoints.lerobot import CONFIG
from embodied_rl.checkpoints.weight_names import PREFIX, as_foreign
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WRAPPED = "base_model.model."
"""peft's name of the model that it wraps."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def make_files(network: FlowBackbone, base: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the small files of a folder with adapters, from those (`files`) of a whole checkpoint of lerobot's.

    `base`: folder or hub name of the checkpoint to adapt.
    """
    config = json.loads(files[CONFIG]) | {"use_peft": True}
    settings = make_settings(network, base)
    return {**files, CONFIG: json.dumps(config, indent=4).encode(), SETTINGS: json.dumps(settings, indent=2).encode()}


def make_settings(network: FlowBackbone, base: str) -> dict[str, Any]:
    """Return the content of adapter_config.json; `base`: folder or hub name of the checkpoint to adapt."""
    lora = read_adapter_settings(network)
    assert lora is not None, "the caller has checked that there are adapters"
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "revision": None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "target_modules": [_their_name(network, name) for name, _ in list_adapters(network)],
        "modules_to_save": [_their_name(network, name) for name in list_heads(network)],
    }


def make_tensors(network: FlowBackbone) -> dict[str, Tensor]:
    """Return the adapters and the fully trained modules, by peft's names."""
    found = {
        f"{WRAPPED}{_their_name(network, name)}.{part}.weight": getattr(module, part)[ADAPTER].weight
        for name, module in list_adapters(network)
        for part in ("lora_A", "lora_B")
    }
    for name in list_heads(network):
        for part, value in network.get_submodule(name).named_parameters():
            found[f"{WRAPPED}{_their_name(network, name)}.{part}"] = value
    return {name: value.detach().cpu().contiguous() for name, value in found.items()}


def list_heads(network: FlowBackbone) -> list[str]:
    """Return the names of the modules that are fully trained in addition to the adapters."""
    heads = {id(parameter) for parameter in network.head_parameters()}
    names = [name.rpartition(".")[0] for name, value in network.named_parameters() if id(value) in heads]
    return list(dict.fromkeys(names))


def check_base_name(base: str, policy: str) -> None:
    """Check that `base` is a lerobot folder with this policy, or can be a name on the hub.

    Raises:
        UserError: `base` is neither.
    """
    if not Path(base).is_dir():
        if Path(base).exists() or not HUB_NAME.fullmatch(base):
            raise UserError(
                f"base={base}: there is no such folder, and names on the hub are <owner>/<name>.", code="base-missing"
            )
        return
    if (form := detection.detect_format(Path(base))) != "lerobot":
        what = "not a checkpoint folder" if form is None else f"a checkpoint of {form}"
        raise UserError(
            f"base={base} is {what}; adapters in peft's layout are for one of lerobot's.", code="base-format-mismatch"
        )
    found = detection.read_checkpoint(Path(base))
    if found.policy != policy:
        raise UserError(
            f"base={base} holds policy {found.policy!r}; the adapters are of {policy!r}.",
            code="checkpoint-of-another-policy",
        )


def check_base_weights(network: FlowBackbone, base: Path) -> None:
    """Check that a folder of lerobot's holds the weights under the adapters, as the folder rounds them.

    Raises:
        UserError: a tensor differs, has another shape, or is missing; the message names the first.
    """
    found, cls = detection.read_checkpoint(base), type(as_foreign(network))

    def is_first(name: str) -> bool:  # the first copy of a weight comes last, and replaces the second copy
        return weight_names.strip_outermost(name) not in cls.CHECKPOINT_COPIES

    theirs = {weight_names.to_our_name(cls, name): name for name in sorted(found.tensors, key=is_first)}
    heads = {id(parameter) for parameter in network.head_parameters()}
    for parameter_name, parameter in network.named_parameters():
        if ".lora_" in parameter_name or id(parameter) in heads:
            continue  # trained
        name, value = parameter_name.replace(".base_layer.", "."), parameter.detach()
        stored = found.tensors.load(theirs[name]) if name in theirs else torch.empty(0)
        if stored.shape != value.shape or not torch.equal(value.cpu().to(stored.dtype), stored):
            raise UserError(
                f"base={base} is not the base of the adapters: {theirs.get(name, name)} differs. Give the "
                "checkpoint that the run started from.",
                code="base-weights-differ",
            )


def _their_name(network: FlowBackbone, module: str) -> str:
    """Return lerobot's name of a module."""
    return PREFIX + weight_names.to_their_name(type(as_foreign(network)), f"{module}.").removesuffix(".")
