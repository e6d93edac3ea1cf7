"""Executed prefixes of chunks, which a policy learns to continue while the robot executes them.

Shapes: n rows, H predicted actions, D action dimensions of the model.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class ExecutedPrefix:
    """The executed actions of the chunks of n rows, from which prefixes of random length are drawn.

    Attributes:
        actions: float32 [n, H, D] in the model's units, as executed: with disturbances, after clipping.
        least: int64 [n], actions of the shortest prefix of each row, at most `most`.
        most: actions of the longest prefix.
    """

    actions: Tensor
    least: Tensor
    most: int

    def select(self, rows: Tensor) -> "ExecutedPrefix":
        """Return the given rows."""
        return replace(self, actions=self.actions[rows], least=self.least[rows])

    def to(self, device: torch.device) -> "ExecutedPrefix":
        """Return a copy on `device`."""
        return replace(self, actions=self.actions.to(device), least=self.least.to(device))

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw each row's prefix, of uniform length from `least` to `most`; return bool [n, H], set in the prefix."""
        least = self.least[:, None]
        choices = self.most + 1 - least
        length = least + (torch.rand(choices.shape, generator=generator).to(least.device) * choices).long()
        return torch.arange(self.actions.shape[1], device=least.device) < length


def check_prefix(longest: int, horizon: int) -> None:
    """Check that the longest prefix leaves actions of a chunk to learn.

    Raises:
        UserError: it may be a whole chunk.
    """
    if longest >= horizon:
        raise UserError(
            f"algo.prefix={longest}: a chunk of this policy has {horizon} actions, and some must be left to learn. "
            f"Give algo.prefix={horizon - 1} at most, or a longer policy.horizon, where the policy has one.",
            code="prefix-too-long",
        )


def check_no_delay(delay: int) -> None:
    """Check that no delay is configured for cloning, which runs no policy.

    Raises:
        UserError: a delay is configured.
    """
    if delay:
        raise UserError(
            f"policy.delay={delay} is of `train`. Cloning learns for a delay with algo.prefix={delay}; `eval "
            f"delay={delay}` shows it.",
            code="delay-in-cloning",
        )
