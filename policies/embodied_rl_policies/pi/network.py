"""Common part of π0 (arXiv:2410.24164) and π0.5 (arXiv:2504.16054): PaliGemma prefix, Gemma action expert.

Images and words attend to each other; their keys and values are computed once per decision. At each denoise step the
expert's tokens attend to these and to themselves. The conventions are openpi's: t = 1 is noise; image features are not
scaled; word embeddings are scaled by √width.

Shapes: `n` rows, `C` cameras, `P` patches of one camera, `L` prompt tokens, `T` = C·P + L prefix tokens, `W` width,
`H` actions, `D` action dimensions, `E` the expert's width, `h` heads, `d` head dimension, `N` layers, `t` query tokens,
`s` key tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Backbone, Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl_policies import native
from embodied_rl_policies.pi.config import MAX_PERIOD, MIN_PERIOD, PiConfig, list_unused_shapes, read_sizes
from embodied_rl_policies.vlm import embed_time, list_adapted, prepare_images, recompute_activations

PALIGEMMA = "paligemma_with_expert.paligemma.model."
ROTARY_BASE = 10_000.0

Angles = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary angles of n × t positions, float32 [n, 1, t, d] each."""


class Projector(nn.Module):
    """A linear projection from the vision tower's width to the language model's width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)


class PaliGemma(ForeignCheckpoint, Backbone):
    """PaliGemma's vision tower and language model, which these policies and π0-FAST share."""

    CAN_BE_EMPTY = True
    HUB_TOKENIZER = "google/paligemma-3b-pt-224"
    HUB_TOKENS: ClassVar[Mapping[str, int]] = {"<pad>": 0, "<bos>": 2, "<loc0000>": 256_000, "<seg127>": 257_151}
    CHECKPOINT_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision.": (f"{PALIGEMMA}vision_tower.vision_model.", f"{PALIGEMMA}vision_tower."),
        "projector.": (f"{PALIGEMMA}multi_modal_projector.",),
        "language.": (f"{PALIGEMMA}language_model.",),
    }
    CHECKPOINT_UNREAD: ClassVar[tuple[str, ...]] = (
        r"paligemma_with_expert\.paligemma\.model\.vision_tower\.(vision_model\.)?head\.",
    )

    config: Any
    vision: Any
    language: Any

    def __init__(self, config: Any, spec: PolicySpec, vocabulary_size: int, auxiliary_names: Sequence[str]) -> None:
        """Build vision tower and language model with fresh weights from torch's global generator.

        Raises:
            UserError: no camera is given, or auxiliary names are.
        """
        super().__init__()
        if not spec.cameras:
            raise UserError("policy.cameras: this policy needs at least one camera.", code="camera-missing")
        if auxiliary_names:
            raise UserError(
                "algo.auxiliary_names: this policy has no head that predicts positions; give [], in sft algo=sft_vla.",
                code="auxiliary-head-missing",
            )
        self.config, self.spec = config, spec
        self.vision = native.make_siglip(config)
        self.projector = Projector(config.vision_width, config.width)
        heads = {"layers": config.layers, "heads": config.heads, "head_dim": config.head_dim}
        vocabulary = config.vocabulary or vocabulary_size
        self.language = native.make_gemma(width=config.width, hidden=config.hidden, vocabulary=vocabulary, **heads)
        del self.language.rotary_emb
        self._initialise_positions()

    def _initialise_positions(self) -> None:
        """Initialise position embeddings with sines and cosines; small networks do not learn them from scratch."""
        places = self.vision.embeddings.position_embedding.weight
        side = round(len(places) ** 0.5)
        y, x = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="ij")
        frequency = torch.exp(torch.linspace(0, math.log(side), places.shape[1] // 4)) * math.pi / 2
        angle = torch.cat([axis.flatten()[:, None] * frequency for axis in (x, y)], dim=1)
        encoded = torch.cat([angle.sin(), angle.cos()], dim=1)
        with torch.no_grad():
            places[:, : encoded.shape[1]] = encoded.to(places.device)

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the vision tower and its projection."""
        return [*self.vision.parameters(), *self.projector.parameters()]

    def restore_buffers(self) -> None:
        """Fill the two buffers that no checkpoint holds, after the network was created on the meta device."""
        patches, words = self.vision.embeddings, self.language.embed_tokens
        places = patches.position_embedding.weight
        patches.position_ids = torch.arange(len(places), device=places.device)[None]
        words.embed_scale = torch.tensor(self.config.width**0.5, device=words.weight.device)

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute image features [n, C, P, W]."""
        images = [
            prepare_images(inputs.images[name], self.config.resolution, centred=True) for name in self.spec.cameras
        ]
        pixels = torch.cat(images).to(self.projector.linear.weight.dtype)
        features = self.projector.linear(self.vision(pixels).last_hidden_state)
        return {"image": features.unflatten(0, (len(self.spec.cameras), -1)).transpose(0, 1)}


class Pi(PaliGemma, FlowBackbone):
    """The prefix and the common part of the action expert; `Pi0` and `Pi05` define the expert's tokens."""

    CHECKPOINT_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **PaliGemma.CHECKPOINT_NAMES,
        "expert.": ("paligemma_with_expert.gemma_expert.model.",),
    }
    CHECKPOINT_COPIES: ClassVar[Mapping[str, str]] = {
        "paligemma_with_expert.paligemma.lm_head.weight": f"{PALIGEMMA}language_model.embed_tokens.weight",
    }
    CHECKPOINT_UNREAD: ClassVar[tuple[str, ...]] = (
        r"paligemma_with_expert\.paligemma\.model\.language_model\.norm\.weight$",
        r"paligemma_with_expert\.paligemma\.model\.language_model\.layers\.\d+\.(mlp|post_attention_layernorm)\.",
        r"paligemma_with_expert\.paligemma\.model\.language_model\.layers\.\d+\.self_attn\.[qo]_proj\.",
        r"paligemma_with_expert\.gemma_expert\.lm_head\.weight$",
        r"paligemma_with_expert\.gemma_expert\.model\.embed_tokens\.weight$",
        *PaliGemma.CHECKPOINT_UNREAD,
    )

    config: PiConfig
    expert: Any

    def __init__(
        self,
        config: PiConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights from torch's global generator.

        The robot's dimensions may not exceed those of `config`, and the tokenizer's `vocabulary_size` counts if
        `config` has none. Cameras are in order; their images have any size. `auxiliary_names` must be empty.

        Raises:
            UserError: the robot has more dimensions than the network, no camera is given, or auxiliary names are.
        """
        for name, robot, size in (("action", action_dim, config.action_dim), ("state", state_dim, config.state_dim)):
            if robot > size:
                raise UserError(
                    f"The robot has {robot} {name} entries, the network takes {size}: choose a simulator with fewer, "
                    f"or a network with policy.{name}_dim={robot}.",
                    code="policy-robot-mismatch",
                )
        spec = PolicySpec(
            horizon=config.horizon,
            action_dim=config.action_dim,
            state_dim=config.state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=config.expert_width,
            context_dim=config.width,
        )
        super().__init__(config, spec, vocabulary_size, auxiliary_names)
        heads = {"layers": config.layers, "heads": config.heads, "head_dim": config.head_dim}
        self.expert = native.make_gemma(width=config.expert_width, hidden=config.expert_hidden, vocabulary=1, **heads)
        last = self.language.layers[-1]
        del last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm, self.language.norm
        del self.expert.embed_tokens, self.expert.rotary_emb
        self.action_in_proj = nn.Linear(config.action_dim, config.expert_width)
        self.action_out_proj = nn.Linear(config.expert_width, config.action_dim)

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes from tensors where possible, else from openpi's or lerobot's configuration."""
        return read_sizes(shapes, config, given)

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the unused end of the language model and of the expert's output layer."""
        return list_unused_shapes(self.config, self.language.embed_tokens.weight.shape[0])

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the configuration entries; openpi and lerobot have only names for the published variants.

        Raises:
            UserError: the format is openpi, and the periods are not openpi's.
        """
        variants = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
        periods = {"min_period": self.config.min_period, "max_period": self.config.max_period}
        if form == "openpi":
            if tuple(periods.values()) != (MIN_PERIOD, MAX_PERIOD):
                raise UserError(
                    f"openpi has the periods {MIN_PERIOD} to {MAX_PERIOD} alone: give format=lerobot.",
                    code="export-not-expressible",
                )
            return variants | {"precision": "float32"}
        sides = {"image_resolution": [self.config.resolution] * 2}
        return variants | {"dtype": "float32", "num_inference_steps": steps} | periods | sides

    def prefix_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of vision and language model."""
        return [*self.perception_parameters(), *self.language.parameters()]

    def adapted_modules(self) -> list[str]:
        """Return the used attention and feed-forward layers of language model and expert."""
        return list_adapted("language.", self.config.layers)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the projections of state, actions and time."""
        towers = ("vision.", "projector.", "language.", "expert.")
        return [parameter for name, parameter in self.named_parameters() if not name.startswith(towers)]

    def encode_prefix(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute keys and values [n, N, 2, 1, T, d], the token mask bool [n, T], and the pooled prefix [n, W]."""
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        tokens = torch.cat([features["image"].flatten(1, 2), self.language.embed_tokens(inputs.tokens)], dim=1)
        always = inputs.tokens.new_ones(len(tokens), tokens.shape[1] - inputs.tokens.shape[1], dtype=torch.bool)
        mask = torch.cat([always, inputs.tokens != 0], dim=1)
        angles = make_rotary_angles(mask.cumsum(dim=1) - 1, self.config.head_dim)
        kept: list[Tensor] = []
        for layer in self.language.layers[:-1]:
            tokens, both = recompute_activations(
                run_prefix_layer, self.config.gradient_checkpointing, layer, tokens, mask, angles
            )
            kept.append(both)
        last = self.language.layers[-1]
        kept.append(torch.stack(project_key_value(last, last.input_layernorm(tokens), angles), dim=1))
        weight = mask[..., None] / mask.sum(dim=1)[:, None, None]
        return {"key_value": torch.stack(kept, dim=1), "mask": mask, "pooled": (tokens.float() * weight).sum(dim=1)}

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode the prefix, and add the expert's inputs from the state.

        `pooled` is the mean of the existing tokens at the input of the last layer; that layer's output is not used.
        """
        prefix = inputs.prefix if inputs.prefix is not None else self.encode_prefix(inputs)
        tensors = {name: prefix[name] for name in ("key_value", "mask")} | self.expert_inputs(inputs)
        return Context(tensors, prefix["pooled"].float())

    def expert_inputs(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Return the expert's inputs from the observation, except the prefix; batch-first."""
        return {}

    def time_embedding(self, t: Tensor) -> Tensor:
        """Embed flow times [...] by the configured periods, float32 [..., E]; see `embed_time`."""
        config = self.config
        return embed_time(t, config.expert_width, config.min_period, config.max_period).float()

    def expert_masks(self, present: Tensor, tokens: int, first_alone: bool) -> tuple[Tensor, Angles]:
        """Build the mask bool [n, 1, t, T + t] of the expert's tokens, and their angles.

        All tokens see the prefix and each other, but a state token sees no action. Their positions follow the prefix's.

        Args:
            present: bool [n, T], True for existing prefix tokens.
            tokens: number t of the expert's tokens.
            first_alone: whether the first of these tokens is the state.
        """
        own = torch.ones(tokens, tokens, dtype=torch.bool, device=present.device)
        if first_alone:
            own[0, 1:] = False
        seen = present[:, None, None].expand(-1, 1, tokens, -1)
        positions = present.sum(dim=1, keepdim=True) + torch.arange(tokens, device=present.device)
        mask = torch.cat([seen, own.expand(len(present), 1, -1, -1)], dim=-1)
        return mask, make_rotary_angles(positions, self.config.head_dim)


def attend_expert(layer: Any, normed: Tensor, kept: Tensor, mask: Tensor, angles: Angles) -> Tensor:
    """Attend from the expert's normed tokens [n, t, E] to cached keys and values [n, 2, 1, T, d] and to themselves."""
    key, value = project_key_value(layer, normed, angles)
    kept = kept.to(key.dtype)
    key, value = torch.cat([kept[:, 0], key], dim=2), torch.cat([kept[:, 1], value], dim=2)
    return attend(layer, normed, key, value, mask, angles)


def run_prefix_layer(layer: Any, tokens: Tensor, mask: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    """Apply a prefix layer: tokens [n, T, W] → the next layer's tokens, own keys and values [n, 2, 1, T, d]."""
    normed = layer.input_layernorm(tokens)
    key, value = project_key_value(layer, normed, angles)
    tokens = tokens + attend(layer, normed, key, value, mask[:, None, None], angles)
    return tokens + layer.mlp(layer.post_attention_layernorm(tokens)), torch.stack([key, value], dim=1)


def make_rotary_angles(positions: Tensor, head_dim: int) -> Angles:
    """Compute rotary angles of positions int64 [n, t] (arXiv:2104.09864): cosine and sine float32 [n, 1, t, d]."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions[:, None, :, None].float() / ROTARY_BASE**exponent
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate x [n, h, t, d] by the angles of its positions; entry i of d pairs with entry i + d/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine.to(x.dtype) + torch.cat([-second, first], dim=-1) * sine.to(x.dtype)


def project_key_value(layer: Any, normed: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    """Compute rotated keys, and values, [n, 1, t, d] each, of normed tokens [n, t, W]."""
    attention = layer.self_attn
    key = rotate(split_heads(attention.k_proj(normed), attention.head_dim), *angles)
    return key, split_heads(attention.v_proj(normed), attention.head_dim)


def attend(layer: Any, normed: Tensor, key: Tensor, value: Tensor, mask: Tensor, angles: Angles) -> Tensor:
    """Attend from normed tokens [n, t, W] to key and value [n, 1, s, d] where mask bool [n, 1, t, s] is True."""
    attention = layer.self_attn
    query = rotate(split_heads(attention.q_proj(normed), attention.head_dim), *angles)
    heads = query.shape[1]
    shared = key.expand(-1, heads, -1, -1), value.expand(-1, heads, -1, -1)
    mixed = F.scaled_dot_product_attention(query, *shared, attn_mask=mask)
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))


def split_heads(projected: Tensor, head_dim: int) -> Tensor:
    """Split the heads: [n, t, h·d] → [n, h, t, d]."""
    return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def clean_text(text: str) -> str:
    """Return an instruction on one line, without underscores."""
    return text.strip().replace("_", " ").replace("\n", " ")
