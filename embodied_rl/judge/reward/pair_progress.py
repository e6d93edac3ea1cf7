"""Progress from pairwise scores: the change of progress since the previous frame.

A change h > 0 is relative to the remaining progress, h < 0 to the reached one: p ← p + (1 - p) h, or p ← p + p h. So
progress stays within 0…1 for all scores, and a potential computed from it depends on the episode's history alone. (The
recursion is that of Robo-Dopamine, arXiv:2512.23703. Sums of raw changes, as rewards, change what is optimal.)
"""

import numpy as np

from embodied_rl.interfaces.sim import Array


def advance(progress: Array, change: Array) -> Array:
    """Return progress after a change: both float64 of one shape, within 0…1 and -1…1; NaN changes nothing."""
    known = np.where(np.isnan(change), 0.0, change)
    return progress + np.where(known >= 0, 1 - progress, progress) * known
