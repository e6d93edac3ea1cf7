"""The gate: what a scorer must have shown on episodes it was not trained on before its scores become a reward.

A judge that rises with time has a high VOC, and may have no idea which object was meant. So VOC never decides alone:
the judge must also tell the goal from others, and see that a failure comes no nearer.

The thresholds separate what was measured on the tabletop. Critics on a policy's features have a VOC of .93 … .98, gaps
of .69 … .89, 0.4 … 2.6 % of wrong objects above one half, and .61 … .77 on failures; one that learned from pixels, and
cannot tell the object, has .94, .22 … .52, 48 % and .44.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.measures import Estimate
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.untrusted_files import name_file, read_json

LEAST_COUNT = 30
"""A measure of fewer sequences or episodes decides nothing."""
Use = Literal["shaping", "terminal"]
"""What a scorer is to be used for: a potential that shapes the reward; or to end episodes with a reward of its own."""
FORMAT, VERSION = "embodied-rl critic evaluation", 1
"""Of `critic.json`."""


@dataclass(frozen=True)
class Criterion:
    """A threshold.

    Attributes:
        measure: its name in a report.
        least, most: one of them is the threshold.
        why: what is wrong beyond it.
        uses: for which it holds.
    """

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
class Verdict:
    """Whether a scorer passed, for one use.

    Attributes:
        passed: whether every criterion held.
        reasons: why not, one line each; empty if it passed.
    """

    passed: bool
    reasons: tuple[str, ...] = ()


def check_gate(measures: Mapping[str, Estimate], use: Use) -> Verdict:
    """Return whether measures suffice for a use; what was not measured has not been shown.

    Args:
        measures: by name, see `assessment.MEANINGS`.
        use: what the scorer is for.
    """
    problems = [_check(criterion, measures) for criterion in CRITERIA if use in criterion.uses]
    reasons = tuple(problem for problem in problems if problem)
    return Verdict(not reasons, reasons)


def _check(criterion: Criterion, measures: Mapping[str, Estimate]) -> str:
    """Return why a criterion does not hold, or an empty text."""
    found, name = measures.get(criterion.measure, Estimate(None)), criterion.measure
    if found.value is None:
        return f"{name} was not measured: no episode of this evaluation tells it."
    if found.count < LEAST_COUNT:
        return f"{name} was measured {found.count} times, and takes {LEAST_COUNT} at least: give more episodes."
    if criterion.least is not None and not found.value >= criterion.least:
        return f"{name} is {found.value:.2f}, and must be at least {criterion.least:g}: {criterion.why}."
    if criterion.most is not None and not found.value <= criterion.most:
        return f"{name} is {found.value:.3f}, and must be at most {criterion.most:g}: {criterion.why}."
    return ""


# -- use --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examination:
    """What a report says of a scorer, as far as the gate wants to know it.

    Attributes:
        identity: of the scorer.
        verdicts: use → verdict.
    """

    identity: str
    verdicts: Mapping[str, Verdict]


@dataclass(frozen=True)
class _Said:
    format: str
    version: int
    identity: str
    measures: dict[str, dict[str, float | None]]


def read_examination(path: Path) -> Examination:
    """Read a `critic.json`. Verdicts are made anew from its measures, by the thresholds of today.

    Raises:
        UserError: the file is no such report, of another version, or damaged.
    """
    found = read_json(path)
    with name_file(path):
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UserError("is no report of `embodied-rl critic eval`.")
        if found.get("version") != VERSION:
            raise UserError(f"has version {found.get('version')!r}; this one reads {VERSION}. Evaluate anew.")
        keys = ("format", "version", "identity", "measures")
        said = freeze_config(_Said, {key: found[key] for key in keys if key in found})
        measures = {name: freeze_config(Estimate, each, f"measures.{name}") for name, each in said.measures.items()}
    return Examination(said.identity, {use: check_gate(measures, use) for use in ("shaping", "terminal")})


def check_examined(
    identity: str, learned: bool, mode: str, examined: Path | None, carried: Mapping[str, Verdict] | None = None
) -> str | None:
    """Check that a scorer was examined before its scores become a reward.

    Args:
        identity: of the scorer.
        learned: whether it is a critic of our own, which must have passed; another one may be used without.
        mode: of the run's reward.
        examined: a report of `critic eval`, if the user named one.
        carried: verdicts that the critic's file carries, if it does.

    Returns:
        A line for the user about a scorer that nobody examined; else None.

    Raises:
        UserError: it did not pass, the report is of another scorer, or a learned critic was never examined.
    """
    if mode == "audit":
        return None
    verdicts, where = carried, "its file"
    if examined is not None:
        found = read_examination(examined)
        if found.identity != identity:
            raise UserError(f"reward.examined={examined} is of {found.identity}, and the run's scorer is {identity}.")
        verdicts, where = found.verdicts, str(examined)
    remedy = "reward.mode=audit logs its scores without using them."
    if verdicts is None and learned:
        raise UserError(f"{identity} was never examined: `embodied-rl critic eval` does, and reward.examined names its "
                        f"critic.json. {remedy}")  # fmt: skip
    if verdicts is None:
        return f"{identity} was not examined: its scores may mean nothing. `embodied-rl critic eval` measures them."
    verdict = verdicts.get("terminal" if mode == "terminal" else "shaping", Verdict(False, ("it was not examined",)))
    if not verdict.passed:
        raise UserError(f"{identity} did not pass its evaluation ({where}): {' '.join(verdict.reasons)} {remedy}")
    return None
