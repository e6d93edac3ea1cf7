"""A frozen flow in closed form: noise above 0 becomes the action GOOD, and other noise BAD."""

from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.start_noise import StartNoise, StartNoiseSettings
from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.mathematics.flow.sampler import FlowSDE
from tests.support.stored_actions import GOOD, SPEC


class TwoModes(FlowBackbone):
    """Straight paths from x₁ to GOOD · sign(x₁), for the robot of `stored_actions`."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = PolicySpec(2, 1, 1, ("front",), (16, 16), 1, feature_dim=1, context_dim=2)
        self.scale = torch.nn.Parameter(torch.tensor(GOOD))

    def encode(self, inputs: PolicyInput) -> Context:
        return Context({}, torch.stack([inputs.state[:, 0], inputs.tokens[:, 0].float()], dim=1))

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return (x - self.scale * x.sign()) / t[:, None, None], torch.zeros(len(x), 2, 1)


def steer(critic: str = "none", **settings: Any) -> FlowActor:
    """The flow with a new policy over its start noise."""
    torch.manual_seed(0)
    network = TwoModes().requires_grad_(False)
    given: dict[str, Any] = {"hidden": 16} | settings
    made = StartNoise(StartNoiseSettings(**given), network.spec)
    head = make_critic(critic, privileged_dim=1, context_dim=2, feature_dim=1, hidden=(4,))
    robot, names = Embodiment.of_simulator(SPEC, 1, token_length=1), SPEC.privileged_names
    return FlowActor(network, FlowSDE(4, 0.3), head, robot, privileged_names=names, start_noise=made)
