"""Networks: with new weights, of a checkpoint of another project, or grown from a smaller one.

A policy may allow sizes to grow, such as the actions of a chunk; see `FlowBackbone.GROWS`.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import detection, fitting, foreign, weight_names
from embodied_rl.checkpoints.foreign import FoundCheckpoint, read_prefix_length
from embodied_rl.checkpoints.policy_file import PolicyMetadata, check_config
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode
from embodied_rl.system.untrusted_files import name_file

log = logging.getLogger(__name__)


def make_backbone(cls: type[Any], options: Any, embodiment: Embodiment, auxiliary_names: Sequence[str]) -> FlowBackbone:
    """Build a policy's network with new weights for an embodiment and its auxiliary targets."""
    return cls(
        options,
        action_dim=len(embodiment.action_names),
        state_dim=len(embodiment.state_names),
        cameras=embodiment.view_names,
        image_size=embodiment.image_size,
        vocabulary_size=embodiment.vocabulary_size,
        token_length=embodiment.token_length,
        auxiliary_names=tuple(auxiliary_names),
    )


def attach_network(
    path: Path, node: PolicyNode, cls: type[Any], spec: SimulatorSpec, *, outline: bool = False
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network of a checkpoint folder, with its weights, and its embodiment for a simulator.

    Args:
        path: the checkpoint folder; `detection.detect_format` must know its format.
        node: the user's policy configuration.
        cls: the policy's class.
        spec: the simulator's specification.
        outline: build the network on the meta device, without reading weights.

    Raises:
        UserError: something does not fit, is missing, or must be chosen; the message names the key to set.
    """
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
        network = make_backbone(cls, options, embodiment, ())
        network.prefix_trained_to = trained_to
        return network

    if outline:
        with torch.device("meta"):
            network = build()
        weight_names.match_tensors(type(weight_names.as_foreign(network)), found, network)
        return network, embodiment
    network = weight_names.build_empty(build)
    fitted = weight_names.fit_checkpoint(type(weight_names.as_foreign(network)), found, network)
    weight_names.load_weights(found, fitted, network)
    network.source = fitted
    return network, embodiment


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
    tokenizer_text, source = found.tokenizer, found.folder
    if node.tokenizer is not None:
        given = Path(node.tokenizer)
        source = given / "tokenizer.json" if given.is_dir() else given
        if not source.is_file():
            raise UserError(f"policy.tokenizer={node.tokenizer}: there is no {source}.", code="tokenizer-missing")
        tokenizer_text = foreign.read_text(source)
    if tokenizer_text or node.tokenizer is not None:
        with name_file(source):
            tokenizer.load_tokenizer(tokenizer_text)  # to check that it can be
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


def find_network_sizes(found: FoundCheckpoint, cls: type[Any], given: Mapping[str, object]) -> Any:
    """Return the configuration of the network that a checkpoint holds."""
    with name_file(found.folder):
        return freeze_config(cls.Config, weight_names.find_sizes(cls, found, given), "policy")


log = logging.getLogger(__name__)


def find_growth(path: Path, metadata: PolicyMetadata, cls: type[Any], node: PolicyNode) -> dict[str, int]:
    """Return the sizes that may grow and that `node` gives larger than the policy file has them.

    Raises:
        CheckpointError: the file is of another policy, or of other sizes than `node` gives.
    """
    sizes = {key: node.options[key] for key in cls.GROWS if key in node.options and key in metadata.config}
    growth = {key: size for key, size in sizes.items() if isinstance(size, int) and size > metadata.config[key]}
    given = json.loads(json.dumps(dict(node.options)))
    check_config(path, metadata, node.name, {key: value for key, value in given.items() if key not in growth})
    return growth


def grow_network(path: Path, small: FlowBackbone, embodiment: Embodiment, growth: Mapping[str, int]) -> FlowBackbone:
    """Return a larger network with the weights of a small one; nothing is copied on the meta device.

    New rows of a parameter are the last row of the small network, with the fresh values of the large one added.

    Args:
        path: the small network's file, for the log.
        small: the network as it is in the file.
        growth: the new sizes.
    """
    meta = next(small.parameters()).is_meta
    with torch.device("meta") if meta else nullcontext():
        large = make_backbone(type(small), replace(small.config, **growth), embodiment, small.spec.auxiliary_names)
    if meta:
        large.prefix_trained_to = small.prefix_trained_to
        return large
    state, fresh = small.state_dict(), large.state_dict()
    for key in growth:
        name = small.GROWS[key]
        rows = state[name]
        state[name] = torch.cat([rows, rows[-1:] + fresh[name][len(rows) :]])
        added = len(fresh[name]) - len(rows)
        log.warning(
            "policy.%s=%d: %s was made with %d. The network grows: %s has %d new entries, which nothing has trained.",
            key, growth[key], path, getattr(small.config, key), name, added,
        )  # fmt: skip
    large.load_state_dict(state)
    large.source, large.prefix_trained_to = small.source, small.prefix_trained_to
    return large
