"""Qwen3-VL's forward pass for GR00T N1.7, up to the last kept layer: the norm at its end is not applied.

A prompt is the chat template's text with one start and one end token per picture, between which the pictures' tokens
are put. Their places are the same in every row and padding comes last, so masks and positions need no data.

Shapes: `n` rows, `V` pictures of a row, `N` patches and `P` = N / merge² tokens of one, `L` tokens of a prompt,
`T` = L + V · P, `W` width, `d` head dimension.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl_policies.llama import Angles, rotate, split_heads
from embodied_rl_policies.vlm import recompute_activations

VISION_BASE = 10_000.0
"""Base of the rotary frequencies of Qwen's vision towers."""


def see(visual: Any, patches: Tensor, grid: tuple[int, int], *, recompute: bool) -> Tensor:
    """Encode pictures as tokens [m, 1 + K, P, W]: the last layer's, then those of K middle layers ("deepstack").

    Args:
        visual: of `native.make_qwen3_vision`.
        patches: float32 [m, N, c], as `images.make_patches` orders them.
        grid: patches of a picture, (down, across).
        recompute: whether the backward pass recomputes activations.
    """
    hidden = visual.patch_embed(patches.flatten(0, 1)).unflatten(0, (len(patches), -1))
    hidden = hidden + _embed_places(visual, grid).to(hidden.dtype)
    angles = _turn_patches(visual, grid, hidden.device)
    middle: list[Tensor] = []
    for index, block in enumerate(visual.blocks):
        hidden = recompute_activations(_apply_block, recompute, block, hidden, angles)
        if index in visual.deepstack_visual_indexes:
            middle.append(visual.deepstack_merger_list[len(middle)](hidden).unflatten(0, (len(patches), -1)))
    return torch.stack([visual.merger(hidden).unflatten(0, (len(patches), -1)), *middle], dim=1)


def _apply_block(block: Any, hidden: Tensor, angles: Angles) -> Tensor:
    """Apply a layer of the vision tower to patches [m, N, w] of one picture each."""
    attention = block.attn
    parts = attention.qkv(block.norm1(hidden)).chunk(3, dim=-1)
    query, key, value = (split_heads(part, attention.head_dim) for part in parts)
    mixed = F.scaled_dot_product_attention(rotate(query, angles), rotate(key, angles), value)
    hidden = hidden + attention.proj(mixed.transpose(1, 2).flatten(2))
    return hidden + block.mlp(block.norm2(hidden))


def _embed_places(visual: Any, grid: tuple[int, int]) -> Tensor:
    """Interpolate the learned embeddings of a square of places to a grid: [N, w], merged patches together."""
    side = visual.num_grid_per_side
    square = visual.pos_embed.weight.T.unflatten(1, (side, side))[None]
    places = F.interpolate(square, size=grid, mode="bilinear", align_corners=True)[0]
    return _order_merged(places, visual.spatial_merge_size).T


def _order_merged(values: Tensor, merge: int) -> Tensor:
    """Order a grid [..., down, across] patch by patch, merged ones together: [..., N]."""
    blocks = values.unflatten(-2, (-1, merge)).unflatten(-1, (-1, merge))
    return blocks.transpose(-3, -2).flatten(-4)


def _turn_patches(visual: Any, grid: tuple[int, int], device: torch.device) -> Angles:
    """Return the rotary angles of patches, cosine and sine float32 [N, d / 2]: rows first, then columns."""
    half = visual.blocks[0].attn.head_dim // 2
    frequency = VISION_BASE ** (-torch.arange(0, half, 2, device=device, dtype=torch.float32) / half)
    rows, columns = torch.meshgrid(*(torch.arange(size, device=device) for size in grid), indexing="ij")
    places = torch.stack([_order_merged(part, visual.spatial_merge_size) for part in (rows, columns)], dim=-1)
    angle = (places[..., None].float() * frequency).flatten(1)
    return angle.cos(), angle.sin()


def insert_pictures(words: Tensor, pictures: Tensor, start: int) -> Tensor:
    """Put pictures [n, V, P, W] into the words [n, L, W] of prompts, the first after `start` words: [n, T, W]."""
    cuts = [0, *(start + 2 * index for index in range(pictures.shape[1])), words.shape[1]]
    parts: list[Tensor] = []
    for index, (low, high) in enumerate(pairwise(cuts)):
        parts += [words[:, low:high], *([pictures[:, index]] if index < pictures.shape[1] else [])]
    return torch.cat(parts, dim=1)


def find_places(start: int, pictures: int, grid: tuple[int, int], length: int, device: torch.device) -> Tensor:
    """Return the places int64 [3, T] of tokens in time, height and width, as Qwen3-VL counts them.

    A word advances all three by one; a picture's tokens have one time, and the next word comes after its longer side.
    `grid`: tokens of a picture, (down, across).
    """
    rows, columns = torch.meshgrid(*(torch.arange(size, device=device) for size in grid), indexing="ij")
    inner = torch.stack([torch.zeros_like(rows), rows, columns]).flatten(1)
    parts: list[Tensor] = []
    done = place = 0
    for upto in [*(start + 2 * index for index in range(pictures)), length]:
        parts.append((torch.arange(upto - done, device=device) + place).expand(3, -1))
        place += upto - done
        if len(parts) < 2 * pictures + 1:
            parts.append(inner + place)
            place += max(grid)
        done = upto
    return torch.cat(parts, dim=1)


def find_pictures(start: int, pictures: int, tokens: int, length: int, device: torch.device) -> Tensor:
    """Return which of T tokens are those of pictures, bool [T]; `tokens`: P."""
    word = torch.zeros(1, length, 1, dtype=torch.bool, device=device)
    return insert_pictures(word, torch.ones(1, pictures, tokens, 1, dtype=torch.bool, device=device), start)[0, :, 0]


def read(language: Any, embedded: Tensor, middle: Tensor, seen: Tensor, places: Tensor, config: Any) -> Tensor:
    """Apply the decoder to embedded tokens [n, T, W], each of which sees those before it; return the last layer's.

    Args:
        language: of `native.make_qwen3_language`.
        embedded: the prompts with their pictures.
        middle: [n, K, T, W], what is added behind each of the first K layers; 0 for words.
        seen: bool [n, T], which tokens are no padding.
        places: int64 [3, T].
        config: sizes of the network.
    """
    order = torch.ones(seen.shape[1], seen.shape[1], dtype=torch.bool, device=seen.device).tril()
    mask = (order & seen[:, None])[:, None]
    cosine, sine = _turn_words(places, config.head_dim, config.rotary_base, config.rotary_sections)
    angles = cosine.to(embedded.dtype)[None], sine.to(embedded.dtype)[None]
    hidden = embedded

    def apply(layer: Any, tokens: Tensor) -> Tensor:
        return layer(tokens, position_embeddings=angles, attention_mask=mask)

    for index, layer in enumerate(language.layers):
        hidden = recompute_activations(apply, config.gradient_checkpointing, layer, hidden)
        if index < middle.shape[1]:
            hidden = hidden + middle[:, index]
    return hidden


def _turn_words(places: Tensor, head_dim: int, base: float, sections: Sequence[int]) -> Angles:
    """Return cosine and sine float32 [T, d] of interleaved multimodal rotary positions (Qwen3-VL).

    Frequency i belongs to height if i % 3 = 1 and i < 3 · sections[1], to width if i % 3 = 2 and i < 3 · sections[2],
    and else to time.
    """
    index = torch.arange(head_dim // 2, device=places.device)
    frequency = 1.0 / (base ** (2 * index.float() / head_dim))
    axis = torch.zeros_like(index)
    for number in (1, 2):
        axis = torch.where((index % 3 == number) & (index < 3 * sections[number]), number, axis)
    angle = places[axis].T.float() * frequency
    twice = torch.cat([angle, angle], dim=-1)
    return twice.cos(), twice.sin()
