"""Scorer with an embedded critic: no server, one CPU core, well under a millisecond per picture."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.config.assets import resolve_path
from embodied_rl.config.freeze import at_least
from embodied_rl.critic.critic_file import load_critic
from embodied_rl.critic.network import BINS, CriticOutput, ProgressCritic
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import FilePath


@dataclass(frozen=True)
class EmbeddedConfig:
    """The settings of `EmbeddedScorer`."""

    file: FilePath = "asset:tabletop_critic.safetensors"
    """the critic: a file that `embodied-rl critic train` wrote, or asset:<name>."""
    batch: int = at_least(1, 64)
    """pictures that are judged together, at most."""


class CriticScorer(Scorer):
    """Answers "absolute" by a critic, and says how likely the task is done.

    Attributes:
        provenance: what the critic's file says about its origin and worth.
    """

    Config = EmbeddedConfig

    def __init__(self, critic: ProgressCritic, batch: int) -> None:
        self._critic, self.provenance = critic, critic.provenance
        self.traits = ScorerTraits(("absolute",), f"critic {critic.identity}", batch=batch, judges_done=True)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Judge the last frame of each request.

        A request with a word that the critic does not know gets an invalid score. The confidence of the others is
        1 - H / log n of the critic's distribution over n values of progress.

        Raises:
            ScorerError: pictures or states do not fit the critic.
        """
        known: list[ScoreRequest] = []
        problems: list[str | None] = []
        for request in requests:
            try:
                self._critic.check_words([request.instruction])
            except UserError as error:
                problems.append(str(error))
            else:
                problems.append(None)
                known.append(request)
        output = await asyncio.to_thread(self._run_critic, known) if known else None
        rows = iter(range(len(known)))
        scores: list[Score] = []
        for problem in problems:
            if problem is not None or output is None:
                scores.append(Score.invalid("refused", problem or ""))
                continue
            row = next(rows)
            shares = output.bins[row].astype(np.float64)
            entropy = -float(np.sum(shares * np.log(np.maximum(shares, 1e-12))))
            confidence = min(max(1 - entropy / math.log(BINS), 0.0), 1.0)
            scores.append(Score(float(output.progress[row]), float(output.done[row]), confidence))
        return scores

    def _run_critic(self, requests: Sequence[ScoreRequest]) -> CriticOutput:
        cameras = self._critic.cameras
        try:
            return self._critic(
                {name: np.stack([request.frames[name][-1] for request in requests]) for name in cameras},
                {name: np.stack([request.first[name] for request in requests]) for name in cameras},
                [request.instruction for request in requests],
                np.stack([request.state for request in requests]),
            )
        except (UserError, KeyError, ValueError) as error:
            raise ScorerError("refused", f"the critic cannot judge this observation: {error}", permanent=True) from None


class EmbeddedScorer(CriticScorer):
    """Scorer with the critic of a file.

    Args:
        config: the settings.
        spec: of the simulator; the critic must know its cameras, state and words.

    Raises:
        UserError: the critic does not exist, or does not fit the simulator.
    """

    def __init__(self, config: EmbeddedConfig, spec: SimulatorSpec) -> None:
        try:
            critic = load_critic(resolve_path(config.file))
            critic.check_fit(spec)
        except UserError as error:
            raise UserError(f"reward.file: {error}", code=error.code) from None
        super().__init__(critic, config.batch)
