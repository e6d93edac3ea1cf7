"""Batches of rows that an algorithm learns from.

Shapes: T decisions, N environments, B = T·N rows, Hx executed actions, D' scored entries of an action.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from embodied_rl.interfaces.policy import Trace
from embodied_rl.rollout.action_queue import find_scored
from embodied_rl.rollout.buffer import Rollout

_OPTIONAL = ("value", "returns", "version", "weight")


@dataclass
class Batch:
    """Rows of a rollout.

    Attributes:
        trace: [B, ...], what the actor recorded.
        log_prob: float32 [B, Hx, D'] under the reference policy of the ratios: the rollout's weights, or those at the
            start of the update where `weight` is set.
        mask: bool [B, Hx], the executed actions that the policy chose itself.
        advantage: float32 [B].
        value, returns: float32 [B], for a critic that learns with the policy; None for none.
        rows: int64 [R], the rows that may be learned from.
        version: int64 [B], version of the weights that chose the action; None where all are the present ones.
        weight: factor on the loss of each ratio, float32 of the shape of the ratios, [B], [B, Hx] or [B, Hx, D'];
            None for 1.
    """

    trace: Trace
    log_prob: Tensor
    mask: Tensor
    advantage: Tensor
    rows: Tensor
    value: Tensor | None = None
    returns: Tensor | None = None
    version: Tensor | None = None
    weight: Tensor | None = None

    def select(self, rows: Tensor) -> "Batch":
        """Return a batch of the given rows; all of them count as valid."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        return replace(
            self,
            trace={name: tensor[rows] for name, tensor in self.trace.items()},
            log_prob=self.log_prob[rows],
            mask=self.mask[rows],
            advantage=self.advantage[rows],
            rows=torch.arange(len(rows)),
            **{name: None if tensor is None else tensor[rows] for name, tensor in optional.items()},
        )


def concatenate_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate the rows of batches that have the same tensors, in order; return a single batch unchanged.

    Traces that follow each other in memory, as those of a rollout's segments do, are not copied.
    """
    if len(parts) == 1:
        return parts[0]
    offsets = accumulate((len(part.advantage) for part in parts[:-1]), initial=0)
    names = ("log_prob", "mask", "advantage", *_OPTIONAL)
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return replace(
        parts[0],
        trace={name: _concat_views([part.trace[name] for part in parts]) for name in parts[0].trace},
        rows=torch.cat([part.rows + offset for part, offset in zip(parts, offsets, strict=True)]),
        **{name: None if column[0] is None else torch.cat(column) for name, column in columns.items()},
    )


def _concat_views(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors [n, ...]; return a view if they are adjacent in memory."""
    first, storages = parts[0], {part.untyped_storage().data_ptr() for part in parts}
    apart = any(after.data_ptr() != before.data_ptr() + before.nbytes for before, after in pairwise(parts))
    if apart or len(storages) > 1 or not all(part.is_contiguous() for part in parts):
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())


def as_batch(
    rollout: Rollout,
    advantage: Tensor,
    learnable: Tensor | None = None,
    *,
    value: Tensor | None = None,
    returns: Tensor | None = None,
) -> Batch:
    """Convert a rollout's tensors [T, N, ...] to rows.

    Args:
        rollout: collected data; not changed.
        advantage: float32 [T, N].
        learnable: bool [T, N], the rows to learn from; by default all valid rows.
        value, returns: float32 [T, N], for a critic that learns with the policy.
    """
    learnable = rollout.valid if learnable is None else learnable
    return Batch(
        trace={name: tensor.flatten(0, 1) for name, tensor in rollout.trace.items()},
        log_prob=rollout.log_prob.flatten(0, 1),
        mask=find_scored(rollout).flatten(0, 1),
        advantage=advantage.flatten(),
        rows=learnable.flatten().nonzero().squeeze(1),
        value=None if value is None else value.flatten(),
        returns=None if returns is None else returns.flatten(),
        version=rollout.version.flatten(),
    )
