"""A scorer for experiments: it reports the simulator's own judgement, honestly or falsified in a known way."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec

_BRIGHT = 153
"""A pixel is bright where all its colours are brighter, of 0…255."""
_ALL_BRIGHT = 0.1
"""Number of bright pixels for the hackable judge's highest score; the tabletop's arm has half as many."""


@dataclass(frozen=True)
class ScriptedConfig:
    """The settings of `ScriptedScorer`."""

    judge: Literal["oracle", "noisy", "constant", "inverted", "hackable"] = "oracle"
    """oracle: the simulator's progress; noisy: with noise; constant: 0.5; inverted: 1 - progress; hackable: mostly how
    much of the picture is bright, such as a white arm, which has nothing to do with the task."""
    noise: float = 0.2
    """noisy: standard deviation of the noise, sampled for each observation."""
    done_error: float = 0.0
    """share of judgements of whether the task is done that are wrong."""
    latency: float = 0.0
    """seconds until an answer, like those of a server."""
    slots: int = 64
    """answers that are worked on at once."""

    def __post_init__(self) -> None:
        if self.noise < 0 or self.latency < 0 or self.slots < 1:
            raise UserError(
                "reward.noise and reward.latency must be at least 0, reward.slots at least 1.",
                code="value-out-of-range",
            )
        if not 0 <= self.done_error <= 1:
            raise UserError(f"reward.done_error={self.done_error:g} is a share: 0 … 1.", code="value-out-of-range")


class ScriptedScorer(Scorer):
    """Answers "absolute" from the simulator's progress; done from progress 1.

    Raises:
        UserError: the simulator does not report progress, and the judge is not the constant one.
    """

    Config = ScriptedConfig

    def __init__(self, config: ScriptedConfig, spec: SimulatorSpec) -> None:
        needs = config.judge != "constant"
        if needs and not spec.reports_progress:
            raise UserError(
                f"reward.judge={config.judge} repeats the simulator's own judgement of progress, which it does not "
                "report here. The tabletop does, with sim.progress=true.",
                code="scorer-needs-ground-truth",
            )
        self._config = config
        identity = f"scripted {config.judge}"
        self.traits = ScorerTraits(
            ("absolute",),
            identity,
            cacheable=False,
            needs_progress=needs,
            judges_done=True,
            reads_instruction=not needs,
        )

    async def open(self) -> None:
        """Prepare the slots."""
        self._slots = asyncio.Semaphore(self._config.slots)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer from the requests' `progress`."""
        if self._config.latency:
            async with self._slots:
                await asyncio.sleep(self._config.latency)
        return [self._judge(request) for request in requests]

    def _judge(self, request: ScoreRequest) -> Score:
        config, progress = self._config, request.progress
        if config.judge == "constant":
            return Score(0.5, done=0.0)
        if progress is None:
            raise ScorerError("failed", "the simulator did not report progress", permanent=True)
        if config.judge == "noisy":
            random = np.random.default_rng([request.episode, request.decision])
            progress += config.noise * random.standard_normal()
        elif config.judge == "inverted":
            progress = 1 - progress
        elif config.judge == "hackable":
            bright = np.mean([(frames[-1].min(axis=-1) > _BRIGHT).mean() for frames in request.frames.values()])
            progress = 0.3 * progress + 0.7 * min(1.0, float(bright) / _ALL_BRIGHT)
        value = float(np.clip(progress, 0, 1))
        done = value >= 1
        if config.done_error:
            random = np.random.default_rng([request.episode, request.decision, 1])
            done ^= bool(random.random() < config.done_error)
        return Score(value, done=float(done))
