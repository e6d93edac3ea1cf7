"""The choice of trainable parameters: all, the action expert's, or low-rank adapters (LoRA, arXiv:2106.09685)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from embodied_rl.config.schema import LoraNode
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone

ADAPTER = "default"


def choose_trainable(network: FlowBackbone, train: str, lora: LoraNode) -> None:
    """Freeze the parameters that `train` excludes; add adapters first where it asks for them.

    Args:
        network: changed in place; existing adapters stay.
        train: "full", "expert" or "lora".
        lora: of the adapters.

    Raises:
        UserError: the network has no part that can be frozen apart, does not support adapters, or has other adapters.
    """
    if train == "expert":
        _freeze_prefix(network)
    if train == "lora":
        if not any(list_adapters(network)):
            add_adapters(network, lora)
        _check_settings(network, lora)
        wanted = {id(parameter) for parameter in (*list_adapter_parameters(network), *network.head_parameters())}
        for parameter in network.parameters():
            parameter.requires_grad_(id(parameter) in wanted)


def add_adapters(network: FlowBackbone, lora: LoraNode) -> None:
    """Add an adapter that changes nothing yet to each of `network.adapted_modules()`.

    Raises:
        UserError: the network names no modules, or peft is not installed.
        AssertionError: the adapted modules are not those that the network named.
    """
    names = network.adapted_modules()
    if not names:
        raise UserError("policy.train=lora: this policy is not made for adapters; use policy.train=full.")
    peft = _peft()
    settings = peft.LoraConfig(r=lora.rank, lora_alpha=_alpha(lora), lora_dropout=0.0, target_modules=names)
    peft.inject_adapter_in_model(settings, network)
    adapted = [name for name, _ in list_adapters(network)]
    assert sorted(adapted) == sorted(names), f"adapted {set(adapted) ^ set(names)} otherwise than asked for"


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


def _check_settings(network: FlowBackbone, lora: LoraNode) -> None:
    there = read_adapter_settings(network)
    assert there is not None
    if there != LoraNode(lora.rank, _alpha(lora)):
        told = f"policy.lora.rank={there.rank} policy.lora.alpha={there.alpha:g}"
        raise UserError(
            f"policy.lora.rank={lora.rank} with alpha {_alpha(lora):g}, but the checkpoint's adapters have rank "
            f"{there.rank} and alpha {there.alpha:g}: set {told}."
        )


def _alpha(lora: LoraNode) -> float:
    return lora.rank if lora.alpha is None else lora.alpha


def _freeze_prefix(network: FlowBackbone) -> None:
    prefix = network.prefix_parameters()
    if not prefix:
        raise UserError("policy.train=expert: this policy has no prefix that can be frozen apart; use train=full.")
    for parameter in prefix:
        parameter.requires_grad_(False)


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise UserError("policy.train=lora needs peft: pip install 'embodied-rl[lora]'.") from error
    return peft
