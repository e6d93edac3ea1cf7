"""Policy files of networks and actors; policy_format.py has what is in them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import sharded
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.actors.learning.trainable import add_adapters, merge_adapters, read_adapter_settings
from embodied_rl.actors.learning.weights import gather_whole, load_full_weights
from embodied_rl.actors.start_noise import StartNoise, StartNoiseSettings
from embodied_rl.checkpoints.foreign import check_shapes
from embodied_rl.checkpoints.policy_format import (
    BACKBONE,
    PolicyMetadata,
    read_file,
    read_metadata,
    read_shapes,
    write_file,
)
from embodied_rl.checkpoints.weight_names import build_empty, explain_sizes
from embodied_rl.config import plugins
from embodied_rl.interfaces.backbone import FlowBackbone, PolicySpec
from embodied_rl.interfaces.policy import Actor
from embodied_rl.system.untrusted_files import name_file

START = "start_noise."


def save_backbone(
    path: Path,
    backbone: FlowBackbone,
    embodiment: Embodiment,
    policy: str,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a network without sampler and critic, such as a base checkpoint; `dtype` float16 halves the file size.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an existing file stays unchanged.
    """
    metadata = _make_metadata(backbone, embodiment, policy, config, extra)
    write_file(path, {BACKBONE + name: value for name, value in backbone.state_dict().items()}, metadata, dtype)


def save_actor(
    path: Path,
    actor: Actor,
    policy: str,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a network with its sampler and critic; `dtype` float16 halves the file size.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an existing file stays unchanged.
    """
    metadata = _make_metadata(actor.network, actor.embodiment, policy, config, extra)
    write_file(path, gather_whole(actor), replace(metadata, start_noise=find_start_settings(actor)), dtype)


def load_network(
    path: Path,
    make: Callable[[PolicyMetadata], FlowBackbone],
    *,
    merged: bool = True,
    can_be_empty: Callable[[PolicyMetadata], bool] = lambda metadata: True,
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network of a policy file, with its weights as float32; ignore the file's sampler and critic.

    Args:
        make: a function that builds the network from the file's metadata, or refuses it; see `check_config`.
        merged: whether to merge adapters into the weights, or to keep them separate.
        can_be_empty: whether the network may be built without memory; see `build_empty`.

    Raises:
        CheckpointError: the file is missing, damaged or a pickle, or its tensors belong to another network.
    """
    metadata, tensors = read_file(path)
    with explain_sizes(path):
        backbone = build_empty(lambda: make(metadata), can_be_empty(metadata))
        if metadata.adapters is not None:
            with name_file(path):
                add_adapters(backbone, metadata.adapters)
    own = {name.removeprefix(BACKBONE): value for name, value in tensors.items() if name.startswith(BACKBONE)}
    _load(path, backbone, own, BACKBONE)
    backbone.restore_buffers()
    backbone.source, backbone.prefix_trained_to = metadata.source, metadata.prefix_trained_to
    if merged:
        merge_adapters(backbone)
    return backbone, metadata.embodiment


def load_start_noise(path: Path, spec: PolicySpec) -> StartNoise | None:
    """Return the start-noise policy of a policy file for a network of these sizes; None if it has none.

    It does not verify the file's checksums, as `load_network` does.

    Raises:
        CheckpointError: the file is missing or damaged, or its tensors are of another network.
    """
    metadata = read_metadata(path)
    if metadata.start_noise is None:
        return None
    made = StartNoise(metadata.start_noise, spec)
    with safe_open(path, "pt") as opened:
        names = [name for name in opened.keys() if name.startswith(START)]  # noqa: SIM118
        tensors = {name.removeprefix(START): opened.get_tensor(name) for name in names}
    _load(path, made, tensors, START)
    return made


def find_start_settings(actor: Actor) -> StartNoiseSettings | None:
    """Return the settings of an actor's start-noise policy; None without one."""
    made = getattr(actor, "start_noise", None)
    return None if made is None else made.settings


def outline_network(
    path: Path, make: Callable[[PolicyMetadata], FlowBackbone], *, merged: bool = True
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network of a policy file on the meta device, without reading weights; see `load_network`.

    Raises:
        CheckpointError: the file is missing, damaged or a pickle, or its tensors belong to another network.
    """
    metadata, shapes = read_metadata(path), read_shapes(path)

    def build() -> FlowBackbone:
        with explain_sizes(path), torch.device("meta"), name_file(path):
            return make(metadata)

    backbone = build()
    if metadata.adapters is not None:
        add_adapters(backbone, metadata.adapters)
    own = {name: tuple(value.shape) for name, value in backbone.state_dict().items()}
    stored = {name.removeprefix(BACKBONE): shape for name, shape in shapes.items() if name.startswith(BACKBONE)}
    check_shapes(path, own, stored, BACKBONE)
    backbone = build() if merged and metadata.adapters is not None else backbone
    backbone.prefix_trained_to = metadata.prefix_trained_to
    return backbone, metadata.embodiment


def check_config(path: Path, metadata: PolicyMetadata, policy: str, given: Mapping[str, Any]) -> None:
    """Check that a file holds the given policy, with the given configuration values.

    Raises:
        CheckpointError: the policy or a value differs; the message names the key.
    """
    if metadata.policy != policy:
        installed = metadata.policy in plugins.list_names("policies")
        remedy = f"set policy={metadata.policy}" if installed else "install the package of that policy"
        raise CheckpointError(
            f"{path} holds policy {metadata.policy!r}, not {policy!r}: {remedy}.", code="checkpoint-of-another-policy"
        )
    plain = json.loads(json.dumps(dict(given)))
    for key, value in plain.items():
        if key in metadata.config and metadata.config[key] != value:
            stored = metadata.config[key]
            raise CheckpointError(
                f"{path} was made with policy.{key}={stored}, not {value}: leave policy.{key} out, it is in the file.",
                code="key-contradicts-checkpoint",
            )


def load_actor(path: Path, actor: Actor) -> PolicyMetadata:
    """Load a file's weights into an actor with the same network, sampler and critic; return the file's metadata.

    The guidance of a policy with a condition is the file's, too.

    Raises:
        CheckpointError: the file is missing, damaged, a pickle, or of another network or robot; the actor is unchanged.
    """
    metadata, tensors = read_file(path)
    if metadata.embodiment != actor.embodiment and not _differ_in_guidance(metadata.embodiment, actor.embodiment):
        mine, stored = asdict(actor.embodiment), asdict(metadata.embodiment)
        names = ", ".join(name for name in mine if mine[name] != stored[name])
        raise CheckpointError(
            f"{path} was trained for another embodiment; these entries differ: {names}.",
            code="checkpoint-of-another-embodiment",
        )
    if metadata.start_noise != (mine := find_start_settings(actor)):
        raise CheckpointError(
            f"{path} has start noise {metadata.start_noise}, and this policy {mine}.",
            code="checkpoint-of-another-network",
        )
    _load(path, actor, tensors, "")
    actor.network.prefix_trained_to = metadata.prefix_trained_to
    actor.embodiment = metadata.embodiment
    return metadata


def _differ_in_guidance(one: Embodiment, other: Embodiment) -> bool:
    """Return whether two embodiments have the same condition and differ in nothing but its guidance."""
    return one.condition == other.condition != "" and one == replace(other, guidance=one.guidance)


def _make_metadata(
    backbone: FlowBackbone,
    embodiment: Embodiment,
    policy: str,
    config: Mapping[str, Any],
    extra: Mapping[str, Any] | None,
) -> PolicyMetadata:
    names = backbone.spec.auxiliary_names
    adapters, trained_to = read_adapter_settings(backbone), backbone.prefix_trained_to
    return PolicyMetadata(policy, config, embodiment, names, extra or {}, adapters, backbone.source, trained_to)


def _load(path: Path, module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Copy tensors into a module; if a name or shape differs, raise `CheckpointError` and change nothing."""
    own = gather_whole(module)
    shapes, stored = ({name: tuple(value.shape) for name, value in each.items()} for each in (own, tensors))
    check_shapes(path, shapes, stored, prefix)
    if sharded.find_sharding(module) is not None:
        for name, value in own.items():
            value.copy_(tensors[name])
        load_full_weights(module)
        return
    on_meta = any(value.is_meta for value in own.values())
    module.load_state_dict({name: value.to(own[name].dtype) for name, value in tensors.items()}, assign=on_meta)
