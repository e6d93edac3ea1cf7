"""Warm starts from a smaller network: a policy may allow sizes to grow, such as the actions of a chunk."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.checkpoints.policy_file import PolicyMetadata
from embodied_rl.interfaces.policy import FlowBackbone

log = logging.getLogger(__name__)


def find_growth(metadata: PolicyMetadata, cls: type[Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that may grow and are given larger than in the policy file."""
    sizes = {key: given[key] for key in cls.GROWS if key in given and key in metadata.config}
    return {key: size for key, size in sizes.items() if isinstance(size, int) and size > metadata.config[key]}


def without_growth(given: Mapping[str, Any], growth: Mapping[str, int]) -> dict[str, Any]:
    """Return the given sizes that must equal those in the file."""
    return {key: value for key, value in json.loads(json.dumps(dict(given))).items() if key not in growth}


def grow_network(
    path: Path, small: FlowBackbone, embodiment: Embodiment, growth: Mapping[str, int], make: Any
) -> FlowBackbone:
    """Return a larger network with the weights of a small one; nothing is copied on the meta device.

    New rows of a parameter are the last row of the small network, with the fresh values of the large one added.

    Args:
        path: the small network's file, for the log.
        small: the network as it is in the file.
        embodiment: of the small network.
        growth: the new sizes.
        make: `embodied_rl.assembly.build.choose_backbone_maker` of the policy's class.
    """
    maker: Callable[[Embodiment, tuple[str, ...]], FlowBackbone] = make(type(small), replace(small.config, **growth))
    names = tuple(small.spec.auxiliary_names)
    if next(small.parameters()).is_meta:
        with torch.device("meta"):
            outline = maker(embodiment, names)
        outline.prefix_trained_to = small.prefix_trained_to
        return outline
    large = maker(embodiment, names)
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
