"""Networks: with new weights, of a checkpoint of another project, or grown from a smaller one.

A policy may allow sizes to grow, such as the actions of a chunk; see `FlowBackbone.GROWS`.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import detection, fitting, foreign, weight_names
from embodied_rl.checkpoints.foreign import FoundCheckpoint, read_prefix_length
from embodied_rl.checkpoints.policy_file import check_config
from embodied_rl.checkpoints.policy_format import PolicyMetadata
from embodied_rl.config import assets
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
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
    possible = (found.policy,) if found.policy is not None else found.candidates
    if possible and node.name not in possible:
        raise CheckpointError(
            f"{path} holds policy {' or '.join(map(repr, possible))}, not {node.name!r}: set policy={possible[-1]}.",
            code="checkpoint-of-another-policy",
        )
    if found.statistics.problem and not found.cameras:  # nothing is known of the robot before one is chosen
        raise CheckpointError(found.statistics.problem, code="embodiment-undecided")
    options = find_network_sizes(found, cls, node.options)
    embodiment = _make_embodiment(found, cls, node, spec, options)
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


def _make_embodiment(
    found: FoundCheckpoint, cls: type[Any], node: PolicyNode, spec: SimulatorSpec, options: Any
) -> Embodiment:
    for name, count, most in (
        ("action", len(spec.action_names), options.action_dim),
        ("state", len(spec.state_names), options.state_dim),
    ):
        if most is not None and count > most:
            raise UserError(
                f"The simulator has {count} {name} entries, the checkpoint's network at most {most}: choose a "
                f"simulator (or a setting of it) with {most} or fewer, or another checkpoint.",
                code="checkpoint-too-small",
            )
    tokenizer_text, source = found.tokenizer, found.folder
    if node.tokenizer is not None:
        given = assets.resolve_path(node.tokenizer)
        source = given / "tokenizer.json" if given.is_dir() else given
        if not source.is_file():
            raise UserError(f"policy.tokenizer={node.tokenizer}: there is no {source}.", code="tokenizer-missing")
        tokenizer_text = foreign.read_text(source)
    if tokenizer_text or node.tokenizer is not None:
        with name_file(source):
            loaded = tokenizer.load_tokenizer(tokenizer_text)  # to check that it can be
        cls.check_tokenizer(options, loaded)
        if cls.READS_INSTRUCTIONS and tokenizer.count_ids(tokenizer_text) > options.vocabulary:
            tokenizer_text = tokenizer.drop_added_tokens(tokenizer_text, options.vocabulary)
    views = fitting.match_views(found, spec, node.cameras)
    file = None if node.statistics in (None, find_asset(node)) else str(assets.resolve_path(str(node.statistics)))
    statistics = fitting.choose_statistics(found, spec, file)
    words = cls.READS_INSTRUCTIONS
    embodiment = fitting.make_embodiment(
        found, spec, views, statistics,
        horizon=options.horizon, token_length=options.token_length if words else 1,
        tokenizer=tokenizer_text if words else None,
    )  # fmt: skip
    if words and embodiment.vocabulary_size > options.vocabulary:
        raise UserError(
            f"The tokenizer has {embodiment.vocabulary_size} tokens, the checkpoint's network {options.vocabulary}: "
            "give policy.tokenizer=<file or folder>, that of the language model the policy was made from.",
            code="tokenizer-does-not-fit",
        )
    relative = embodiment.relative if node.relative is None else fitting.find_relative(spec, node.relative)
    gripper = found.gripper if node.gripper == "same" else node.gripper
    return replace(embodiment, gripper=gripper, relative=relative)


def find_asset(node: PolicyNode) -> str | None:
    """Return the name of a robot inside the checkpoint, which may have several, or None.

    It is `policy.embodiment`, a key of policies with weights for several robots, or else `policy.statistics`, if that
    is no path.
    """
    if isinstance(tag := node.options.get("embodiment"), str) and tag:
        return tag
    return None if node.statistics is None or assets.resolve_path(node.statistics).exists() else node.statistics


def find_network_sizes(found: FoundCheckpoint, cls: type[Any], given: Mapping[str, object]) -> Any:
    """Return the configuration of the network that a checkpoint holds."""
    with name_file(found.folder), weight_names.explain_damage(found.folder):
        return freeze_config(cls.Config, weight_names.find_sizes(cls, found, given), "policy")


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


def fit_conditions(
    network: FlowBackbone, embodiment: Embodiment, conditions: Sequence[str], longest: int, frozen: bool = False
) -> Embodiment:
    """Return the embodiment with the words of `conditions`, which follow instructions; the network grows in place.

    Prompts without the new words are read as before. The embeddings of these words are random, with the mean and
    deviation of those known, so that what the network makes of an instruction changes little behind it.

    Args:
        network, embodiment: of the policy; its tokenizer, if it has one, must know the words.
        conditions: of the algorithm; see `Needs.conditions`. Without any, nothing changes.
        longest: words of the longest instruction; 0 if unknown.
        frozen: whether the embeddings of words, which perception reads, do not learn.

    Raises:
        UserError: the policy acts with guidance, which only an algorithm with conditions trains, or it cannot learn to
            tell the conditions apart.
    """
    if not conditions:
        check_guidance(embodiment)
        return embodiment
    if not embodiment.tokenizer:
        embodiment = _add_words(network, embodiment, conditions, longest, frozen)
    ids = {tuple(row) for row in embodiment.tokens(conditions).tolist()}
    if len(ids) < len(conditions):
        raise UserError(
            f"The tokenizer of this policy cannot tell {' from '.join(map(repr, conditions))}: give a checkpoint whose "
            "tokenizer knows these words.",
            code="condition-unknown",
        )
    return embodiment


def check_guidance(embodiment: Embodiment) -> None:
    """Check that a policy acts by the plain velocity of its flow, which is what most algorithms train.

    Raises:
        UserError: it does not.
    """
    if embodiment.guidance != 1:
        raise UserError(
            f"policy.checkpoint: this policy acts with guidance={embodiment.guidance:g} towards "
            f"{embodiment.condition!r}, which only an algorithm that labels decisions trains, such as algo=recap. Give "
            "that, or another checkpoint.",
            code="guidance-not-trained",
        )


def _add_words(
    network: FlowBackbone, embodiment: Embodiment, conditions: Sequence[str], longest: int, frozen: bool
) -> Embodiment:
    """Add the words of conditions to a vocabulary of words, and rows for them to the network."""
    words = dict.fromkeys(word for text in conditions for word in text.lower().split())
    unknown, known = [word for word in words if word not in embodiment.vocabulary], embodiment.token_length
    longest = longest or (known if unknown else 0)  # a policy with these words has room for them
    length = max(known, longest + max(len(text.split()) for text in conditions))
    if not unknown and length == known:
        return embodiment
    if network.WORD_ROWS is None:
        raise UserError(
            f"policy.name: this policy cannot learn the words {', '.join(unknown or words)}, which the algorithm adds "
            "to instructions: choose another one.",
            code="words-cannot-grow",
        )
    if unknown and frozen:
        raise UserError(
            f"policy.freeze_perception=true: the algorithm adds the words {', '.join(unknown)} to instructions, which "
            "this policy has to learn. Give policy.freeze_perception=false.",
            code="words-frozen",
        )
    table, positions = network.WORD_ROWS
    _append_rows(network, table, lambda rows: _draw_alike(rows[len(rows) > 1 :], len(unknown)))
    _append_rows(network, positions, lambda rows: rows[-1:].repeat(length - known, 1))
    network.spec = replace(network.spec, token_length=length)
    return replace(embodiment, vocabulary=(*embodiment.vocabulary, *unknown), token_length=length)


def _draw_alike(rows: Tensor, count: int) -> Tensor:
    """Return `count` random rows with the mean and deviation that `rows` have in each column."""
    return torch.normal(rows.mean(0).expand(count, -1), rows.std(0, correction=0).expand(count, -1))


def _append_rows(network: FlowBackbone, name: str, make: Callable[[Tensor], Tensor]) -> None:
    """Append to a parameter of the network the rows that `make` returns for its present ones."""
    owner, _, leaf = name.rpartition(".")
    module = network.get_submodule(owner)
    old: nn.Parameter = getattr(module, leaf)
    rows = torch.cat([old.detach(), make(old.detach())])
    setattr(module, leaf, nn.Parameter(rows, requires_grad=old.requires_grad))
    if isinstance(module, nn.Embedding):
        module.num_embeddings = len(rows)
