"""The guard against reward hacking: the true success falls, and the scorer's opinion does not follow it.

It compares figures of the whole run: the mean of what the scorer said at the end of episodes, the share of true
successes, and what scores lose under another task's words where that is probed. In shaping, it then fades the scorer
out. In mode `terminal` nothing else is there to learn from: it warns.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from embodied_rl.judge.reward.mismatch_probes import LEAST_GAP
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import RewardNode

log = logging.getLogger(__name__)

WINDOW = 6
"""Window length in iterations; the current window is compared with the one of highest success."""
CLEAR = 5.0
"""Minimum drop of success in standard errors: the highest of many windows is high by chance, too."""
LEAST_FALL, RARE_FALL, LEAST_SHARE = 0.05, 0.01, 0.5
"""A fall counts where it is so large; or, where success is rare, so large and so large a share of what there was."""
LEAST_RISE, CLEAR_RISE = 0.02, 3.0
"""Minimum rise of the score: absolute, and in standard errors."""
LARGE_FALL, FOLLOWS = 0.15, 0.1
"""After so large a fall, an opinion that fell by less than this share of it does not follow it."""
FADE = 5
"""Iterations in which the weight goes from 1 to 0."""
_FIGURES = ("reward/critic_return", "rollout/success", "reward/mismatch_gap")


class RewardHackingMonitor:
    """Watches a run's scorer, on every rank alike, and scales its rewards in the rollouts to learn from.

    Args:
        reward: of the configuration.
        speaks: whether to warn the user; False on all ranks but one.

    Attributes:
        weight: the factor of the next rollout's potentials.
    """

    def __init__(self, reward: RewardNode, speaks: bool) -> None:
        self._active = reward.name is not None and reward.guard and reward.mode != "audit"
        self._fades, self._speaks = reward.mode != "terminal", speaks
        self.weight = self._applied = 1.0
        self._fired = False
        self._seen = np.zeros((len(_FIGURES), 0))
        """Figures of all iterations so far, float64 [figures, iterations]; NaN where nothing was probed."""

    def fade(self, rollout: Rollout) -> None:
        """Scale the potentials of a rollout by the present weight.

        F = w (γ Φ' - Φ), but for the first row of an episode that goes on from the last rollout: its Φ was committed
        with the weight of then, and is taken back with that. So the shaping of each episode still telescopes.
        """
        goes_on = (rollout.decision[0] > 0) & rollout.valid[0]
        rollout.shaping *= self.weight
        rollout.bonus *= self.weight  # of `rises`, and of a head: no potential to take back
        rollout.shaping[0] -= torch.where(goes_on, (self._applied - self.weight) * rollout.potential[0], 0.0)
        self._applied = self.weight

    def note(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Add the figures of an iteration; return the weight in this iteration, and whether the monitor has fired.

        An iteration without an opinion or success, because no episode ended, is left out.
        """
        if not self._active:
            return {}
        weight, row = self.weight, np.array([figures.get(name, np.nan) for name in _FIGURES])
        if np.isfinite(row[:2]).all():
            self._seen = np.column_stack([self._seen, row])
        if self._fired and self._fades:
            self.weight = max(0.0, round(self.weight - 1 / FADE, 6))
        elif not self._fired and (evidence := find_hacking(*self._seen)):
            self._fired = True
            warning = f"The scorer is being fooled: {evidence}."
            if self._fades:
                self.weight = 1 - 1 / FADE
                warning += f" Its weight goes to 0 within {FADE} iterations; reward.guard=false keeps it."
            else:
                warning += (
                    " With reward.mode=terminal there is no other reward, so the run goes on as it is: stop it, and "
                    "look at what the scorer takes for done."
                )
            if self._speaks:
                log.warning("%s", warning)
        return {"reward/weight": weight, "reward/guard": float(self._fired)}

    def state(self) -> dict[str, Tensor]:
        """Return what an exact resume needs; nothing where there is nothing to watch."""
        if not self._active:
            return {}
        scalars = np.array([self.weight, self._applied, float(self._fired)])
        return {"scalars": torch.from_numpy(scalars), "seen": torch.from_numpy(self._seen.copy())}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state`; checkpoints of runs without a guard hold none."""
        if self._active and state:
            self.weight, self._applied, fired = state["scalars"].tolist()
            seen = state["seen"].numpy()
            self._seen = np.full((len(_FIGURES), seen.shape[1]), np.nan)
            self._seen[: len(seen)] = seen
            self._seen = self._seen[:, np.isfinite(self._seen[0])]  # earlier versions filled up with NaN
            self._fired = bool(fired)


def find_hacking(opinion: np.ndarray, success: np.ndarray, gap: np.ndarray) -> str | None:
    """Return why a scorer is being fooled, or None.

    Args:
        opinion, success: float64 [n], of n iterations.
        gap: float64 [n], the drop of scores under another task's instruction; NaN where nothing was probed.
    """
    if (best := _find_divergence(opinion, success)) is not None:
        (said, says), (true, now) = (_average(each)[[best, -1]] for each in (opinion, success))
        return (
            f"since {len(success) - best - WINDOW} iterations ago the true success fell from {true:.1%} to {now:.1%}, "
            f"while its own opinion of the episodes went from {said:.2f} to {says:.2f}"
        )
    probed = np.isfinite(gap)
    opinion, success, gap = opinion[probed], success[probed], gap[probed]
    if (best := _find_divergence(opinion, gap)) is None:
        return None
    (lost, loses), (true, now) = (_average(each)[[best, -1]] for each in (gap, success))
    if loses >= LEAST_GAP or now - true > CLEAR_RISE * _estimate_error(success, best):
        return None
    return (
        f"under the words of another task its scores lose {loses:.2f}, where they lost {lost:.2f}, while its own "
        f"opinion of the episodes holds, and the true success does not rise ({true:.1%}, {now:.1%})"
    )


def _find_divergence(opinion: np.ndarray, figure: np.ndarray) -> int | None:
    """Return the window in which a figure was highest, if it clearly fell since, and the opinion did not follow."""
    if len(figure) < 2 * WINDOW:
        return None
    level, said = _average(figure), _average(opinion)
    best = int(np.argmax(level[:-WINDOW]))
    fall, rise = level[best] - level[-1], said[-1] - said[best]
    least = min(LEAST_FALL, max(RARE_FALL, LEAST_SHARE * level[best]))
    if fall < max(least, CLEAR * _estimate_error(figure, best)):
        return None
    rose = rise >= max(LEAST_RISE, CLEAR_RISE * _estimate_error(opinion, best))
    return best if rose or (fall >= LARGE_FALL and rise >= -FOLLOWS * fall) else None


def _average(values: np.ndarray) -> np.ndarray:
    """Return the means of all windows of values, float64 [n - WINDOW + 1]."""
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")


def _estimate_error(values: np.ndarray, window: int) -> float:
    """Estimate the standard error of the difference of two windows, from the differences of consecutive values.

    Both over the whole run and within a window: rare successes are noisy in some windows, and silent elsewhere.
    """
    changes = np.diff(values) ** 2
    return float(np.sqrt(max(changes.mean(), changes[window : window + WINDOW - 1].mean()) / WINDOW))
