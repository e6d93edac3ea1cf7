"""A scorer that repeats the scores of an earlier run from its log, so that its rewards can be made again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import FilePath
from embodied_rl.judge.scorers.score_log import read_scores


@dataclass(frozen=True)
class ReplayConfig:
    """The settings of `ReplayScorer`."""

    log: FilePath = ""
    """run folder or score log to replay."""


class ReplayScorer(Scorer):
    """Scorer that replays logged scores by episode and decision, including their delays: a score that came too late
    is not used, and one that counted from a later decision on counts from there on.

    A run with equal settings and seed gets the same rewards. Observations that are not in the log get no score.

    Raises:
        UserError: the log is missing or damaged.
    """

    Config = ReplayConfig

    def __init__(self, config: ReplayConfig, spec: SimulatorSpec) -> None:
        if not config.log:
            raise UserError("reward.log is missing: the run folder to replay.", code="key-missing")
        lines = list(read_scores(Path(config.log)))
        if not lines:
            raise UserError(f"reward.log={config.log} holds no complete line of a score.", code="score-log-empty")
        self._scores = {(line["episode"], line["decision"], line["instruction"]): line for line in lines}
        kinds = tuple(kind for kind in get_args(ScoreKind) if any(line["kind"] == kind for line in lines))
        done = any(line.get("done") is not None for line in lines)
        self.traits = ScorerTraits(
            kinds, f"replay of {config.log}", batch=256, cacheable=False, judges_done=done, reads_instruction=False
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Return the scores of the log."""
        return [self._find(request) for request in requests]

    def _find(self, request: ScoreRequest) -> Score:
        line = self._scores.get((request.episode, request.decision, request.instruction))
        if line is None:
            return Score.invalid("unavailable", "the log has no score of this observation")
        if not line["used"] or line["value"] is None:
            return Score.invalid("late" if line["reason"] == "ok" else line["reason"])
        return Score(
            float(line["value"]), line.get("done"), float(line["confidence"]), counts_from=line.get("counted") or 0
        )
