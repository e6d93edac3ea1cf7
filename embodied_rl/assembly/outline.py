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
from embodied_rl.assembly.build import build_backbone
from embodied_rl.interfaces.policy import Actor, FlowBackbone
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode, SamplerNode


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
    network, embodiment = build_backbone(node, spec, auxiliary_names, outline=True)
    with torch.device("meta"):
        trainable.choose_trainable(network, node.train, node.lora)
    return network, embodiment
