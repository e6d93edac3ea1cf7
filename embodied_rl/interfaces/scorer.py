"""The interface of scorers, which estimate task progress from pictures. Imports NumPy and the standard library only.

A scorer may be a vision-language model behind a network, a small network of our own, or a rule for experiments.
`embodied_rl.judge.reward` sends requests without waiting, and computes rewards from the answers that arrive in time.

Shapes: f frames of a camera with h × w pixels, S state dimensions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, get_args

from embodied_rl.interfaces.sim import Array, SimulatorSpec

ScoreKind = Literal["absolute", "pair", "done", "preference", "trajectory"]
"""The question: how far the last frame is (0…1); how much nearer the last frame is than the one before (-1…1); whether
the task is done (0…1); which of two frames is nearer (-1…1); how far each frame of a trajectory is (0…1)."""

Span = Literal["latest", "episode"]
"""Which frames a request shows: the latest ones, or some of the whole episode so far, with the first and the last."""

Reason = Literal[
    "ok", "unreadable", "unsure", "range", "timeout", "refused", "busy", "failed", "dropped", "unavailable", "late"
]
"""Why a score counts or not: valid; an answer that could not be parsed; little probability on the allowed answers;
outside of the question's range; no answer in time; the server refused the request; it had too much to do; it failed;
a newer question took its place, or the queue was full; the scorer is paused after failures; it could not count any
more, because its episode had ended, a newer score counted, or the reward was computed."""

RANGES: Mapping[ScoreKind, tuple[float, float]] = {
    kind: (-1.0, 1.0) if kind in ("pair", "preference") else (0.0, 1.0) for kind in get_args(ScoreKind)
}
"""The range of a score's value, by kind."""


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """A question about one observation of an episode.

    Attributes:
        episode: index of the episode in the run.
        decision: number of decisions of the episode before this observation.
        kind: the question.
        instruction: the task as text.
        frames: camera → uint8 [f, h, w, 3], oldest first, the present one last; at most `ScorerTraits.frames`, and at
            least two for "pair".
        first: camera → uint8 [h, w, 3], the episode's first frame.
        state: float32 [S], proprioception.
        progress: the simulator's true progress in 0…1, for scorers of experiments; None if it reports none.
        state_before: float32 [S], of "pair": proprioception with the frame before; None if it is unknown.
    """

    episode: int
    decision: int
    kind: ScoreKind
    instruction: str
    frames: Mapping[str, Array]
    first: Mapping[str, Array]
    state: Array
    progress: float | None = None
    state_before: Array | None = None


@dataclass(frozen=True)
class Score:
    """An answer.

    Attributes:
        value: in the range of the question (`RANGES`); NaN unless `reason` is "ok".
        done: probability that the task is done, if the scorer estimates it.
        confidence: 0…1, how sure the scorer is.
        reason: "ok", or why the value may not be used.
        detail: one line about the reason, for logs.
        values: of "trajectory": one for each frame, NaN for frames without a value; `value` is the last one.
        tokens: read and written by the scorer's model, as counted by its server; None if it did not count them.
        counts_from: first decision of the episode that may use it, for scores replayed from a log.
    """

    value: float
    done: float | None = None
    confidence: float = 1.0
    reason: Reason = "ok"
    detail: str = ""
    values: tuple[float, ...] = ()
    tokens: tuple[int, int] | None = None
    counts_from: int = 0

    @property
    def valid(self) -> bool:
        """Return whether the value may be used."""
        return self.reason == "ok"

    @staticmethod
    def invalid(reason: Reason, detail: str = "") -> "Score":
        """Return a score without a value, for a reason."""
        return Score(math.nan, None, 0.0, reason, detail)

    def checked(self, kind: ScoreKind) -> "Score":
        """Return this score with Python's numbers; or an invalid one if a number is outside of its range for `kind`."""
        low, high = RANGES[kind]
        if not self.valid:
            return self
        if not low <= self.value <= high:
            return self._leave_range(f"{self.value} is not within {low:g} … {high:g}")
        if self.done is not None and not 0 <= self.done <= 1:
            return self._leave_range(f"done is {self.done}, which is not a probability")
        if not 0 <= self.confidence <= 1:
            return self._leave_range(f"its confidence is {self.confidence}, which is not within 0 … 1")
        done = None if self.done is None else float(self.done)
        return replace(self, value=float(self.value), done=done, confidence=float(self.confidence))

    def _leave_range(self, detail: str) -> "Score":
        return replace(Score.invalid("range", detail), tokens=self.tokens)


class ScorerError(Exception):
    """An error raised by a scorer for a request that it could not answer.

    Args:
        reason: why.
        message: one line for the user; it never contains a key or a token.
        permanent: whether another attempt at the same request would fail, too, such as for an unknown model.
        retry_after: seconds after which to ask again, if the server named them.
    """

    def __init__(self, reason: Reason, message: str, permanent: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.permanent, self.retry_after = permanent, retry_after


@dataclass(frozen=True)
class ScorerTraits:
    """The properties of a scorer that the service needs.

    Attributes:
        kinds: the questions that it answers.
        identity: its model, prompt and calibration in one line, for the log and the cache.
        batch: most requests of one call.
        cacheable: whether equal pictures and words always get equal answers.
        needs_progress: whether requests must hold the simulator's own judgement.
        judges_done: whether answers to "absolute" or "pair" include `Score.done`.
        reads_instruction: whether it can judge a picture under any words, so that it can be probed with wrong ones.
        frames: frames that a request shows, at most.
        span: which ones.
        counts_tokens: whether answers include `Score.tokens`, which servers paid by tokens should.

    Raises:
        ValueError: a call could have no request, or a request no frame.
    """

    kinds: tuple[ScoreKind, ...]
    identity: str
    batch: int = 1
    cacheable: bool = True
    needs_progress: bool = False
    judges_done: bool = False
    reads_instruction: bool = True
    frames: int = 1
    span: Span = "latest"
    counts_tokens: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or self.frames < 1:
            raise ValueError(f"a scorer's traits: batch={self.batch} and frames={self.frames} must be at least 1")


class Scorer(Protocol):
    """A scorer. `Config` is a frozen dataclass of the settings, the keys `reward.<key>`.

    The constructor raises `UserError` for settings that do not fit the simulator. Only `check` connects to a server, so
    that a run can continue while a server is down. All methods but the constructor run in an event loop in a separate
    thread; long computations belong in `asyncio.to_thread`.
    """

    Config: ClassVar[Any]
    traits: ScorerTraits

    def __init__(self, config: Any, spec: SimulatorSpec) -> None: ...

    async def open(self) -> None:
        """Prepare to answer, such as by loading weights."""

    async def check(self) -> None:
        """Check, once before a run starts and after `open`, that the scorer can answer.

        Raises:
            UserError: it cannot; the message names the remedy.
        """

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer at most `traits.batch` requests, in their order.

        Raises:
            ScorerError: no request could be answered.
        """
        ...

    async def close(self) -> None:
        """Release all resources."""


def list_scored_cameras(spec: SimulatorSpec) -> list[str]:
    """Return the cameras of scorers: those with the role "score", or else the policy's."""
    by_role = {role: [camera.name for camera in spec.cameras if camera.role == role] for role in ("score", "policy")}
    return by_role["score"] or by_role["policy"]
