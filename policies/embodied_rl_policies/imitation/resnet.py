"""ResNet-18 and -34 (arXiv:1512.03385) without pooling and classifier, with torchvision's names of parameters.

Shapes: `n` rows, `h` and `w` pixels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
"""Name of a trunk → blocks of each of its four layers."""
WIDTHS = (64, 128, 256, 512)
"""Channels of these layers; the trunk shrinks images 32 times."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

MakeNorm = Callable[[int], nn.Module]


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with fixed statistics; scale and offset learn if `learns`."""

    def __init__(self, channels: int, learns: bool = False) -> None:
        super().__init__()
        for name, value in {"weight": torch.ones(channels), "bias": torch.zeros(channels)}.items():
            setattr(self, name, nn.Parameter(value)) if learns else self.register_buffer(name, value)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of [n, channels, h, w]."""
        known: Any = (self.running_mean, self.running_var, self.weight, self.bias)
        return F.batch_norm(x, *known, training=False)


def make_group_norm(channels: int) -> nn.Module:
    """Build a group normalisation of 16 channels a group, as Diffusion Policy replaces batch normalisation."""
    return nn.GroupNorm(channels // 16, channels)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, entering: int, leaving: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, leaving, 3, stride, 1, bias=False)
        self.bn1 = norm(leaving)
        self.conv2 = nn.Conv2d(leaving, leaving, 3, 1, 1, bias=False)
        self.bn2 = norm(leaving)
        changed = stride > 1 or entering != leaving
        shortcut = nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), norm(leaving))
        self.downsample = shortcut if changed else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [n, entering, h, w]."""
        updated = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(updated + (x if self.downsample is None else self.downsample(x)))


def make_trunk(name: str, norm: MakeNorm) -> dict[str, nn.Module]:
    """Build the parts of a trunk in order, by torchvision's names: [n, 3, h, w] in, [n, 512, ⌈h/32⌉, ⌈w/32⌉] out."""
    first = nn.Conv2d(3, WIDTHS[0], 7, 2, 3, bias=False)
    parts = {"conv1": first, "bn1": norm(WIDTHS[0]), "relu": nn.ReLU(), "maxpool": nn.MaxPool2d(3, 2, 1)}
    entering = WIDTHS[0]
    for index, (width, count) in enumerate(zip(WIDTHS, BLOCKS[name], strict=True)):
        strides = [1 if index == 0 else 2, *[1] * (count - 1)]
        blocks = [BasicBlock(entering if block == 0 else width, width, s, norm) for block, s in enumerate(strides)]
        parts[f"layer{index + 1}"], entering = nn.Sequential(*blocks), width
    for module in (module for part in parts.values() for module in part.modules()):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return parts
