"""Who did what when: what every figure on time is computed from, and what a trace shows."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

SIMULATE, INFER, VALUE, WAIT, LEARN = "simulate", "infer", "value", "wait", "learn"
RANK = "rank"
"""Who infers, waits and learns; simulators go by their handles' names."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which somebody did one thing.

    Attributes:
        who: the rank, or a simulator's name.
        what: simulate, infer, value (of what follows the last decisions), wait (for a simulator) or learn.
        began: seconds on the clock `time.monotonic`, which all processes of a machine share.
        seconds: it took.
        size: environments, or rows that were learned from.
    """

    who: str
    what: str
    began: float
    seconds: float
    size: int = 0


@dataclass
class Timeline:
    """The spans of one rank's rollout, in the order in which the rank came to know of them.

    Attributes:
        spans: see `Span`.
        began: when the rollout began.
        total: seconds that it took.
    """

    spans: list[Span] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    total: float = 0.0

    def add(self, who: str, what: str, began: float, seconds: float, size: int = 0) -> None:
        """Note what somebody else has measured."""
        self.spans.append(Span(who, what, began, seconds, size))

    @contextmanager
    def record(self, what: str, size: int = 0) -> Iterator[None]:
        """Note what this rank does meanwhile, also where it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(RANK, what, began, time.monotonic() - began, size)

    def finish(self) -> None:
        """The rollout is complete."""
        self.total = time.monotonic() - self.began

    def seconds(self, *what: str) -> float:
        """Of all spans in which one of these was done."""
        return sum(span.seconds for span in self.spans if span.what in what)

    @property
    def inference(self) -> float:
        """Seconds in the actor, values included."""
        return self.seconds(INFER, VALUE)

    @property
    def ends(self) -> float:
        """Of that, for the values of what follows the last decisions."""
        return self.seconds(VALUE)

    @property
    def waiting(self) -> float:
        """Seconds in which the rank had nothing to do because simulators were at work."""
        return self.seconds(WAIT)

    @property
    def simulating(self) -> float:
        """Busy seconds of the simulators, all together."""
        return self.seconds(SIMULATE)


def summarise_utilisation(
    timelines: Sequence[Timeline], ranks: Sequence[Timeline], cores: int, inline: bool
) -> dict[str, float]:
    """What came of the time of one iteration.

    Args:
        timelines: of all who collect: the ranks themselves, or rollout workers.
        ranks: of those who learn.
        cores: of the machine; those who collect share them evenly.
        inline: whether simulators run in the ranks' own processes.

    Returns:
        busy/simulators, busy/policy, busy/learner: share of the iteration in which one of them was at work, a mean over
        those there are.
        bubble: share of the rollout in which the busiest of the rank and its cores had nothing to do, as the planner's
        model defines it.
        wait_p50, wait_p95: seconds of a wait for a simulator.
        batch_mean, batch_least: environments of an inference.
    """
    spans = [span for timeline in timelines for span in timeline.spans]
    seconds = sum(_length(timeline) for timeline in ranks) / len(ranks)
    simulators = len({(n, s.who) for n, t in enumerate(timelines) for s in t.spans if s.what == SIMULATE})
    shares = {
        "simulators": _sum(spans, SIMULATE) / max(1, simulators),
        "policy": _sum(spans, INFER, VALUE) / len(timelines),
        "learner": sum(timeline.seconds(LEARN) for timeline in ranks) / len(ranks),
    }
    figures = {f"busy/{name}": share / seconds for name, share in shares.items()}
    each = max(1, cores // len(timelines))
    figures["bubble"] = sum(_bubble(timeline, each, inline) for timeline in timelines) / len(timelines)
    waits = [span.seconds for span in spans if span.what == WAIT] or [0.0]
    batches = [span.size for span in spans if span.what == INFER] or [0]
    figures |= {"wait_p50": float(np.percentile(waits, 50)), "wait_p95": float(np.percentile(waits, 95))}
    return figures | {"batch_mean": sum(batches) / len(batches), "batch_least": float(min(batches))}


def _sum(spans: Sequence[Span], *what: str) -> float:
    return sum(span.seconds for span in spans if span.what in what)


def _length(timeline: Timeline) -> float:
    """Of the whole iteration, from the first to the last thing done."""
    ends = [span.began + span.seconds for span in timeline.spans]
    return max([*ends, timeline.began + timeline.total]) - timeline.began


def _bubble(timeline: Timeline, cores: int, inline: bool) -> float:
    if not timeline.total:
        return 0.0
    rank = timeline.total - timeline.waiting
    work = rank if inline else rank + timeline.simulating
    return max(0.0, 1 - max(rank, work / cores) / timeline.total)
