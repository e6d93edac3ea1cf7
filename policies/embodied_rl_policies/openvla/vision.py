"""The vision transformers of OpenVLA, under the parameter names of timm 0.9 (DINOv2 with registers, and SigLIP).

OpenVLA reads the patches after the second-to-last block, without the final norm. The last block, that norm and SigLIP's
pooling head are in checkpoints and unused; a network has no parameters for them. LayerScale's parameter is named
`scale_factor` there, `gamma` in timm.

Shapes: `n` images, `r` pixels a side, `P` patches, `V` width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl_policies.vlm import recompute_activations

NORM_EPSILON = 1e-6


class LayerScale(nn.Module):
    """A learned factor for each entry."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class SelfAttention(nn.Module):
    """Attention of all tokens to each other; one map makes queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """A transformer block with norms before its parts; DINOv2 scales what each part adds."""

    def __init__(self, width: int, heads: int, hidden: int, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=NORM_EPSILON) for _ in range(2))
        self.attn, self.mlp = SelfAttention(width, heads), FeedForward(width, hidden)
        self.ls1, self.ls2 = (LayerScale(width) if scaled else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(self.attend(x))

    def attend(self, x: Tensor) -> Tensor:
        """Compute the first half: the attention, added to its input."""
        return x + self.ls1(self.attn(self.norm1(x)))

    def feed(self, x: Tensor) -> Tensor:
        """Compute the second half: the feed-forward maps, added to their input."""
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbedding(nn.Module):
    """The linear map of each patch."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """Convert pixels [n, 3, r, r] to patches [n, P, V], row by row."""
        return self.proj(pixels).flatten(2).transpose(1, 2)


class VisionTower(nn.Module):
    """A vision transformer up to its second-to-last block.

    With `registers` it is DINOv2: a class token and register tokens stand before the patches, without a position, and
    blocks have LayerScale. Without, it is SigLIP, which has patches alone.
    """

    def __init__(
        self, *, width: int, heads: int, hidden: int, layers: int, patches: int, patch: int, registers: int
    ) -> None:
        """Build the tower with fresh weights; `layers` counts the unused last block, `patches` is P."""
        super().__init__()
        self.patch_embed = PatchEmbedding(width, patch)
        self.pos_embed = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        if registers:
            self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
            self.reg_token = nn.Parameter(torch.randn(1, registers, width) * 0.02)
        self.registers = registers
        self.blocks = nn.ModuleList(Block(width, heads, hidden, registers > 0) for _ in range(layers - 1))

    def forward(self, pixels: Tensor, recompute: bool = False, words: Tensor | None = None) -> Tensor:
        """Compute the patches [n, P, V] of pixels [n, 3, r, r].

        `recompute` saves activations in the backward pass; `words` is what blocks with FiLM read besides.
        """
        hidden = self.patch_embed(pixels) + self.pos_embed
        before = [self.cls_token, self.reg_token] if self.registers else []
        hidden = torch.cat([*(token.expand(len(hidden), -1, -1) for token in before), hidden], dim=1)
        for block in self.blocks:
            hidden = recompute_activations(block, recompute, hidden, *(() if words is None else (words,)))
        return hidden[:, hidden.shape[1] - self.pos_embed.shape[1] :]


def list_unused_shapes(
    *, width: int, hidden: int, layers: int, scaled: bool, pooled: bool
) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the parameters of a whole timm transformer that `VisionTower` lacks."""
    linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    linear |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
    shapes = _list_linear(linear, f"blocks.{layers - 1}.")
    norms = ["norm", *(f"blocks.{layers - 1}.norm{index}" for index in (1, 2))]
    if scaled:
        shapes |= {f"blocks.{layers - 1}.ls{index}.scale_factor": (width,) for index in (1, 2)}
    if pooled:
        pool = {"q": (width, width), "kv": (2 * width, width), "proj": (width, width)}
        shapes |= _list_linear(pool | {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}, "attn_pool.")
        shapes["attn_pool.latent"] = (1, 1, width)
        norms.append("attn_pool.norm")
    return shapes | {f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}


def _list_linear(maps: dict[str, tuple[int, int]], start: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in maps.items():
        shapes |= {f"{start}{name}.weight": shape, f"{start}{name}.bias": shape[:1]}
    return shapes
