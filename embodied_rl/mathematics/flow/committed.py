"""Committed actions as policies that are trained on them take them (training-time RTC, arXiv:2512.05964).

A robot that acts while its policy thinks executes the first actions of the new chunk before the chunk is there. They
stand clean in the chunk from the first denoise step on, at a flow time of their own: 0. They get no noise and no score.

Shapes: n rows, H predicted actions, D action dimensions of the model.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from embodied_rl.mathematics.flow.transition import Transition


@dataclass(frozen=True)
class Committed:
    """The first actions of n chunks, which are already fixed.

    Attributes:
        actions: float32 [n, H, D], x₀ of the committed actions; the other entries are not read.
        counts: int64 [n], how many of a row's first actions are committed.
    """

    actions: Tensor
    counts: Tensor

    def to(self, device: torch.device | str) -> "Committed":
        """Return the same on `device`."""
        return Committed(self.actions.to(device), self.counts.to(device))

    @cached_property
    def mask(self) -> Tensor:
        """Return bool [n, H], True for committed actions."""
        return torch.arange(self.actions.shape[1], device=self.counts.device) < self.counts[:, None]

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no row has a committed action: the sampler then is the plain one, to the bit."""
        return not bool(self.counts.any())

    def hold(self, x: Tensor) -> Tensor:
        """Return x [n, H, D] with the committed actions in their places."""
        return torch.where(self.mask[..., None], self.actions, x)

    def select_following(self, values: Tensor, count: int) -> Tensor:
        """Return the first `count` entries after each row's committed actions, [n, H, …] → [n, count, …]."""
        places = self.counts[:, None] + torch.arange(count, device=values.device)
        return values[torch.arange(len(values), device=values.device)[:, None], places]

    def give_times(self, t: Tensor) -> Tensor:
        """Return the flow time of each action, [n, H], from that of the rows, [n]; t itself where nothing is held."""
        return t if self.is_empty else torch.where(self.mask, 0, t[:, None])

    def freeze(self, x: Tensor, transition: Transition) -> Transition:
        """Return a transition from x [n, H, D] without motion and noise, and so without a score, where x is held."""
        mask = self.mask[..., None]
        return Transition(torch.where(mask, x, transition.mean), torch.where(mask, 0, transition.std))


def give_times(committed: Committed | None, t: Tensor) -> Tensor:
    """Return flow times [n, H] of the actions where some are committed, else t [n]."""
    return t if committed is None else committed.give_times(t)


def freeze(committed: Committed | None, x: Tensor, transition: Transition) -> Transition:
    """Return the transition from x [n, H, D], without motion and noise of what is committed."""
    return transition if committed is None else committed.freeze(x, transition)
