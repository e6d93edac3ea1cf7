"""Attach a checkpoint of another project to a simulator: build the network, its weights and the embodiment."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import detection, fitting, foreign, weight_names
from embodied_rl.checkpoints.foreign import FoundCheckpoint, read_prefix_length
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode
from embodied_rl.system.untrusted_files import name_file

Make = Callable[[type[Any], Any], Callable[[Embodiment, tuple[str, ...]], FlowBackbone]]
"""The type of `embodied_rl.assembly.build.choose_backbone_maker`."""


def attach_network(
    path: Path, node: PolicyNode, cls: type[Any], spec: SimulatorSpec, make: Make
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network of a checkpoint folder, with its weights, and its embodiment for a simulator.

    Args:
        path: the checkpoint folder; `detection.detect_format` must know its format.
        node: the user's policy configuration.
        cls: the policy's class.
        spec: the simulator's specification.
        make: see `Make`.

    Raises:
        UserError: something does not fit, is missing, or must be chosen; the message names the key to set.
    """
    found, build, embodiment = _prepare(path, node, cls, spec, make)
    network = weight_names.build_empty(build)
    fitted = weight_names.fit_checkpoint(type(weight_names.as_foreign(network)), found, network)
    weight_names.load_weights(found, fitted, network)
    network.source = fitted
    return network, embodiment


def outline_network(
    path: Path, node: PolicyNode, cls: type[Any], spec: SimulatorSpec, make: Make
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network of a checkpoint folder on the meta device, without reading weights; see `attach_network`.

    Raises:
        UserError: see `attach_network`.
    """
    found, build, embodiment = _prepare(path, node, cls, spec, make)
    with torch.device("meta"):
        network = build()
    weight_names.match_tensors(type(weight_names.as_foreign(network)), found, network)
    return network, embodiment


def _prepare(
    path: Path, node: PolicyNode, cls: type[Any], spec: SimulatorSpec, make: Make
) -> tuple[FoundCheckpoint, Callable[[], FlowBackbone], Embodiment]:
    """Return a checkpoint, a function that builds its network with new weights, and the embodiment."""
    found = detection.read_checkpoint(path, find_asset(node))
    if found.policy not in (None, node.name):
        raise CheckpointError(
            f"{path} holds policy {found.policy!r}, not {node.name!r}: set policy={found.policy}.",
            code="checkpoint-of-another-policy",
        )
    options = find_network_sizes(found, cls, node.options)
    embodiment = _make_embodiment(found, node, spec, options)
    trained_to = read_prefix_length(found.tensors.metadata, str(path))

    def build() -> FlowBackbone:
        network = make(cls, options)(embodiment, ())
        network.prefix_trained_to = trained_to
        return network

    return found, build, embodiment


def _make_embodiment(found: FoundCheckpoint, node: PolicyNode, spec: SimulatorSpec, options: Any) -> Embodiment:
    for name, count, most in (
        ("action", len(spec.action_names), options.action_dim),
        ("state", len(spec.state_names), options.state_dim),
    ):
        if count > most:
            raise UserError(
                f"The simulator has {count} {name} entries, the checkpoint's network at most {most}: choose a "
                f"simulator (or a setting of it) with {most} or fewer, or another checkpoint.",
                code="checkpoint-too-small",
            )
    tokenizer_text = _read_tokenizer(found, node)
    views = fitting.match_views(found, spec, node.cameras)
    statistics = fitting.choose_statistics(found, spec, None if find_asset(node) else node.statistics)
    embodiment = fitting.make_embodiment(
        found, spec, views, statistics,
        horizon=options.horizon, token_length=options.token_length, tokenizer=tokenizer_text,
    )  # fmt: skip
    if embodiment.vocabulary_size > options.vocabulary:
        raise UserError(
            f"The tokenizer has {embodiment.vocabulary_size} tokens, the checkpoint's network {options.vocabulary}: "
            "give policy.tokenizer=<file or folder>, that of the language model the policy was made from.",
            code="tokenizer-does-not-fit",
        )
    relative = embodiment.relative if node.relative is None else fitting.find_relative(spec, node.relative)
    return replace(embodiment, gripper=node.gripper, relative=relative)


def find_asset(node: PolicyNode) -> str | None:
    """Return `policy.statistics` if it names an asset inside the checkpoint; None if it is a path or not set."""
    return node.statistics if node.statistics is not None and not Path(node.statistics).exists() else None


def _read_tokenizer(found: FoundCheckpoint, node: PolicyNode) -> str:
    """Return the tokenizer of `policy.tokenizer`, or the checkpoint's, after checking that it can be loaded."""
    text, source = found.tokenizer, found.folder
    if node.tokenizer is not None:
        path = Path(node.tokenizer)
        source = path / "tokenizer.json" if path.is_dir() else path
        if not source.is_file():
            raise UserError(f"policy.tokenizer={node.tokenizer}: there is no {source}.", code="tokenizer-missing")
        text = foreign.read_text(source)
    if text or node.tokenizer is not None:
        with name_file(source):
            tokenizer.load_tokenizer(text)
    return text


def find_network_sizes(found: FoundCheckpoint, cls: type[Any], given: Mapping[str, object]) -> Any:
    """Return the configuration of the network that a checkpoint holds."""
    with name_file(found.folder):
        return freeze_config(cls.Config, weight_names.find_sizes(cls, found, given), "policy")
