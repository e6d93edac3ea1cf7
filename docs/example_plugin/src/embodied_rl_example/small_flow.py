"""A policy: where a camera sees what the words name, and from there a small flow network.

Shapes: n rows, H actions of a chunk, D action dimensions, L words, W width, J keypoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError

CHANNELS = 16


@dataclass(frozen=True)
class SmallFlowConfig:
    """Sizes of the network."""

    horizon: int = 4
    """H, actions predicted at once."""
    width: int = 64
    """W, of hidden layers and of the features."""
    keypoints: int = 4
    """J, places in the picture that the network looks for."""


class SmallFlow(FlowBackbone):
    """A flow policy for one camera."""

    Config = SmallFlowConfig

    def __init__(
        self,
        config: SmallFlowConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with new weights from torch's global generator.

        Raises:
            UserError: the simulator has not exactly one camera, or auxiliary targets are requested.
        """
        super().__init__()
        if len(cameras) != 1:
            raise UserError(f"policy.name=small_flow sees one camera; the simulator shows {len(cameras)}.")
        if auxiliary_names:
            raise UserError("algo.auxiliary_names: policy.name=small_flow predicts nothing but actions; give [].")
        self.config, width = config, config.width
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=action_dim,
            state_dim=state_dim,
            cameras=tuple(cameras),
            image_size=image_size,
            token_length=token_length,
            feature_dim=width,
            context_dim=width,
        )
        self.words = nn.Embedding(vocabulary_size, 2 * CHANNELS, padding_idx=0)
        self.see = nn.Conv2d(3, CHANNELS, 5, stride=2, padding=2)
        self.find = nn.Conv2d(CHANNELS, config.keypoints, 1)
        self.remember = nn.Sequential(nn.Linear(2 * config.keypoints + state_dim, width), nn.SiLU())
        inputs = width + config.horizon * (action_dim + 1)
        self.denoise = nn.Sequential(
            nn.Linear(inputs, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width), nn.SiLU()
        )
        self.split = nn.Linear(2 * width, config.horizon * width)
        self.act = nn.Linear(width, action_dim)

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode observations once per decision: J places, conditioned on the words, and the state.

        The words scale and shift what is seen (FiLM, arXiv:1709.07871); a place is the mean position under a softmax
        (arXiv:1504.00702).
        """
        present = (inputs.tokens != 0)[..., None]
        scale, shift = (self.words(inputs.tokens) * present).sum(dim=1)[..., None, None].chunk(2, dim=1)  # [n, C, 1, 1]
        pixels = inputs.images[self.spec.cameras[0]].permute(0, 3, 1, 2) / 127.5 - 1
        seen = F.silu(self.see(pixels) * (1 + scale) + shift)
        places = find_centres(self.find(seen)).flatten(1)
        memory = self.remember(torch.cat([places, inputs.state], dim=1))
        return Context({"memory": memory}, pooled=memory)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute velocity float32 [n, H, D] and features [n, H, W] at x [n, H, D] and time t [n] or [n, H]."""
        time = t.reshape(len(t), -1).expand(-1, self.spec.horizon)
        hidden = self.denoise(torch.cat([context.tensors["memory"], x.flatten(1), time], dim=1))
        features = F.silu(self.split(hidden)).unflatten(1, (self.spec.horizon, self.config.width))
        return self.act(features), features


def find_centres(heat: Tensor) -> Tensor:
    """Compute the mean position [n, J, 2], x and y in [-1, 1], under the softmax of heat [n, J, h, w]."""
    height, width = heat.shape[2:]
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    return heat.flatten(2).softmax(dim=-1) @ torch.stack([x, y], dim=-1).flatten(0, 1).to(heat)
