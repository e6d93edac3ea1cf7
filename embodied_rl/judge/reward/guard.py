"""The guard against a scorer that is fooled: its own opinion rises while the true success falls.

It compares two figures of each iteration, the mean of what the scorer said at the end of episodes and the share of true
successes. In shaping, it then fades the scorer out. In mode `terminal` nothing else is there to learn from: it warns.
"""

import logging
from collections.abc import Mapping
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from embodied_rl.config.schema import RewardNode
from embodied_rl.rollout.buffer import Rollout

log = logging.getLogger(__name__)

WINDOW = 6
"""Iterations whose figures are compared: five changes."""
LEAST_RISE, LEAST_FALL = 0.02, 0.05
"""Changes along the fitted lines over the window that count."""
CLEAR = 3.0
"""A slope is so many of its standard errors away from 0: a few hundred episodes an iteration are noisy."""
FADE = 5
"""Iterations in which the weight goes from 1 to 0."""
_CRITIC, _TRUE = "reward/critic_return", "rollout/success"


class Guard:
    """Watches a run's scorer, on every rank alike, and scales what it pays in the rollouts to learn from.

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
        self._seen = np.full((2, WINDOW), np.nan)

    def fade(self, rollout: Rollout) -> None:
        """Scale the potentials of a rollout by the present weight.

        F = w (γ Φ' - Φ), but for the first row of an episode that goes on from the last rollout: its Φ was committed
        with the weight of then, and is taken back with that. So the shaping of each episode still telescopes.
        """
        if self.weight == self._applied == 1.0:
            return
        goes_on = (rollout.decision[0] > 0) & rollout.valid[0]
        rollout.shaping *= self.weight
        rollout.bonus *= self.weight  # of `rises`, and of a head: no potential to take back
        rollout.shaping[0] -= torch.where(goes_on, (self._applied - self.weight) * rollout.potential[0], 0.0)
        self._applied = self.weight

    def note(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Look at the figures of an iteration. Return its own: the weight in this iteration, and whether it has fired.

        An iteration without one of the figures, because no episode ended, is left out.
        """
        if not self._active:
            return {}
        told, pair = self.weight, (figures.get(_CRITIC), figures.get(_TRUE))
        if _are_known(pair):
            self._seen = np.column_stack([self._seen[:, 1:], pair])
        if self._fired and self._fades:
            self.weight = max(0.0, round(self.weight - 1 / FADE, 6))
        elif not self._fired and diverges(*self._seen):
            self._fire()
        return {"reward/weight": told, "reward/guard": float(self._fired)}

    def _fire(self) -> None:
        self._fired = True
        if self._fades:
            self.weight = 1 - 1 / FADE
        if self._speaks:
            log.warning("%s", self._explain())

    def _explain(self) -> str:
        (said, says), (was, now) = self._seen[:, [0, -1]]
        what = (
            f"The scorer is being fooled: over the last {WINDOW} iterations its own opinion of the episodes rose from "
            f"{said:.2f} to {says:.2f}, while the true success fell from {was:.1%} to {now:.1%}."
        )
        if self._fades:
            return f"{what} Its weight goes to 0 within {FADE} iterations; reward.guard=false keeps it."
        return (
            f"{what} With reward.mode=terminal there is no other reward, so the run goes on as it is: stop it, and "
            "look at what the scorer takes for done."
        )

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
            self._fired, self._seen = bool(fired), state["seen"].numpy().copy()


def diverges(critic: np.ndarray, true: np.ndarray) -> bool:
    """Return whether the first clearly rises and the second clearly falls, along lines fitted by least squares.

    Args:
        critic, true: float64 [WINDOW] each, of consecutive iterations; NaN where there is none yet.
    """
    if not (np.isfinite(critic).all() and np.isfinite(true).all()):
        return False
    (rise, rise_error), (fall, fall_error) = _fit_slope(critic), _fit_slope(true)
    steps = len(critic) - 1
    large = rise * steps >= LEAST_RISE and -fall * steps >= LEAST_FALL
    return bool(large and rise >= CLEAR * rise_error and -fall >= CLEAR * fall_error)


def _fit_slope(values: np.ndarray) -> tuple[float, float]:
    """Return the slope of a line through values at 0, 1, 2, …, and its standard error."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    spread = float((x**2).sum())
    slope = float((x * values).sum()) / spread
    residual = values - values.mean() - slope * x
    return slope, float(np.sqrt((residual**2).sum() / (len(values) - 2) / spread))


def _are_known(pair: tuple[float | None, float | None]) -> TypeGuard[tuple[float, float]]:
    return None not in pair
