"""Gradient accumulation over parts of a minibatch, for losses that are means over different entries.

The terms of a loss are means over chunks, actions or rows. The parts that a step learns from (ranks, segments of a
rollout, micro-batches) have different numbers of these, so a mean of their means is not the mean over all entries.
Terms are therefore summed, and divided once by the counts over all ranks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch

Counts = dict[str, float]
"""Numbers of "chunks" and "actions" with a choice of the policy, and of "rows"."""

FIGURES = ("policy_loss", "value_loss", "kl", "clip_share", "entropy", "worst_ratio", "grad_norm")


def count_entries(batch: Batch) -> Counts:
    """Count the entries of a batch that means are taken over."""
    chunks, actions = batch.mask.any(dim=1).sum(), batch.mask.sum()
    return {"chunks": float(chunks), "actions": float(actions), "rows": float(len(batch.advantage))}


def sum_counts(counts: Counts, ranks: Ranks) -> Counts:
    """Return the sums of counts over ranks."""
    total = torch.tensor([*counts.values()], dtype=torch.float64)
    ranks.sum_([total])
    return dict(zip(counts, total.tolist(), strict=True))


class PendingGradient:
    """The gradient of the next step, of a loss with terms that are means over different counts.

    A term is first divided by its count in the first part, and by its count in all parts in `merge`. Until then the
    gradients of terms are kept separate, unless there is one part. Ranks average their gradients, so a count is the
    mean over ranks.

    Args:
        parameters: to differentiate for.
        counts: of the first part, summed over ranks.
        ranks: number of ranks.
        several: whether other parts follow.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], counts: Counts, ranks: int = 1, several: bool = False
    ) -> None:
        self.unit = {name: count / ranks or 1.0 for name, count in counts.items()}
        self._ranks, self._several = ranks, several
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._total = dict.fromkeys(counts, 0.0)
        self._main = ""
        self._others: dict[str, list[Tensor | None]] = {}

    def count(self, counts: Counts) -> None:
        """Add the counts of a part, summed over ranks."""
        self._total = {name: total + counts[name] / self._ranks for name, total in self._total.items()}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the gradients of terms, named after their entries in `Counts`, and each divided by its `unit`."""
        if not self._several:
            sum(terms.values(), torch.zeros(())).backward()
            return
        self._main, *others = terms
        for name in others:
            if terms[name].requires_grad:
                found = torch.autograd.grad(terms[name], self._parameters, retain_graph=True, allow_unused=True)
                known = self._others.get(name, [None] * len(found))
                self._others[name] = [_add(*pair) for pair in zip(known, found, strict=True)]
        terms[self._main].backward()

    def merge(self) -> None:
        """Divide terms by their counts in all parts, and add them up as the gradients of the parameters."""
        if not self._several:
            return
        factors = {name: self.unit[name] / total if total else 1.0 for name, total in self._total.items()}
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factors[self._main])
        for name, gradients in self._others.items():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = _add(parameter.grad, gradient * factors[name])


def _add(known: Tensor | None, found: Tensor | None) -> Tensor | None:
    return found if known is None else known if found is None else known + found


@dataclass
class EpochSums:
    """The sums over one epoch.

    Attributes:
        figures: float64 [F], sums over this rank's entries of all but the last of `FIGURES`.
        counts: numbers of those entries.
        norm: sum of the gradient's norm over `steps` optimiser steps.
    """

    figures: Tensor = field(default_factory=lambda: torch.zeros(len(FIGURES) - 1, dtype=torch.float64))
    counts: Counts = field(default_factory=lambda: {"chunks": 0.0, "actions": 0.0, "rows": 0.0})
    norm: float = 0.0
    steps: int = 0

    def add(self, figures: Tensor, counts: Counts) -> None:
        """Add sums over the entries of a part."""
        self.figures += figures
        self.counts = {name: count + counts[name] for name, count in self.counts.items()}

    def means(self, ranks: Ranks, ratios: str) -> dict[str, float]:
        """Compute the means over the entries of all ranks; `ratios` is what has one ratio, "chunks" or "actions"."""
        sums, counts = self.figures.clone(), sum_counts(self.counts, ranks)
        ranks.sum_([sums])
        kinds = (ratios, "rows", "chunks", ratios, "actions", ratios)
        means = [total / max(counts[kind], 1.0) for total, kind in zip(sums.tolist(), kinds, strict=True)]
        return dict(zip(FIGURES, [*means, self.norm / max(self.steps, 1)], strict=True))
