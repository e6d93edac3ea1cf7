"""The clipped policy update that PPO and GRPO share: ratios, trust region, stale rows.

Shapes: B rows, Hx executed actions, D' scored entries of an action.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Evaluation
from embodied_rl.mathematics.objectives.losses import Level, clip_fraction, clipped_policy_loss
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch, decouple_stale, find_stale_rows
from embodied_rl.training.algorithms.minibatch_update import MinibatchUpdate, UpdateConfig


@dataclass(frozen=True)
class ClippedConfig(UpdateConfig):
    """Settings of the clipped policy update."""

    level: Literal["token", "action", "chunk"] = "action"
    """what one ratio covers: "token", "action" or "chunk"."""
    clip_low: float = at_least(0, 0.2)
    """the ratio stays above 1 - clip_low."""
    clip_high: float = at_least(0, 0.2)
    """the ratio stays below 1 + clip_high; more than clip_low is DAPO's clip-higher (arXiv:2503.14476)."""
    dual_clip: float | None = at_least(1, None)
    """bounds the loss of bad actions at that multiple of the advantage (arXiv:1912.09729); null for none."""
    decoupled: bool = True
    """where earlier weights decided, the ratio is to the policy at the start of the update, and a weight corrects for
    the one that decided (decoupled PPO, arXiv:2505.24298); otherwise to that one."""
    importance_cap: float | None = at_least(1, 2.0)
    """those weights are truncated there, which is at least 1; null for not at all."""
    entropy: float = at_least(0, 0.0)
    """weight of the entropy bonus, where the noise is learned."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a clip bound is not above 0, `dual_clip` is not above 1, or `micro_batch` is invalid."""
        for name, bound in {"clip_low": self.clip_low, "clip_high": self.clip_high}.items():
            if not bound > 0:
                message = f"algo.{name}={bound} must be above 0: there is nothing to learn at a bound of 0."
                raise UserError(message, code="clip-out-of-range")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise UserError(f"algo.dual_clip={self.dual_clip} must be above 1, or null.", code="clip-out-of-range")
        super().__post_init__()


class ClippedUpdate(MinibatchUpdate):
    """Runs epochs of minibatch steps on the clipped objective; see `MinibatchUpdate`."""

    def __init__(
        self,
        config: ClippedConfig,
        actor: Actor,
        ranks: Ranks,
        seed: int,
        iterations: int,
        value_loss: Callable[[Batch, Tensor], Tensor] | None = None,
    ) -> None:
        self._clipped = config
        super().__init__(config, actor, ranks, seed, iterations, value_loss, Level(config.level), config.entropy)

    def proximal(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Correct a batch for stale rows; return the batch to learn from, and metrics; see `decouple_stale`.

        A batch without a stale row on any rank is returned unchanged.
        """
        if not self._clipped.decoupled:
            return batch, {}
        stale = find_stale_rows(batch, self.actor.version)
        most = max(1, self.config.minibatch // self.ranks.size)
        self._measure_micro_batch(batch.select(stale[:most]))
        at_once = min(most, self._micro_batch or most)
        cap, evaluate = self._clipped.importance_cap, self.actor.evaluate
        return decouple_stale(batch, stale, evaluate, self.ranks, level=self.level, cap=cap, at_once=at_once)

    def policy_loss(self, batch: Batch, now: Evaluation, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped loss of each ratio, weighted where rows are stale, and the share of clipped ratios."""
        low, high = self._clipped.clip_low, self._clipped.clip_high
        loss = clipped_policy_loss(log_ratio, batch.advantage, low, high, self._clipped.dual_clip)
        loss = loss if batch.weight is None else batch.weight * loss
        return loss, clip_fraction(log_ratio, low, high, mask)
