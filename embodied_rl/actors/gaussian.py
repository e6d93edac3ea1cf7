"""`GaussianActor`: a network that predicts actions, which are drawn around them while it learns, as an Actor.

Shapes: `n` rows, `H` predicted actions, `D` model action dimensions.
"""

import math

import torch
from torch import Tensor

from embodied_rl.actors.head import HeadActor, HeadKind
from embodied_rl.interfaces.backbone import Context, GaussianBackbone
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal

DRAWN = "gaussian/actions"
"""Entry of a trace: the drawn actions in the model's units, float32 [Hx, A]."""


class GaussianActor(HeadActor):
    """A policy that explores by a normal distribution around its prediction, and deploys the prediction.

    All entries have the same standard deviation `strength`, in the model's units. It does not learn.
    """

    CHOICE, CHOICE_TYPE, STRENGTH = DRAWN, torch.float32, "std"
    SAMPLER, CHOOSES = "gaussian", "predicts actions as numbers"
    backbone: GaussianBackbone

    def choose(self, context: Context, keys: NoiseKeys | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions [n, H, D], drawn by keys or the mean, with the mean and features."""
        mean, features = self.read_head(context)
        if keys is None:
            return mean, mean, features
        noise = draw_normal(keys, NoiseStream.STEP, tuple(mean.shape[1:])).to(mean.device)
        return mean + self.strength * noise, mean, features

    def read_head(self, context: Context, choice: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return means float32 [n, H, D] and features; see `HeadActor`."""
        mean, features = self.backbone.action_mean(context)
        return mean.float(), features.float()

    def find_actions(self, choice: Tensor) -> Tensor:
        """Return the actions themselves."""
        return choice

    def score(self, parameters: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-density of drawn actions, and entropies; see `HeadActor`."""
        distance = (choice - self.select_executed(parameters)) / self.strength
        scale = math.log(self.strength) + 0.5 * math.log(2 * math.pi)
        return -0.5 * distance.square() - scale, torch.full_like(distance, scale + 0.5)


class GaussianKind(HeadKind):
    """Makes `GaussianActor`s from networks that predict actions."""

    ACTOR = GaussianActor
