"""Scorer with answers calibrated on outcomes: of cases with score 0.8, about 80 of 100 succeed.

Platt scaling (1999) on the log-odds of a score, σ(slope · logit(score) + offset), keeps the order of scores.
`embodied-rl critic eval calibrate=true` fits it and writes the file, which names its scorer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.system.untrusted_files import name_file, read_json

FORMAT, VERSION = "embodied-rl calibration", 1
EDGE = 1e-4
"""Scores are kept so far from 0 and 1, where log-odds have no end."""
LARGEST = 100.0
"""Of slope and offset: a file with more was not fitted to anything."""


@dataclass(frozen=True)
class PlattMap:
    """From a score in 0…1 to a probability: rises with it.

    Attributes:
        slope: more than 0; 1 with offset 0 changes nothing.
        offset: in log-odds.
    """

    slope: float
    offset: float

    def __post_init__(self) -> None:
        if not (0 < self.slope <= LARGEST and abs(self.offset) <= LARGEST):
            raise UserError(
                f"slope {self.slope:g} and offset {self.offset:g} are no calibration.", code="calibration-damaged"
            )

    def apply(self, scores: Array) -> Array:
        """Return probabilities, float64 of the scores' shape; NaN stays NaN."""
        return 1 / (1 + np.exp(-(self.slope * find_log_odds(scores) + self.offset)))


@dataclass(frozen=True)
class Calibration:
    """The maps of one scorer.

    Attributes:
        identity: of the scorer that they were fitted to.
        progress: of "how far is it", fitted to whether episodes that end there reached their goal; None: as it is.
        done: of the probability of done, fitted to whether the goal held; None: as it is.
    """

    identity: str
    progress: PlattMap | None
    done: PlattMap | None


def find_log_odds(scores: Array) -> Array:
    """Return log-odds of scores in 0…1, kept `EDGE` away from both ends."""
    kept = np.clip(np.asarray(scores, np.float64), EDGE, 1 - EDGE)
    return np.log(kept / (1 - kept))


def read_calibration(path: Path) -> Calibration:
    """Read a file that `critic eval` wrote, or raise `UserError`."""
    found = read_json(path)
    with name_file(path):
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
            raise UserError(
                "is no calibration that `embodied-rl critic eval calibrate=true` wrote.", code="calibration-damaged"
            )
        return freeze_config(Calibration, {key: found.get(key) for key in ("identity", "progress", "done")})


@dataclass(frozen=True)
class CalibratedConfig:
    """Class and settings of the scorer, and the file of the calibration."""

    scorer: tuple[type[Any], Any]
    file: str


class CalibratedScorer(Scorer):
    """Calibrates the scores of another scorer, `inner`.

    Raises:
        UserError: the calibration is not of this scorer, or the scorer does not estimate progress.
    """

    Config = CalibratedConfig

    def __init__(self, config: CalibratedConfig, spec: SimulatorSpec) -> None:
        kind, options = config.scorer
        self.inner: Scorer = kind(options, spec)
        self._maps = read_calibration(Path(config.file))
        traits = self.inner.traits
        if self._maps.identity != traits.identity:
            raise UserError(
                f"reward.calibration={config.file} is of {self._maps.identity}, and the scorer is {traits.identity}.",
                code="calibration-of-another-scorer",
            )
        if "absolute" not in traits.kinds:
            raise UserError(
                f"reward.calibration: {traits.identity} does not say how far a task is.", code="scorer-without-progress"
            )
        named = {"progress": self._maps.progress, "done": self._maps.done}
        maps = [f"{name} {each.slope:g} {each.offset:g}" for name, each in named.items() if each is not None]
        self.traits = replace(traits, kinds=("absolute",), identity=f"{traits.identity}, calibrated: {', '.join(maps)}")

    async def open(self) -> None:
        """Open the other scorer."""
        await self.inner.open()

    async def check(self) -> None:
        """Check that the other scorer answers."""
        await self.inner.check()

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Ask, and calibrate valid scores."""
        scores = list(await self.inner.score(requests))
        for place, score in enumerate(scores):
            if score.checked("absolute").valid:
                value = apply_map(self._maps.progress, score.value)
                done = None if score.done is None else apply_map(self._maps.done, score.done)
                scores[place] = replace(score, value=value, done=done)
        return scores

    async def close(self) -> None:
        """Close the other scorer."""
        await self.inner.close()


def apply_map(chosen: PlattMap | None, score: float) -> float:
    """Return the calibrated score, or the score itself if `chosen` is None."""
    return score if chosen is None else float(chosen.apply(np.asarray(score)))
