"""A rollout as rows to learn from.

Shapes: T decisions, N environments, B = T·N rows, Hx executed actions, D' scored entries of an action.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embodied_rl.interfaces.policy import Trace
from embodied_rl.interfaces.sim import Source
from embodied_rl.objectives.reduce import step_mask
from embodied_rl.rollout.buffer import Rollout


@dataclass
class Batch:
    """A rollout as rows.

    Attributes:
        trace: [B, ...], what the actor recorded.
        log_prob: float32 [B, Hx, D'] under the policy that ratios are taken to: the rollout's weights, or those at the
            start of the update where `weight` says how much a row counts.
        mask: bool [B, Hx], the executed actions that the policy chose itself.
        advantage: float32 [B].
        value, returns: float32 [B], for a critic that learns with the policy; None for none.
        rows: int64 [R], the rows that may be learned from.
        version: int64 [B] of the weights that decided; None where all are the present ones.
        weight: float32 of the shape of the ratios, [B], [B, Hx] or [B, Hx, D'], by which each one's loss is multiplied;
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
        """Some rows, all of them valid."""
        optional = {name: getattr(self, name) for name in ("value", "returns", "version", "weight")}
        return replace(
            self,
            trace={name: tensor[rows] for name, tensor in self.trace.items()},
            log_prob=self.log_prob[rows],
            mask=self.mask[rows],
            advantage=self.advantage[rows],
            rows=torch.arange(len(rows)),
            **{name: None if tensor is None else tensor[rows] for name, tensor in optional.items()},
        )


def as_batch(
    rollout: Rollout,
    advantage: Tensor,
    learnable: Tensor | None = None,
    *,
    value: Tensor | None = None,
    returns: Tensor | None = None,
) -> Batch:
    """A rollout's tensors [T, N, ...] as rows.

    Args:
        rollout: what was collected; left as it is.
        advantage: float32 [T, N].
        learnable: bool [T, N], the rows to learn from; by default all that are valid.
        value, returns: float32 [T, N], for a critic that learns with the policy.
    """
    executed = step_mask(rollout.steps, rollout.reward.shape[-1])
    mask = executed & (rollout.source == int(Source.POLICY))
    learnable = rollout.valid if learnable is None else learnable
    return Batch(
        trace={name: tensor.flatten(0, 1) for name, tensor in rollout.trace.items()},
        log_prob=rollout.log_prob.flatten(0, 1),
        mask=mask.flatten(0, 1),
        advantage=advantage.flatten(),
        rows=learnable.flatten().nonzero().squeeze(1),
        value=None if value is None else value.flatten(),
        returns=None if returns is None else returns.flatten(),
        version=rollout.version.flatten(),
    )
