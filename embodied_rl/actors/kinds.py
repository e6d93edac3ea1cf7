"""Kinds of actors: a network's `KIND` selects the class that makes its actor.

A new kind is a file here with a class like `embodied_rl.actors.flow_kind.FlowKind`, a line in `KINDS`, and networks
with that `KIND`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.start_noise import StartNoise, StartNoiseSettings
from embodied_rl.interfaces.policy import Actor
from embodied_rl.schema import PolicyNode, SamplerNode

KINDS = {
    "flow": "embodied_rl.actors.flow_kind:FlowKind",
    "gaussian": "embodied_rl.actors.gaussian:GaussianKind",
    "imitation": "embodied_rl.actors.imitation:ImitationKind",
    "sequence": "embodied_rl.actors.sequence:SequenceKind",
    "token": "embodied_rl.actors.token:TokenKind",
}
"""`Backbone.KIND` → "module:Class" that makes its actors."""


@dataclass(frozen=True)
class ActorSettings:
    """The settings that turn a network into an actor that learns.

    Attributes:
        policy: policy settings of the configuration.
        sampling: sampler settings: how the actor explores.
        needs_critic: whether it has a value head, the one that `policy.critic` names.
        privileged_names: the columns of `Observation.privileged`.
        start_noise: settings of the policy over the flow's start noise that learns, while the network is frozen; None:
            the network learns.
    """

    policy: PolicyNode
    sampling: SamplerNode
    needs_critic: bool
    privileged_names: tuple[str, ...]
    start_noise: StartNoiseSettings | None = None


def make_actor(network: nn.Module, embodiment: Embodiment, settings: ActorSettings) -> Actor:
    """Make an actor that learns.

    Raises:
        UserError: the settings do not fit the network or the robot.
    """
    return _find_kind(type(network)).make(network, embodiment, settings)


def deploy_actor(
    network: nn.Module, embodiment: Embodiment, entries: Mapping[str, Any], start_noise: StartNoise | None = None
) -> Actor:
    """Make an actor that only acts, without exploration or critic, for a network with its weights.

    `entries` are those of its policy file beyond network and embodiment, such as `denoise_steps`; `start_noise` is the
    policy over start noise that the file holds, or None.
    """
    return _find_kind(type(network)).deploy(network, embodiment, entries, start_noise)


def find_sampler(network: type[Any]) -> Literal["tokens", "gaussian"] | None:
    """Return the name of the only sampler of a class of networks; None if it has several, as flows have, or none."""
    if getattr(network, "KIND", None) not in KINDS:  # refused when it is built
        return None
    return getattr(getattr(_find_kind(network), "ACTOR", None), "SAMPLER", None)


def _find_kind(network: type[Any]) -> Any:
    module, _, name = KINDS[getattr(network, "KIND")].partition(":")  # noqa: B009  of no common base class
    return getattr(import_module(module), name)()
