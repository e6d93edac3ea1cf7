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
from embodied_rl.critic.gate import CRITERIA, check_gate
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
class _Report:
    identity: str
    measures: dict[str, dict[str, float | None]]


def read_evaluation(path: Path) -> tuple[str, dict[str, Estimate]]:
    """Return a scorer's identity and measures of a `critic.json`.

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
    return report.identity, measures


def read_stored_measures(provenance: Mapping[str, Any]) -> dict[str, Estimate] | None:
    """Return the measures stored in a critic's file under "held_out", None without; old files have values alone."""
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
    return measures


def check_run_scorer(reward: RewardNode, spec: SimulatorSpec) -> str | None:
    """Check the scorer of a run, which has to fit the simulator; see `check_built_scorer`."""
    if reward.name is None or reward.mode == "audit":
        return None
    kind, options = configure_scorer(reward)
    return check_built_scorer(kind(options, spec), reward)


def check_built_scorer(scorer: Scorer, reward: RewardNode) -> str | None:
    """Check that a scorer passed an evaluation before its scores become a reward; return a warning, if any.

    Scorers of experiments that use ground truth need no evaluation, and others that are not learned cause a warning.

    Raises:
        UserError: it did not pass, the report is of another scorer, or a learned critic has no evaluation.
    """
    identity = scorer.traits.identity
    if reward.mode == "audit" or scorer.traits.needs_progress or not scorer.traits.reads_instruction:
        return None
    measures, where = None, "its file"
    if isinstance(scorer, CriticScorer):  # the measures in a critic's file are of uncalibrated scores
        measures = read_stored_measures(scorer.provenance)
    if reward.examined is not None:
        examined, measures = read_evaluation(Path(reward.examined))
        where = reward.examined
        if examined != identity:
            raise UserError(
                f"reward.examined={where} is of {examined}, and the run's scorer is {identity}.",
                code="report-of-another-scorer",
            )
    if measures is None:
        inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
        if isinstance(inner, CriticScorer):
            raise UserError(
                f"{identity} has not been evaluated: run `embodied-rl critic eval` and set "
                f"reward.examined=<critic.json>. {_REMEDY}",
                code="scorer-not-evaluated",
            )
        return f"{identity} has not been evaluated: `embodied-rl critic eval` measures its scores."
    verdict = check_gate(measures, "terminal" if reward.mode == "terminal" else "shaping")
    if not verdict.passed:
        raise UserError(
            f"{identity} did not pass its evaluation ({where}): {' '.join(verdict.reasons)} {_REMEDY}",
            code="scorer-not-passed",
        )
    return None
