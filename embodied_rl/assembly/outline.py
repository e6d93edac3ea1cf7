"""Actors on the meta device, with shapes and without weights, for dry runs.

The headers of a checkpoint are read and compared with the network by name and shape. Faults in the weights, such as
numbers that are not finite, are found only when they are loaded.
"""

from dataclasses import replace

import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import ActorSettings, make_actor
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.placement import check_placement, resolve_placement
from embodied_rl.assembly import networks
from embodied_rl.assembly.build import (
    build_embodiment,
    check_fit,
    configure_embodiment,
    resolve_policy_file,
)
from embodied_rl.checkpoints import detection
from embodied_rl.checkpoints.policy_file import PolicyMetadata, outline_network, read_metadata
from embodied_rl.config import assets, plugins
from embodied_rl.interfaces.policy import Actor, FlowBackbone
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode, SamplerNode
from embodied_rl.schema.untrusted_settings import freeze_file


def outline_actor(node: PolicyNode, sampling: SamplerNode, spec: SimulatorSpec, needs_critic: bool) -> Actor:
    """Build the actor that `build.build_actor` would build, on the meta device.

    Raises:
        UserError: the checkpoint is missing, or of another network or robot; the device is missing; or settings do not
            fit each other.
    """
    check_placement(node)
    network, embodiment = outline_backbone(node, spec)
    bare = replace(resolve_placement(node), device="meta", compile=False)
    return make_actor(network, embodiment, ActorSettings(bare, sampling, needs_critic, spec.privileged_names))


def outline_backbone(
    node: PolicyNode, spec: SimulatorSpec, auxiliary_names: tuple[str, ...] = ()
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network that `build.build_backbone` would build, on the meta device, with what learns chosen.

    Args:
        node: the policy.
        auxiliary_names: targets that a network with new weights predicts.

    Raises:
        UserError: see `outline_actor`.
    """
    network, embodiment = _outline(node, spec, auxiliary_names)
    with torch.device("meta"):
        trainable.choose_trainable(network, node.train, node.lora)
    return network, embodiment


def _outline(
    node: PolicyNode, spec: SimulatorSpec, auxiliary_names: tuple[str, ...]
) -> tuple[FlowBackbone, Embodiment]:
    cls, options = plugins.configure_plugin("policies", node, "policy")
    if node.checkpoint is None:
        embodiment = build_embodiment(spec, options, node, cls)
        with torch.device("meta"):
            return networks.make_backbone(cls, options, embodiment, auxiliary_names), embodiment
    path = assets.resolve_path(node.checkpoint)
    if detection.detect_format(path) is not None:
        network, embodiment = networks.attach_network(path, node, cls, spec, outline=True)
        return network, configure_embodiment(embodiment, node)
    file = resolve_policy_file(node.checkpoint)
    growth = networks.find_growth(file, read_metadata(file), cls, node)

    def make(metadata: PolicyMetadata) -> FlowBackbone:
        found = freeze_file(cls.Config, metadata.config, file, "policy")
        return networks.make_backbone(cls, found, metadata.embodiment, metadata.auxiliary_names)

    network, embodiment = outline_network(file, make, merged=node.train != "lora" or bool(growth))
    if growth:
        network = networks.grow_network(file, network, embodiment, growth)
    check_fit(embodiment, spec)
    return network, configure_embodiment(embodiment, node)
