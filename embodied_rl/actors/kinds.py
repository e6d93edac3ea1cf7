"""Kinds of actors: a network's `KIND` selects the class that makes its actor.

A new kind (token policies, say) is a file here with a class like `embodied_rl.actors.flow_kind.FlowKind`, a line in
`KINDS`, and networks with that `KIND`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.policy import Actor
from embodied_rl.schema import PolicyNode, SamplerNode

KINDS = {"flow": "embodied_rl.actors.flow_kind:FlowKind"}
"""`FlowBackbone.KIND` → "module:Class" of an `ActorKind`."""


@dataclass(frozen=True)
class ActorSettings:
    """The settings that turn a network into an actor that learns.

    Attributes:
        policy: policy settings of the configuration.
        sampling: sampler settings: how the actor explores.
        needs_critic: whether it has a value head, the one that `policy.critic` names.
        privileged_names: the columns of `Observation.privileged`.
    """

    policy: PolicyNode
    sampling: SamplerNode
    needs_critic: bool
    privileged_names: tuple[str, ...]


class ActorKind(Protocol):
    """Makes actors from networks of one kind."""

    def make(self, network: Any, embodiment: Embodiment, settings: ActorSettings) -> Actor:
        """Make an actor that learns.

        Raises:
            UserError: the settings do not fit the network or the robot.
        """
        ...

    def deploy(self, network: Any, embodiment: Embodiment, entries: Mapping[str, Any]) -> Actor:
        """Make an actor that only acts, without exploration or critic.

        Args:
            network: with its weights.
            embodiment: of the robot that the actor controls.
            entries: of its policy file beyond network and embodiment, such as `denoise_steps`.
        """
        ...


def find_actor_kind(network: nn.Module) -> ActorKind:
    """Return the `ActorKind` that makes actors from such a network."""
    module, _, name = KINDS[getattr(type(network), "KIND")].partition(":")  # noqa: B009  of no common base class
    return getattr(import_module(module), name)()


def make_actor(network: nn.Module, embodiment: Embodiment, settings: ActorSettings) -> Actor:
    """Make an actor that learns; see `ActorKind.make`."""
    return find_actor_kind(network).make(network, embodiment, settings)


def deploy_actor(network: nn.Module, embodiment: Embodiment, entries: Mapping[str, Any]) -> Actor:
    """Make an actor that only acts; see `ActorKind.deploy`."""
    return find_actor_kind(network).deploy(network, embodiment, entries)
