"""Check that a run's scorer passed an evaluation before its scores are used as a reward.

A learned critic must have passed, either on the held-out episodes stored in its file or in the report of `critic eval`
that `reward.examined` names. Other scorers only cause a warning. Verdicts are computed from the stored measures; a
verdict in a file is ignored.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.evaluation.critic_report import FORMAT, VERSION
from embodied_rl.critic.gate import CRITERIA, USES, GateVerdict, Use, check_gate
from embodied_rl.critic.measures import Estimate
from embodied_rl.critic.scorer import CriticScorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Scorer
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.scorers.calibration import CalibratedScorer
from embodied_rl.judge.scorers.registry import configure_scorer
from embodied_rl.schema import RewardNode
from embodied_rl.system.untrusted_files import name_file, read_json

_REMEDY = "reward.mode=audit logs its scores without using them."


@dataclass(frozen=True)
class ScorerEvaluation:
    """Verdicts on a scorer by use, and its identity."""

    identity: str
    verdicts: Mapping[Use, GateVerdict]


@dataclass(frozen=True)
class _Report:
    identity: str
    measures: dict[str, dict[str, float | None]]


def read_evaluation(path: Path) -> ScorerEvaluation:
    """Read a `critic.json` and compute verdicts from its measures with the present thresholds.

    Raises:
        UserError: the file is not such a report, has another version, or is damaged.
    """
    found = read_json(path)
    with name_file(path):
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UserError("is not a report of `embodied-rl critic eval`.", code="report-damaged")
        if found.get("version") != VERSION:
            raise UserError(
                f"has version {found.get('version')!r:.40}; this one reads {VERSION}. Repeat the evaluation.",
                code="report-version-unsupported",
            )
        report = freeze_config(_Report, {key: found[key] for key in ("identity", "measures") if key in found})
        measures = {name: freeze_config(Estimate, each, f"measures.{name}") for name, each in report.measures.items()}
    return ScorerEvaluation(report.identity, {use: check_gate(measures, use) for use in USES})


def read_stored_verdicts(provenance: Mapping[str, Any]) -> dict[Use, GateVerdict] | None:
    """Return the verdicts on the measures stored in a critic's file; None if it has none.

    Args:
        provenance: of the file: under "held_out" measures by name, as in a report; earlier files have values alone.
    """
    held_out = provenance.get("held_out")
    if not isinstance(held_out, Mapping):
        return None
    measures: dict[str, Estimate] = {}
    for criterion in CRITERIA:
        stored, estimate = held_out.get(criterion.measure), Estimate(None)
        if isinstance(stored, int | float) and not isinstance(stored, bool):
            estimate = Estimate(float(stored))
        elif isinstance(stored, Mapping):
            with suppress(UserError):  # a damaged entry was not measured
                estimate = freeze_config(Estimate, stored)
        measures[criterion.measure] = estimate
    return {use: check_gate(measures, use) for use in USES}


def check_validated(
    identity: str, learned: bool, mode: str, examined: Path | None, carried: Mapping[Use, GateVerdict] | None = None
) -> str | None:
    """Check that a scorer was evaluated before its scores become a reward; return a warning, if any.

    Args:
        identity: of the scorer.
        learned: whether it is an embedded critic, which must have passed.
        mode: of the run's reward.
        examined: a report of `critic eval`, if the user named one.
        carried: verdicts on the measures in the critic's file, if any.

    Raises:
        UserError: it did not pass, the report is of another scorer, or a learned critic has no evaluation.
    """
    if mode == "audit":
        return None
    verdicts, where = carried, "its file"
    if examined is not None:
        found = read_evaluation(examined)
        if found.identity != identity:
            raise UserError(
                f"reward.examined={examined} is of {found.identity}, and the run's scorer is {identity}.",
                code="report-of-another-scorer",
            )
        verdicts, where = found.verdicts, str(examined)
    if verdicts is None and learned:
        raise UserError(
            f"{identity} has not been evaluated: run `embodied-rl critic eval` and set reward.examined=<critic.json>. "
            f"{_REMEDY}",
            code="scorer-not-evaluated",
        )
    if verdicts is None:
        return f"{identity} has not been evaluated: `embodied-rl critic eval` measures its scores."
    verdict = verdicts["terminal" if mode == "terminal" else "shaping"]
    if not verdict.passed:
        raise UserError(
            f"{identity} did not pass its evaluation ({where}): {' '.join(verdict.reasons)} {_REMEDY}",
            code="scorer-not-passed",
        )
    return None


def check_run_scorer(reward: RewardNode, spec: SimulatorSpec) -> str | None:
    """Check the scorer of a run; see `check_built_scorer`.

    Raises:
        UserError: see `check_validated`; or the scorer does not fit the simulator.
    """
    if reward.name is None or reward.mode == "audit":
        return None
    kind, options = configure_scorer(reward)
    return check_built_scorer(kind(options, spec), reward)


def check_built_scorer(scorer: Scorer, reward: RewardNode) -> str | None:
    """Check a scorer; see `check_validated`. Scorers of experiments that use ground truth need no evaluation."""
    if scorer.traits.needs_progress or not scorer.traits.reads_instruction:
        return None
    inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
    learned = isinstance(inner, CriticScorer)  # the measures in a critic's file are of uncalibrated scores
    carried = read_stored_verdicts(scorer.provenance) if isinstance(scorer, CriticScorer) else None
    examined = None if reward.examined is None else Path(reward.examined)
    return check_validated(scorer.traits.identity, learned, reward.mode, examined, carried)
