"""`ImitationActor`: a policy that is only cloned, such as ACT and Diffusion Policy, as an Actor that only acts.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `A` simulator action dimensions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import ActorSettings
from embodied_rl.actors.network_actor import NetworkActor, autocast_method, check_fit
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.backbone import ImitationBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal

REMEDY = "clone it with `embodied-rl sft`, or train a flow or token policy, such as policy=smolvla or pocket"


class ImitationActor(NetworkActor):
    """A policy without a likelihood, for evaluations and servers. Its noise follows from the noise keys."""

    backbone: ImitationBackbone

    def __init__(self, backbone: ImitationBackbone, embodiment: Embodiment) -> None:
        """Combine network and robot.

        Raises:
            UserError: they do not fit.
        """
        check_fit(backbone, embodiment, freeze_perception=False)
        super().__init__(backbone, embodiment, "images")
        self.observations = backbone.observations

    @autocast_method
    @torch.no_grad()
    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
        earlier: Sequence[Observation] = (),
    ) -> np.ndarray:
        """Infer actions; see `Actor.infer`. `earlier`: the observations of the control steps before, oldest first.

        Raises:
            UserError: a prefix is given, which such a policy cannot continue.
        """
        if prefix is not None:
            message = "A policy that is only cloned cannot continue actions that are already committed."
            raise UserError(message, code="prefix-not-supported")
        inputs = self._inputs(observation)
        inputs.earlier = tuple(self._inputs(each) for each in earlier)
        noise = None
        if shape := self.backbone.noise_shape:
            drawn = torch.zeros(len(inputs), *shape) if keys is None else draw_normal(keys, NoiseStream.INITIAL, shape)
            noise = drawn.to(self.device)
        actions = self.backbone.predict(self.backbone.encode(inputs), noise)
        chunk = self.embodiment.all_actions(actions, observation.state)
        return chunk if whole else chunk[:, : self.embodiment.executed]

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Decision:
        """Raise `UserError`: a decision holds a log-probability, which this policy does not have."""
        raise _without_likelihood()


class ImitationKind:
    """Makes `ImitationActor`s, which only act."""

    def make(self, network: ImitationBackbone, embodiment: Embodiment, settings: ActorSettings) -> ImitationActor:
        """Raise `UserError`: no algorithm trains such a policy from rollouts."""
        raise _without_likelihood(f"policy={settings.policy.name}: ")

    def deploy(
        self,
        network: ImitationBackbone,
        embodiment: Embodiment,
        entries: Mapping[str, Any],
        start_noise: StartNoise | None = None,
    ) -> ImitationActor:
        """Make an actor for a policy file."""
        return ImitationActor(network, embodiment).eval()


def check_history(actor: Any, who: str) -> None:
    """Check that a policy acts on the current observation alone, where `who` has no other.

    Raises:
        UserError: it reads earlier observations, too.
    """
    if (count := getattr(actor, "observations", 1)) > 1:
        raise UserError(
            f"The policy reads the observations of {count} control steps (n_obs_steps={count}), and {who} has the "
            "current one alone: evaluate it in a simulator with `embodied-rl eval`, or clone one with one observation.",
            code="policy-needs-history",
        )


def _without_likelihood(where: str = "") -> UserError:
    message = f"{where}a policy that is only cloned has no likelihood and no flow, which `train` needs: {REMEDY}."
    return UserError(message, code="policy-without-likelihood")
