"""The denoising network of Diffusion Policy (arXiv:2303.04137): a U-Net over the actions of a chunk, as lerobot has it.

Shapes: `n` rows, `T` actions, `D` action dimensions, `C` channels, `G` entries of the condition.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class ConvBlock(nn.Module):
    """A convolution over time, group normalisation, and Mish."""

    def __init__(self, entering: int, leaving: int, kernel: int, groups: int) -> None:
        super().__init__()
        convolution = nn.Conv1d(entering, leaving, kernel, padding=kernel // 2)
        self.block = nn.Sequential(convolution, nn.GroupNorm(groups, leaving), nn.Mish())

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [n, entering, T]."""
        return self.block(x)


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut; the condition shifts, and may scale, channels in between (FiLM)."""

    def __init__(self, entering: int, leaving: int, condition: int, kernel: int, groups: int, scales: bool) -> None:
        super().__init__()
        self.conv1 = ConvBlock(entering, leaving, kernel, groups)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, leaving * (2 if scales else 1)))
        self.conv2 = ConvBlock(leaving, leaving, kernel, groups)
        self.residual_conv = nn.Conv1d(entering, leaving, 1) if entering != leaving else nn.Identity()
        self.scales = scales

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Apply the block: x [n, entering, T], condition [n, G] → [n, leaving, T]."""
        hidden, shift = self.conv1(x), self.cond_encoder(condition)[..., None]
        if self.scales:
            scale, shift = shift.chunk(2, dim=1)
            hidden = scale * hidden
        return self.conv2(hidden + shift) + self.residual_conv(x)


class UNet(nn.Module):
    """Denoises chunks under a condition and a diffusion step."""

    def __init__(
        self,
        action_dim: int,
        condition: int,
        *,
        channels: Sequence[int],
        step_width: int,
        kernel: int,
        groups: int,
        scales: bool,
    ) -> None:
        """Build it; every entry of `channels` but the last halves the number of actions."""
        super().__init__()
        self.step_width, inner = step_width, condition + step_width
        first, second = nn.Linear(step_width, 4 * step_width), nn.Linear(4 * step_width, step_width)
        self.diffusion_step_encoder = nn.Sequential(nn.Identity(), first, nn.Mish(), second)

        def pair(entering: int, leaving: int, change: nn.Module) -> nn.ModuleList:
            blocks = [ResidualBlock(size, leaving, inner, kernel, groups, scales) for size in (entering, leaving)]
            return nn.ModuleList([*blocks, change])

        last = channels[-1]
        down = [nn.Conv1d(size, size, 3, 2, 1) for size in channels[:-1]]
        entering = (action_dim, *channels[:-1])
        self.down_modules = nn.ModuleList(map(pair, entering, channels, [*down, nn.Identity()]))
        self.mid_modules = nn.ModuleList(ResidualBlock(last, last, inner, kernel, groups, scales) for _ in range(2))
        levels = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.up_modules = nn.ModuleList(
            pair(2 * wide, narrow, nn.ConvTranspose1d(narrow, narrow, 4, 2, 1)) for wide, narrow in levels
        )
        final = ConvBlock(channels[0], channels[0], kernel, 8)
        self.final_conv = nn.Sequential(final, nn.Conv1d(channels[0], action_dim, 1))

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        """Predict noise or actions [n, T, D] from x [n, T, D] at diffusion steps int64 [n] under conditions [n, G]."""
        half = self.step_width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * -(math.log(10000) / (half - 1)))
        angles = step[:, None] * rates
        known = self.diffusion_step_encoder(torch.cat([angles.sin(), angles.cos()], dim=-1))
        known, kept, hidden = torch.cat([known, condition], dim=-1), list[Tensor](), x.transpose(1, 2)
        for level in self.down_modules:
            first, second, down = cast(nn.ModuleList, level)
            kept.append(second(first(hidden, known), known))
            hidden = down(kept[-1])
        for block in self.mid_modules:
            hidden = block(hidden, known)
        for level in self.up_modules:
            first, second, up = cast(nn.ModuleList, level)
            hidden = up(second(first(torch.cat([hidden, kept.pop()], dim=1), known), known))
        return self.final_conv(hidden).transpose(1, 2)
