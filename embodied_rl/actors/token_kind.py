"""Construction of `TokenActor`s: critic, temperature, placement."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import ActorSettings
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.actors.token import TokenActor
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import TokenBackbone


class TokenKind:
    """Makes `TokenActor`s from networks that choose action tokens."""

    def make(self, network: TokenBackbone, embodiment: Embodiment, settings: ActorSettings) -> TokenActor:
        """Make an actor that learns; see `embodied_rl.actors.kinds.make_actor`.

        Raises:
            UserError: sampler or algorithm are for flow policies, or the policy is to continue committed actions.
        """
        node = settings.policy
        if settings.start_noise is not None:
            message = "this algorithm learns the start noise of a flow, and the policy chooses tokens."
            raise UserError(message, code="algorithm-needs-flow")
        if settings.sampling.name != "tokens":
            message = f"algo.sampler.name={settings.sampling.name} draws from flows, and the policy chooses tokens: "
            raise UserError(message + "give algo=ppo, or algo.sampler.name=tokens.", code="sampler-not-supported")
        if node.delay:
            message = f"policy.delay={node.delay}: a policy that chooses tokens does not continue committed actions."
            raise UserError(message, code="prefix-not-supported")
        critic = make_critic(
            node.critic if settings.needs_critic else "none",
            privileged_dim=len(settings.privileged_names),
            context_dim=network.spec.context_dim,
            feature_dim=network.spec.feature_dim,
        )
        actor = TokenActor(
            network,
            critic,
            embodiment,
            temperature=settings.sampling.temperature,
            privileged_names=settings.privileged_names,
            freeze_perception=node.freeze_perception,
        )
        return place_actor(actor, node)

    def deploy(
        self,
        network: TokenBackbone,
        embodiment: Embodiment,
        entries: Mapping[str, Any],
        start_noise: StartNoise | None = None,
    ) -> TokenActor:
        """Make an actor that takes the likeliest bins, for a policy file."""
        return TokenActor(network, None, embodiment).eval()
