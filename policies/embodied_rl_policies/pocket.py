"""Pocket VLA: the architecture of π0.5 (arXiv:2504.16054, openpi's adaRMS variant) with about 1M parameters.

Cameras and words → prefix tokens → a small transformer; its keys and values are cached once per decision. An action
expert with adaRMS time conditioning attends to them at every denoise step. One difference from π0.5: a convolutional
stem conditioned on the instruction (FiLM, arXiv:1709.07871) with spatial-softmax keypoints (arXiv:1504.00702) replaces
the pretrained vision tower, because it learns to localise from few frames on a CPU.

Shapes: `n` rows, `C` cameras, `P` patches of one camera, `J` keypoints of one camera, `T` prefix tokens,
`L` instruction tokens, `H` actions, `D` action dimensions, `W` width, `t` query tokens, `s` key tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Backbone, Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scene import Scene
from embodied_rl_policies.vlm import MAX_LAYERS

PIXELS_PER_CELL = 4
PATCH_GRID = 4


@dataclass(frozen=True)
class PocketConfig:
    """Sizes of the network; the defaults give 0.78 million parameters."""

    width: int = 112
    """of every token, in the prefix and in the expert."""
    layers: int = 2
    """of the prefix and of the expert; layer i of the expert attends to layer i of the prefix."""
    heads: int = 4
    """attention heads; they divide `width`."""
    horizon: int = 5
    """H, actions predicted at once."""
    keypoints: int = 32
    """spatial-softmax keypoints per camera."""
    keypoint_tokens: int = 2
    """prefix tokens made of one camera's keypoints."""
    stem_channels: int = 64
    """channels of the convolutional stem."""
    hidden: int = 3
    """hidden units of a feed-forward block, as a multiple of `width`."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        for name in ("width", "layers", "heads", "horizon", "keypoints", "keypoint_tokens", "stem_channels", "hidden"):
            if getattr(self, name) < 1:
                raise UserError(f"policy.{name}={getattr(self, name)} must be at least 1.", code="value-out-of-range")
        if self.layers > MAX_LAYERS:
            raise UserError(f"policy.layers={self.layers} must be at most {MAX_LAYERS}.", code="value-out-of-range")
        if self.width % 8 or self.width % self.heads:
            raise UserError(
                f"policy.width={self.width} must be a multiple of 8 and of policy.heads={self.heads}.",
                code="policy-sizes-invalid",
            )
        if self.stem_channels % 8:
            raise UserError(
                f"policy.stem_channels={self.stem_channels} must be a multiple of 8.", code="policy-sizes-invalid"
            )


class Attention(nn.Module):
    """Multi-head attention of tokens to given keys and values, such as their own and cached ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Attend: tokens [n, t, W], key_value [n, s, 2 W], mask bool [n, s] (True: the key is visible) → [n, t, W]."""
        query = self.query(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = key_value.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear maps with a SiLU between them; its backward pass on a CPU costs half as much as that of a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(nn.Linear(width, hidden * width), nn.SiLU(), nn.Linear(hidden * width, width))


class PrefixLayer(nn.Module):
    """A transformer layer of the prefix."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer: tokens [n, T, W], mask bool [n, T] → next layer's tokens, keys and values [n, T, 2 W]."""
        normed = self.attention_norm(tokens)
        key_value = self.attention.key_value(normed)
        tokens = tokens + self.attention(normed, key_value, mask)
        return tokens + self.feed_forward(self.forward_norm(tokens)), key_value


class LastPrefixLayer(nn.Module):
    """The last layer of the prefix; it computes only keys and values, because no later layer reads its tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.key_value = nn.Linear(width, 2 * width, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values: tokens [n, T, W] → the same tokens, their keys and values [n, T, 2 W]."""
        return tokens, self.key_value(self.norm(tokens))


class ExpertLayer(nn.Module):
    """A layer of the action expert: adaRMS, attention to the prefix and to the actions, adaRMS, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, tokens: Tensor, modulation: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Update tokens [n, H, W] by modulation [n, 6, 1 or H, W], the prefix's key_value [n, T, 2 W], mask [n, T + H].

        A modulation of size 1 applies to every token; one of size H gives each token its own flow time.
        """
        scale, shift, gate, scale_2, shift_2, gate_2 = modulation.unbind(1)
        normed = modulate(tokens, scale, shift)
        key_value = torch.cat([key_value, self.attention.key_value(normed)], dim=1)
        tokens = tokens + gate * self.attention(normed, key_value, mask)
        return tokens + gate_2 * self.feed_forward(modulate(tokens, scale_2, shift_2))


def modulate(tokens: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Apply the adaptive RMS norm: normalise tokens [n, H, W], then scale and shift them by the flow time."""
    return F.rms_norm(tokens, tokens.shape[-1:]) * (1 + scale) + shift


def make_position_encoding(cells: int, width: int) -> Tensor:
    """Compute fixed 2-D sine and cosine position encodings of a square grid.

    Returns:
        float32 [cells², width], rows from the top left; width must be a multiple of 4.
    """
    line = torch.linspace(-1, 1, cells)
    y, x = torch.meshgrid(line, line, indexing="ij")
    frequency = torch.exp(torch.linspace(0, math.log(8.0), width // 4)) * math.pi / 2
    angle = torch.cat([axis.flatten()[:, None] * frequency for axis in (x, y)], dim=1)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def make_pixel_grid(height: int, width: int) -> Tensor:
    """Compute x and y of each cell's centre in [-1, 1]: float32 [height * width, 2]."""
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) * 2 / height - 1, (torch.arange(width) + 0.5) * 2 / width - 1, indexing="ij"
    )
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def make_time_frequencies(width: int) -> Tensor:
    """Compute the angular frequencies of openpi's time embedding, periods from 4e-3 to 4: float32 [width/2]."""
    return 2 * math.pi * torch.exp(torch.linspace(math.log(1 / 4.0), math.log(1 / 4e-3), width // 2))


class Stem(nn.Module):
    """Image stem: one camera image and the instruction → keypoints and patch features."""

    cells: Tensor

    def __init__(self, config: PocketConfig, image_size: tuple[int, int]) -> None:
        super().__init__()
        channels, width = config.stem_channels, config.width
        grid = (image_size[0] // PIXELS_PER_CELL, image_size[1] // PIXELS_PER_CELL)
        self.patchify = nn.Conv2d(3, channels // 2, PIXELS_PER_CELL, PIXELS_PER_CELL)
        self.mix = nn.Conv2d(channels // 2, channels, 3, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.film = nn.Linear(width, 2 * channels)
        self.heat = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.SiLU(), nn.Conv2d(channels, config.keypoints, 1))
        self.shrink = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.patches = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.patch_norm = nn.GroupNorm(8, width)
        self.pool = nn.AdaptiveAvgPool2d(PATCH_GRID)
        self.register_buffer("cells", make_pixel_grid(*grid), persistent=False)

    def forward(self, image: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Apply to image uint8 [m, h, w, 3], condition [m, W] → keypoints [m, J, 2] in [-1, 1], patches [m, P, W]."""
        pixels = (image.float() / 127.5 - 1).permute(0, 3, 1, 2)
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, dim=1)
        normed = self.norm(self.mix(F.silu(self.patchify(pixels))))
        features = F.silu(torch.addcmul(shift, normed, 1 + scale))
        keypoints = self.heat(features).flatten(2).softmax(dim=-1) @ self.cells
        patches = self.pool(self.patch_norm(self.patches(F.silu(self.shrink(features)))))
        return keypoints, patches.flatten(2).transpose(1, 2)


class Localiser(nn.Linear):
    """Keypoints → positions: a linear map, plus a small network for the nonlinear effect of perspective.

    The network's output starts at zero, so that weights trained without the network still work.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.bend = nn.Sequential(nn.Linear(inputs, 128), nn.SiLU(), nn.Linear(128, outputs))
        for parameter in self.bend[2].parameters():
            nn.init.zeros_(parameter)

    def forward(self, keypoints: Tensor) -> Tensor:
        """Predict positions: keypoints [n, C * 2 J] → [n, G]."""
        return super().forward(keypoints) + self.bend(keypoints)


class PocketPrefix(Backbone):
    """Perception and prefix of the small VLAs that ship with the library; subclasses add the part that acts."""

    GROWS: ClassVar[Mapping[str, str]] = MappingProxyType({"horizon": "action_positions"})
    WORD_ROWS: ClassVar[tuple[str, str] | None] = ("words.weight", "word_positions")
    config: PocketConfig
    patch_positions: Tensor

    def __init__(
        self,
        config: PocketConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights from torch's global generator.

        Cameras are in order and share the stem; without cameras the network has no stem. Sides of images are multiples
        of 16. `auxiliary_names` are privileged entries that the localisation head predicts from the keypoints.

        Raises:
            UserError: an image side is not a multiple of 16, or auxiliary names are given without a camera.
        """
        super().__init__()
        if auxiliary_names and not cameras:
            raise UserError("algo.auxiliary_names: predicting them requires a camera; give [].", code="camera-missing")
        if any(side % (PIXELS_PER_CELL * PATCH_GRID) for side in image_size):
            raise UserError(
                f"The pocket policy takes images with sides that are multiples of 16, not {image_size}.",
                code="image-size-invalid",
            )
        self.config, width = config, config.width
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=action_dim,
            state_dim=state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=width,
            context_dim=width,
            auxiliary_names=tuple(auxiliary_names),
        )
        views, spec = len(self.spec.cameras), self.spec
        self.words = nn.Embedding(vocabulary_size, width, padding_idx=0)
        self.views = nn.Parameter(torch.zeros(views, width))
        self.stem = Stem(config, spec.image_size) if views else nn.Identity()
        inputs, outputs = views * 2 * config.keypoints, len(spec.auxiliary_names)
        self.localise = Localiser(inputs, outputs) if outputs else nn.Identity()
        self._build_prefix()
        self._build_head()

    def _build_prefix(self) -> None:
        config, width, spec = self.config, self.config.width, self.spec
        self.places = nn.Linear(2 * config.keypoints, config.keypoint_tokens * width)
        self.word_positions = nn.Parameter(torch.randn(spec.token_length, width) * 0.02)
        self.proprioception = nn.Sequential(nn.Linear(spec.state_dim, width), nn.SiLU(), nn.Linear(width, width))
        layers = [PrefixLayer(width, config.heads, config.hidden) for _ in range(config.layers - 1)]
        self.prefix = nn.ModuleList([*layers, LastPrefixLayer(width)])
        self.register_buffer("patch_positions", make_position_encoding(PATCH_GRID, width), persistent=False)

    def _build_head(self) -> None:
        """Build the part that acts."""
        raise NotImplementedError

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of stem, FiLM, keypoints, localisation head, camera and word embeddings."""
        modules = (self.words, self.stem, self.localise)
        return [self.views, *chain.from_iterable(module.parameters() for module in modules)]

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute the stem's output: keypoints float32 [n, C, 2 J] in [-1, 1] and patches float32 [n, C, P, W]."""
        views, rows = len(self.spec.cameras), len(inputs)
        if not views:
            state = inputs.state
            nothing = state.new_zeros(rows, 0, 2 * self.config.keypoints)
            return {"keypoints": nothing, "patches": state.new_zeros(rows, 0, PATCH_GRID**2, self.config.width)}
        images = torch.stack([inputs.images[name] for name in self.spec.cameras], dim=1).flatten(0, 1)
        condition = (self._instruction(inputs.tokens)[:, None] + self.views).flatten(0, 1)
        keypoints, patches = self.stem(images, condition)
        return {
            "keypoints": keypoints.flatten(1).unflatten(0, (-1, views)),
            "patches": patches.unflatten(0, (-1, views)),
        }

    def predict_auxiliary(self, features: dict[str, Tensor]) -> Tensor:
        """Predict float32 [n, G], the entries of `spec.auxiliary_names`, from the keypoints."""
        assert self.spec.auxiliary_names, "this network was built without a localisation head"
        return self.localise(features["keypoints"].flatten(1))

    def describe_scene(self, inputs: PolicyInput) -> Scene:
        """Describe observations by keypoints and predicted positions, patches, and the mean word embedding."""
        features = self.perceive(inputs)
        places = features["keypoints"].flatten(1)
        if self.spec.auxiliary_names:
            places = torch.cat([places, self.localise(places)], dim=1)
        return Scene(places, features["patches"].flatten(1, 2), self._instruction(inputs.tokens))

    def _instruction(self, tokens: Tensor) -> Tensor:
        """Compute the mean word embedding [n, W] of tokens int64 [n, l], without padding."""
        present = (tokens != 0)[..., None]
        return (self.words(tokens) * present).sum(dim=1) / present.sum(dim=1).clamp_min(1)

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode the prefix: keys and values "key_value/i" float32 [n, T, 2 W], existing tokens "mask" bool [n, T]."""
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        places = self.places(2 * features["keypoints"]).unflatten(-1, (self.config.keypoint_tokens, -1))
        seen = torch.cat([features["patches"] + self.patch_positions, places], dim=2) + self.views[:, None]
        words = self.words(inputs.tokens) + self.word_positions[: inputs.tokens.shape[1]]
        tokens = torch.cat([seen.flatten(1, 2), self.proprioception(inputs.state)[:, None], words], dim=1)
        mask = F.pad(inputs.tokens != 0, (tokens.shape[1] - words.shape[1], 0), value=True)
        tensors = {"mask": mask}
        for index, layer in enumerate(self.prefix):
            tokens, tensors[f"key_value/{index}"] = layer(tokens, mask)
        weight = mask[..., None] / mask.sum(dim=1)[:, None, None]
        auxiliary = self.predict_auxiliary(features) if self.spec.auxiliary_names else None
        return Context(tensors, (tokens * weight).sum(dim=1), auxiliary)


class Pocket(PocketPrefix, FlowBackbone):
    """The small flow VLA that ships with the library."""

    Config = PocketConfig
    frequencies: Tensor

    def _build_head(self) -> None:
        config, width, spec = self.config, self.config.width, self.spec
        self.action_in = nn.Linear(spec.action_dim, width)
        self.action_positions = nn.Parameter(torch.randn(config.horizon, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.modulation = nn.Linear(width, (6 * config.layers + 2) * width)
        self.expert = nn.ModuleList(ExpertLayer(width, config.heads, config.hidden) for _ in range(config.layers))
        self.action_out = nn.Linear(width, spec.action_dim)
        self.register_buffer("frequencies", make_time_frequencies(width), persistent=False)
        # Modulation independent of time at first: scale and shift 0, gates 1. With gates of 0, as in π0.5, a two-layer
        # expert needed 1.5 times as many steps to reach the same error.
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        gates = self.modulation.bias.data[: 6 * config.layers * width]
        gates.view(config.layers, 2, 3, width)[:, :, 2] = 1.0

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, W]."""
        times = t[:, None] if t.dim() == 1 else t
        angle = times.reshape(-1, 1) * self.frequencies
        condition = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        by_time = self.modulation(condition).unflatten(-1, (-1, self.config.width))
        modulation = by_time.unflatten(0, times.shape).transpose(1, 2)  # scales, shifts, gates [n, 6 layers + 2, …, W]
        tokens = self.action_in(x) + self.action_positions
        mask = F.pad(context.tensors["mask"], (0, x.shape[1]), value=True)
        for index, layer in enumerate(self.expert):
            key_value = context.tensors[f"key_value/{index}"]
            tokens = layer(tokens, modulation[:, 6 * index : 6 * index + 6], key_value, mask)
        features = modulate(tokens, modulation[:, -2], modulation[:, -1])
        return self.action_out(features), features
