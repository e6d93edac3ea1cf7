"""Construction of `FlowActor`s from flow-matching networks: sampler, critic, placement."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.kinds import ActorSettings
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.schema import SamplerNode

DENOISE_STEPS = 4
"""Default for policy files without `denoise_steps`."""
MOST_DENOISE_STEPS = 1000
"""Upper bound for policy files: far more than any policy uses."""


class FlowKind:
    """Makes `FlowActor`s from flow-matching networks."""

    def make(self, network: FlowBackbone, embodiment: Embodiment, settings: ActorSettings) -> FlowActor:
        """Make an actor that learns; see `embodied_rl.actors.kinds.make_actor`."""
        node, start_noise = settings.policy, None
        if (sampler := settings.sampling.name) not in ("flow_sde", "flow_noise"):
            message = f"algo.sampler.name={sampler} is for other policies, and this one is a flow: "
            raise UserError(message + "give algo=flow_sde or flow_noise.", code="sampler-not-supported")
        if settings.start_noise is not None:
            network.requires_grad_(False)
            start_noise = StartNoise(settings.start_noise, network.spec)
        critic = make_critic(
            node.critic if settings.needs_critic else "none",
            privileged_dim=len(settings.privileged_names),
            context_dim=network.spec.context_dim,
            feature_dim=network.spec.feature_dim,
        )
        actor = FlowActor(
            network,
            make_sampler(settings.sampling, network),
            critic,
            embodiment,
            privileged_names=settings.privileged_names,
            freeze_perception=node.freeze_perception,
            delay=node.delay,
            start_noise=start_noise,
        )
        return place_actor(actor, node)

    def deploy(
        self,
        network: FlowBackbone,
        embodiment: Embodiment,
        entries: Mapping[str, Any],
        start_noise: StartNoise | None = None,
    ) -> FlowActor:
        """Make an actor with the plain flow and the denoise steps of training, for a policy file with these `entries`.

        Raises:
            UserError: the file's number of denoise steps is invalid.
        """
        steps = read_denoise_steps(entries, DENOISE_STEPS)
        sampler = FlowSDE(steps, 1.0, None, "hybrid")
        return FlowActor(network, sampler, None, embodiment, start_noise=start_noise).eval()


def make_sampler(node: SamplerNode, network: FlowBackbone) -> Sampler:
    """Make the sampler that draws actions from the flow during training.

    Raises:
        UserError: the settings are invalid for the sampler.
    """
    try:
        if node.name == "flow_noise":
            return FlowNoise(
                node.denoise_steps, node.std_min, node.std_max,
                feature_dim=network.spec.feature_dim, action_dim=network.spec.action_dim,
            )  # fmt: skip
        return FlowSDE(node.denoise_steps, node.noise_level, node.step_weights, node.layers)
    except ValueError as error:
        raise UserError(f"algo.sampler: {error}.", code="sampler-setting-invalid") from error


def read_denoise_steps(entries: Mapping[str, Any], default: int) -> int:
    """Return K of a policy file, whose entries beyond network and embodiment are given; the default if it has none.

    Raises:
        UserError: the entry is not a number of steps.
    """
    steps = entries.get("denoise_steps", default)
    if type(steps) is not int or not 1 <= steps <= MOST_DENOISE_STEPS:
        message = f"denoise_steps={ascii(steps)[:40]} is not a number of steps from 1 to {MOST_DENOISE_STEPS}."
        raise UserError(message, code="denoise-steps-out-of-range")
    return steps
