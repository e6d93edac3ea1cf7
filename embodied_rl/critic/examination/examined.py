"""Whether a run's scorer was examined before its scores become a reward.

A learned critic must have passed: on the held-out episodes of its training, which its file tells, or in a report of
`critic eval` that `reward.examined` names. Another scorer may be used without, and the user is told in one line.
Verdicts are made anew from measures: a file cannot say of itself that it passed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.examination.report import FORMAT, VERSION
from embodied_rl.critic.gate import CRITERIA, USES, GateVerdict, Use, check_gate
from embodied_rl.critic.measures import Estimate
from embodied_rl.critic.scorer import CriticScorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Scorer
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.scorers.calibration import CalibratedScorer
from embodied_rl.judge.scorers.choice import configure_scorer
from embodied_rl.schema import RewardNode
from embodied_rl.system.untrusted_files import name_file, read_json

_REMEDY = "reward.mode=audit logs its scores without using them."


@dataclass(frozen=True)
class Examination:
    """What a report says of a scorer, as far as a run wants to know it.

    Attributes:
        identity: of the scorer.
        verdicts: use → verdict.
    """

    identity: str
    verdicts: Mapping[Use, GateVerdict]


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
            raise UserError(f"has version {found.get('version')!r:.40}; this one reads {VERSION}. Evaluate anew.")
        keys = ("format", "version", "identity", "measures")
        said = freeze_config(_Said, {key: found[key] for key in keys if key in found})
        measures = {name: freeze_config(Estimate, each, f"measures.{name}") for name, each in said.measures.items()}
    return Examination(said.identity, {use: check_gate(measures, use) for use in USES})


def read_carried(provenance: Mapping[str, Any]) -> dict[Use, GateVerdict] | None:
    """Return the verdicts on the measures that a critic's file carries; None where it carries none.

    Args:
        provenance: of the file: under "held_out" measures by name, as in a report; earlier files have values alone.
    """
    held_out = provenance.get("held_out")
    if not isinstance(held_out, Mapping):
        return None
    measures = {criterion.measure: _read_estimate(held_out.get(criterion.measure)) for criterion in CRITERIA}
    return {use: check_gate(measures, use) for use in USES}


def _read_estimate(told: object) -> Estimate:
    """Return a measure of a critic's file; one without value or interval where it is damaged or lacks them."""
    if isinstance(told, int | float) and not isinstance(told, bool):
        return Estimate(float(told))
    try:
        return freeze_config(Estimate, told) if isinstance(told, Mapping) else Estimate(None)
    except UserError:
        return Estimate(None)


def check_examined(
    identity: str,
    learned: bool,
    mode: str,
    examined: Path | None,
    carried: Mapping[Use, GateVerdict] | None = None,
) -> str | None:
    """Check that a scorer was examined before its scores become a reward.

    Args:
        identity: of the scorer.
        learned: whether it is a critic of our own, which must have passed; another one may be used without.
        mode: of the run's reward.
        examined: a report of `critic eval`, if the user named one.
        carried: verdicts on what the critic's file carries, if it does.

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
    if verdicts is None and learned:
        raise UserError(
            f"{identity} was never examined: `embodied-rl critic eval` does, and reward.examined=<critic.json> "
            f"says so. {_REMEDY}"
        )
    if verdicts is None:
        return f"{identity} was not examined: its scores may mean nothing. `embodied-rl critic eval` measures them."
    verdict = verdicts["terminal" if mode == "terminal" else "shaping"]
    if not verdict.passed:
        raise UserError(f"{identity} did not pass its evaluation ({where}): {' '.join(verdict.reasons)} {_REMEDY}")
    return None


def check_run_scorer(reward: RewardNode, spec: SimulatorSpec) -> str | None:
    """Check the scorer of a run; see `check_built_scorer`.

    Raises:
        UserError: see `check_examined`; or the scorer does not fit the simulator.
    """
    if reward.name is None or reward.mode == "audit":
        return None
    kind, options = configure_scorer(reward)
    return check_built_scorer(kind(options, spec), reward)


def check_built_scorer(scorer: Scorer, reward: RewardNode) -> str | None:
    """Check a scorer; see `check_examined`. Scorers for experiments, which know the truth, need nothing.

    Raises:
        UserError: see `check_examined`.
    """
    if scorer.traits.needs_progress or not scorer.traits.reads_instruction:
        return None
    inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
    learned = isinstance(inner, CriticScorer)  # what a critic's file tells is of scores without a calibration
    carried = read_carried(scorer.provenance) if isinstance(scorer, CriticScorer) else None
    examined = None if reward.examined is None else Path(reward.examined)
    return check_examined(scorer.traits.identity, learned, reward.mode, examined, carried)
