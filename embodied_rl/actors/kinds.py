"""From a network to an actor: the network's kind chooses who makes it. Nothing outside this room knows which that is.

A new kind (token policies, say) is a file here with a class like `embodied_rl.actors.flow_kind.FlowKind`, a line in
`KINDS`, and networks whose `KIND` names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from torch import nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.config.schema import PolicyNode, SamplerNode
from embodied_rl.interfaces.policy import Actor

KINDS = {"flow": "embodied_rl.actors.flow_kind:FlowKind"}
"""`FlowBackbone.KIND` → "module:Class" of an `ActorKind`."""


@dataclass(frozen=True)
class ActorSettings:
    """How an actor that learns is made of its network.

    Attributes:
        policy: of the configuration.
        sampling: how it explores.
        needs_critic: whether it has a value head, the one that `policy.critic` names.
        privileged_names: the columns of `Observation.privileged`.
    """

    policy: PolicyNode
    sampling: SamplerNode
    needs_critic: bool
    privileged_names: tuple[str, ...]


class ActorKind(Protocol):
    """Makes actors of networks of one kind."""

    def make(self, network: Any, embodiment: Embodiment, settings: ActorSettings) -> Actor:
        """An actor that learns.

        Raises:
            UserError: settings that do not fit the network or the robot.
        """
        ...

    def deploy(self, network: Any, embodiment: Embodiment, said: Mapping[str, Any]) -> Actor:
        """An actor that only acts, without exploration or critic.

        Args:
            network: with its weights.
            embodiment: what it is attached to.
            said: what its policy file says beyond network and embodiment, such as `denoise_steps`.
        """
        ...


def find_actor_kind(network: nn.Module) -> ActorKind:
    """Who makes actors of such a network."""
    module, _, name = KINDS[getattr(type(network), "KIND")].partition(":")  # noqa: B009  of no common base class
    return getattr(import_module(module), name)()


def make_actor(network: nn.Module, embodiment: Embodiment, settings: ActorSettings) -> Actor:
    """See `ActorKind.make`."""
    return find_actor_kind(network).make(network, embodiment, settings)


def deploy_actor(network: nn.Module, embodiment: Embodiment, said: Mapping[str, Any]) -> Actor:
    """See `ActorKind.deploy`."""
    return find_actor_kind(network).deploy(network, embodiment, said)
