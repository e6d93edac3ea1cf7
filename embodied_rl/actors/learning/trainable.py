"""Choice of trainable parameters: all, the action expert's, or low-rank adapters (LoRA, arXiv:2106.09685)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import LoraNode

ADAPTER = "default"


def choose_trainable(network: FlowBackbone, train: str, lora: LoraNode) -> None:
    """Freeze the parameters that `train` ("full", "expert", "lora") excludes; add missing adapters first for "lora".

    Raises:
        UserError: the network has no separate prefix, does not support adapters, or has other adapters.
    """
    if train == "expert":
        prefix = network.prefix_parameters()
        if not prefix:
            message = "policy.train=expert: this policy has no prefix that can be frozen apart; use train=full."
            raise UserError(message, code="train-expert-unsupported")
        for parameter in prefix:
            parameter.requires_grad_(False)
    if train == "lora":
        if not any(list_adapters(network)):
            add_adapters(network, lora)
        existing, wanted = read_adapter_settings(network), LoraNode(lora.rank, _alpha(lora))
        assert existing is not None
        if existing != wanted:
            raise UserError(
                f"policy.lora.rank={wanted.rank} with alpha {wanted.alpha:g}, but the checkpoint's adapters have rank "
                f"{existing.rank} and alpha {existing.alpha:g}: set policy.lora.rank={existing.rank} "
                f"policy.lora.alpha={existing.alpha:g}.",
                code="lora-settings-mismatch",
            )
        learned = {id(parameter) for parameter in (*list_adapter_parameters(network), *network.head_parameters())}
        for parameter in network.parameters():
            parameter.requires_grad_(id(parameter) in learned)


def add_adapters(network: FlowBackbone, lora: LoraNode) -> None:
    """Add an adapter with zero effect to each of `network.adapted_modules()`.

    Raises:
        UserError: the network names no modules, or peft is not installed.
        AssertionError: the adapted modules are not those that the network named.
    """
    names = network.adapted_modules()
    if not names:
        raise UserError(
            "policy.train=lora: this policy is not made for adapters; use policy.train=full.", code="lora-unsupported"
        )
    try:
        import peft
    except ModuleNotFoundError as error:
        message = "policy.train=lora needs peft: pip install 'embodied-rl[lora]'."
        raise UserError(message, code="package-missing") from error
    alpha: Any = _alpha(lora)  # peft declares int, and computes with any number
    settings = peft.LoraConfig(r=lora.rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=names)
    peft.inject_adapter_in_model(settings, network)
    adapted = [name for name, _ in list_adapters(network)]
    assert sorted(adapted) == sorted(names), f"adapted {set(adapted) ^ set(names)} instead of the requested modules"


def list_adapters(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return an iterator over names and modules of the adapted linear maps."""
    return ((name, module) for name, module in network.named_modules() if hasattr(module, "lora_A"))


def list_adapter_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of all adapters."""
    return [parameter for name, parameter in network.named_parameters() if ".lora_" in name]


def read_adapter_settings(network: nn.Module) -> LoraNode | None:
    """Return the settings that all adapters of a network share; None without adapters."""
    module = next((module for _, module in list_adapters(network)), None)
    return None if module is None else LoraNode(module.r[ADAPTER], float(module.lora_alpha[ADAPTER]))


@torch.no_grad()
def merge_adapters(network: nn.Module) -> None:
    """Add each adapter's map to the weight it adapts, and remove the adapters."""
    for name, module in list(list_adapters(network)):
        module.merge()
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, module.get_base_layer())


def _alpha(lora: LoraNode) -> float:
    return lora.rank if lora.alpha is None else lora.alpha
