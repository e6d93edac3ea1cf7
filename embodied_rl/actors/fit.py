"""Which parameters of a network are trained, and whether network and robot fit."""

from collections.abc import Iterable

from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone


def freeze_parameters(parameters: Iterable[nn.Parameter]) -> None:
    """Freeze parameters, so that they are not trained."""
    for parameter in parameters:
        parameter.requires_grad_(False)


def select_learning(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the trainable parameters."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def is_frozen(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether none of the parameters is trainable."""
    return not select_learning(parameters)


def check_fit(backbone: FlowBackbone, embodiment: Embodiment, freeze_perception: bool) -> None:
    """Check that a network fits a robot, and has the perception that is to be frozen.

    Raises:
        UserError: they do not fit; the message names the entry.
    """
    spec = backbone.spec
    pairs = {
        "cameras": (spec.cameras, embodiment.seen_as),
        "image size": (spec.image_size, embodiment.image_size),
        "instruction tokens": (spec.token_length, embodiment.token_length),
    }
    for name, (network, robot) in pairs.items():
        if network != robot:
            raise UserError(f"The policy has {network} {name}, the embodiment {robot}: build both from one simulator.")
    if (states := len(embodiment.state_names)) > spec.state_dim:
        raise UserError(f"The policy has {spec.state_dim} state entries, the robot {states}.")
    if embodiment.executed > spec.horizon:
        raise UserError(f"policy.executed={embodiment.executed} exceeds the {spec.horizon} actions of a chunk.")
    if (robot_dim := len(embodiment.action_names)) > spec.action_dim:
        raise UserError(f"The policy has {spec.action_dim} action dimensions, the robot {robot_dim}.")
    if freeze_perception and not backbone.perception_parameters():
        raise UserError("policy.freeze_perception=true, but this policy has no perception that can be frozen apart.")
