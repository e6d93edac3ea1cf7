"""FiLM (arXiv:1709.07871) in OpenVLA-OFT's vision towers: the prompt's mean embedding scales and shifts each block.

Sources: openvla-oft, `prismatic/models/film_vit_wrapper.py`, and `_apply_film_to_vla` in
`experiments/robot/openvla_utils.py`. That code stores these towers with the low-rank maps (LoRA) that they were trained
with, and adds the same maps before it loads them; so they stay apart here. They are named `down` and `up` instead of
peft's `lora_A.default` and `lora_B.default`: `policy.train=lora` neither trains nor merges them.

Shapes: `n` images, `T` tokens, `V` width of a tower, `W` width of the language model, `r` rank of the maps.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from embodied_rl_policies.openvla.vision import Block, VisionTower

LARGEST_ALPHA = 16
"""The low-rank map is multiplied by min(r, 16) / r."""

Shape = tuple[int, ...]


class AdaptedLayer(nn.Module):
    """A linear map or convolution, to which a low-rank one is added: base(x) + min(r, 16) / r · up(down(x))."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int) -> None:
        """Wrap `base`; the added map is zero at first."""
        super().__init__()
        self.base_layer, self.factor = base, min(rank, LARGEST_ALPHA) / rank
        self.down: nn.Module
        if isinstance(base, nn.Conv2d):
            size, step = (base.kernel_size[0], base.kernel_size[1]), (base.stride[0], base.stride[1])
            self.down = nn.Conv2d(base.in_channels, rank, kernel_size=size, stride=step, bias=False)
            self.up = nn.Conv2d(rank, base.out_channels, kernel_size=1, bias=False)
        else:
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.factor * self.up(self.down(x))


class FilmBlock(nn.Module):
    """A transformer block that is modulated after its attention: x · (1 + scale(w)) + shift(w)."""

    def __init__(self, block: Block, width: int, words: int) -> None:
        super().__init__()
        self.block = block
        self.scale, self.shift = (nn.Linear(words, width) for _ in range(2))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Compute the tokens [n, T, V] after this block from those before it, and the mean embedding [n, W]."""
        x = self.block.attend(x)
        return self.block.feed(x * (1 + self.scale(words)[:, None]) + self.shift(words)[:, None])


class FilmedVisionBackbone(nn.Module):
    """Both vision towers with FiLM, under the names of the official wrapper."""

    def __init__(self, towers: Any, words: int, rank: int) -> None:
        """Wrap a `VisionBackbone`, and change its towers; `words`: W, `rank`: r."""
        super().__init__()
        self.vision_backbone = towers
        for tower in (towers.featurizer, towers.fused_featurizer):
            _add_film(tower, words, rank)

    def forward(self, *given: Any) -> Tensor:
        return self.vision_backbone(*given)


def _add_film(tower: VisionTower, words: int, rank: int) -> None:
    """Give a tower FiLM for embeddings of width `words`, and low-rank maps where peft's "all-linear" has them."""
    layers: list[tuple[Any, str]] = [(tower.patch_embed, "proj")]
    for index, block in enumerate(tower.blocks):
        assert isinstance(block, Block)
        layers += [(block.attn, "qkv"), (block.attn, "proj"), (block.mlp, "fc1"), (block.mlp, "fc2")]
        tower.blocks[index] = FilmBlock(block, tower.pos_embed.shape[-1], words)
    for parent, name in layers:
        setattr(parent, name, AdaptedLayer(getattr(parent, name), rank))


def list_film_shapes(plain: Mapping[str, Shape], words: int, rank: int) -> dict[str, Shape]:
    """Convert name → shape of a tower's tensors to those which it has with FiLM and low-rank maps."""
    found: dict[str, Shape] = {}
    for stored, shape in plain.items():
        name = re.sub(r"(blocks\.\d+)\.", r"\1.block.", stored)
        layer, _, kind = name.rpartition(".")
        if layer.endswith(".block.norm1"):
            block, width = layer.removesuffix("block.norm1"), shape[0]
            found |= {f"{block}{part}.weight": (width, words) for part in ("scale", "shift")}
            found |= {f"{block}{part}.bias": (width,) for part in ("scale", "shift")}
        if kind not in ("weight", "bias") or "norm" in layer:
            found[name] = shape
            continue
        found[f"{layer}.base_layer.{kind}"] = shape
        if kind == "weight":
            outputs, *inputs = shape
            found[f"{layer}.down.weight"] = (rank, *inputs)
            found[f"{layer}.up.weight"] = (outputs, rank, *(1 for _ in inputs[1:]))
    return found


def list_plain_shapes(filmed: Mapping[str, Shape]) -> dict[str, Shape]:
    """Convert name → shape of tensors with FiLM to those which the same towers have without; see `list_film_shapes`."""
    added = re.compile(r"\.(scale|shift|down|up)\.(weight|bias)$")
    kept = {name: shape for name, shape in filmed.items() if not added.search(name)}
    return {re.sub(r"\.(block|base_layer)(?=\.)", "", name): shape for name, shape in kept.items()}
