"""The gate: criteria that a scorer must meet on held-out episodes before its scores become a reward.

A judge that rises with time has a high VOC even if it confuses objects. So it must also distinguish the goal from
others, and give failures no progress. The thresholds separate what was measured on the tabletop. Critics on a policy's
features have a VOC of .93 … .98, gaps of .69 … .89, 0.4 … 2.6 % of wrong objects above one half, and .61 … .77 on
failures; one that learned from pixels, and confuses objects, has .94, .22 … .52, 48 % and .44.

A measure passes with its whole 95 % interval: none wrong of 31 may still be 11 % in truth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from embodied_rl.critic.measures import Estimate

LEAST_COUNT = 30
"""A measure of fewer sequences or episodes decides nothing: resampled intervals of fewer are too narrow."""
Use = Literal["shaping", "terminal"]
"""What a scorer is to be used for: a potential that shapes the reward; or to end episodes with a reward of its own."""
USES: tuple[Use, ...] = ("shaping", "terminal")


@dataclass(frozen=True)
class Criterion:
    """A threshold."""

    measure: str
    why: str
    least: float | None = None
    most: float | None = None
    uses: tuple[Use, ...] = ("shaping", "terminal")


CRITERIA = (
    Criterion("valid", "too many scores are missing, and are held at old values", least=0.9),
    Criterion("voc", "it does not rise where the task comes nearer", least=0.9),
    Criterion("gap_object", "it hardly notices which object was meant", least=0.5),
    Criterion("gap_task", "it hardly notices which task was meant", least=0.5),
    Criterion("wrong_object_share", "it takes wrong objects for right ones", most=0.05),
    Criterion("failures", "it does not see where a failure stands", least=0.5),
    Criterion("done_recall", "it misses successes, which then earn nothing", least=0.5, uses=("terminal",)),
    Criterion("done_false", "it rewards failures, and a policy finds these", most=0.1, uses=("terminal",)),
)
"""What must hold. A potential cannot change which policy is best, so that a shaping scorer's errors cost time alone;
what `terminal` rewards is what a policy learns, so that the scorer has to be right about the end, too."""


@dataclass(frozen=True)
class GateVerdict:
    """Whether a scorer passed, for one use."""

    passed: bool
    reasons: tuple[str, ...] = ()


def check_gate(measures: Mapping[str, Estimate], use: Use) -> GateVerdict:
    """Return whether measures suffice for a use; what was not measured has not been shown."""
    reasons: list[str] = []
    for criterion in CRITERIA:
        if use not in criterion.uses:
            continue
        found, name = measures.get(criterion.measure, Estimate(None)), criterion.measure
        if found.value is None:
            reasons.append(f"{name} was not measured: no episode of this evaluation shows it.")
        elif found.low is None or found.high is None:
            reasons.append(f"{name} has no interval: measure it with `embodied-rl critic eval`.")
        elif found.count < LEAST_COUNT:
            reasons.append(
                f"{name} was measured {found.count} times, and takes {LEAST_COUNT} at least: give more episodes."
            )
        else:
            least, most = criterion.least, criterion.most
            interval = f"{name} is {found.value:.3g} [{found.low:.3g}, {found.high:.3g}], and the interval must be at"
            if least is not None and not found.low >= least:
                why = "give more episodes" if found.value >= least else criterion.why
                reasons.append(f"{interval} least {least:g}: {why}.")
            elif most is not None and not found.high <= most:
                why = "give more episodes" if found.value <= most else criterion.why
                reasons.append(f"{interval} most {most:g}: {why}.")
    return GateVerdict(not reasons, tuple(reasons))
