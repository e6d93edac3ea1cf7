"""Timeline of a rollout: the time intervals of the work of each process, from which time metrics are computed.

A run keeps the timelines of an iteration with each checkpoint, in `<run>/timelines/<iteration>.json`.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import explain_errors, write_text
from embodied_rl.system.untrusted_files import check_inside, read_json, shorten

SIMULATE, INFER, VALUE, WAIT, LEARN = "simulate", "infer", "value", "wait", "learn"
FOLDER = "timelines"
RANK = "rank"
"""Name of the process that infers, waits and learns; simulators have the names of their handles."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time interval in which a rank or a simulator did one kind of work.

    Attributes:
        what: simulate, infer, value (of final and last observations), wait (for a simulator) or learn.
        began: seconds on the clock `time.monotonic`, which all processes of a machine share.
        size: number of environments, or of rows that were learned from.
    """

    who: str
    what: str
    began: float
    seconds: float
    size: int = 0


@dataclass
class Timeline:
    """The spans of one rank's rollout, when it `began`, and its `total` seconds."""

    spans: list[Span] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    total: float = 0.0

    def add(self, who: str, what: str, began: float, seconds: float, size: int = 0) -> None:
        """Add a span that was measured elsewhere."""
        self.spans.append(Span(who, what, began, seconds, size))

    @contextmanager
    def record(self, what: str, size: int = 0) -> Iterator[None]:
        """Record the `with` block as a span of this rank, also when the block fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(RANK, what, began, time.monotonic() - began, size)

    def finish(self) -> None:
        """Set `total` at the end of the rollout."""
        self.total = time.monotonic() - self.began

    def seconds(self, *what: str) -> float:
        """Return the seconds of all spans of these kinds together."""
        return sum(span.seconds for span in self.spans if span.what in what)

    @property
    def inference(self) -> float:
        """Return the seconds in the actor, including the computation of values."""
        return self.seconds(INFER, VALUE)

    @property
    def ends(self) -> float:
        """Return the seconds in the actor for the values of final and last observations; a part of `inference`."""
        return self.seconds(VALUE)

    @property
    def waiting(self) -> float:
        """Return the seconds in which the rank waited for simulators."""
        return self.seconds(WAIT)

    @property
    def simulating(self) -> float:
        """Return the busy seconds of all simulators together."""
        return self.seconds(SIMULATE)


def summarise_utilisation(
    timelines: Sequence[Timeline], ranks: Sequence[Timeline], cores: int, inline: bool
) -> dict[str, float]:
    """Compute how the time of one iteration was used.

    Args:
        timelines: of all collecting processes: the ranks themselves, or rollout workers.
        ranks: timelines of the learning ranks.
        cores: of the machine; the collecting processes share them evenly.
        inline: whether simulators run in the ranks' own processes.

    Returns:
        busy/simulators, busy/policy, busy/learner: mean share of the iteration in which one of them was busy.
        bubble: share of the rollout in which the busier of the rank and its cores was idle, as in the planner's model.
        wait_p50, wait_p95: median and 95th percentile of the seconds of a wait for a simulator.
        batch_mean, batch_least: mean and smallest number of environments of an inference.
    """
    spans = [span for timeline in timelines for span in timeline.spans]
    lengths = [
        max([s.began + s.seconds for s in t.spans] + [t.began + t.total]) - t.began  # to the end of the last span
        for t in ranks
    ]
    seconds = sum(lengths) / len(ranks)
    simulators = len({(n, s.who) for n, t in enumerate(timelines) for s in t.spans if s.what == SIMULATE})
    shares = {
        "simulators": sum(span.seconds for span in spans if span.what == SIMULATE) / max(1, simulators),
        "policy": sum(span.seconds for span in spans if span.what in (INFER, VALUE)) / len(timelines),
        "learner": sum(timeline.seconds(LEARN) for timeline in ranks) / len(ranks),
    }
    figures = {f"busy/{name}": share / seconds for name, share in shares.items()}
    each = max(1, cores // len(timelines))
    figures["bubble"] = sum(_bubble(timeline, each, inline) for timeline in timelines) / len(timelines)
    waits = [span.seconds for span in spans if span.what == WAIT] or [0.0]
    batches = [span.size for span in spans if span.what == INFER] or [0]
    figures |= {"wait_p50": float(np.percentile(waits, 50)), "wait_p95": float(np.percentile(waits, 95))}
    return figures | {"batch_mean": sum(batches) / len(batches), "batch_least": float(min(batches))}


def _bubble(timeline: Timeline, cores: int, inline: bool) -> float:
    if not timeline.total:
        return 0.0
    rank = timeline.total - timeline.waiting
    work = rank if inline else rank + timeline.simulating
    return max(0.0, 1 - max(rank, work / cores) / timeline.total)


def keep_timelines(folder: Path, iteration: int, timelines: Sequence[Timeline]) -> None:
    """Write the timelines of all ranks to a run's folder."""
    with explain_errors(folder / FOLDER):
        (folder / FOLDER).mkdir(exist_ok=True)
    content = [{"began": t.began, "total": t.total, "spans": [astuple(span) for span in t.spans]} for t in timelines]
    write_text(folder / FOLDER / f"{iteration:08d}.json", json.dumps(content) + "\n")


def read_timelines(folder: Path, iteration: int | None) -> tuple[int, list[Timeline]]:
    """Read the timelines of an iteration (by default the newest one); return the iteration and the timelines.

    Raises:
        UserError: no timeline of the iteration was kept, or its file is damaged.
    """
    check_inside(folder, folder / FOLDER)
    kept = sorted(int(file.stem) for file in (folder / FOLDER).glob("*.json") if file.stem.isdecimal())
    if not kept:
        message = f"{folder} has no timeline yet: one is kept with each checkpoint (checkpoint.every)."
        raise UserError(message, code="timeline-missing")
    wanted = kept[-1] if iteration is None else iteration
    if wanted not in kept:
        message = f"iteration={wanted}: {folder} has kept {', '.join(map(str, kept))}."
        raise UserError(message, code="timeline-missing")
    file = folder / FOLDER / f"{wanted:08d}.json"
    check_inside(folder, file)
    content = read_json(file)
    try:
        found = [
            Timeline([Span(str(a), str(b), float(c), float(d), int(e)) for a, b, c, d, e in entry["spans"]],
                     float(entry["began"]), float(entry["total"]))
            for entry in content
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {shorten(error)}"
        message = f"{file} is damaged ({reason}); iteration=… reads another."
        raise UserError(message, code="timeline-damaged") from None
    if not found:
        message = f"{file} is damaged: it holds no rank; iteration=… reads another."
        raise UserError(message, code="timeline-damaged")
    return wanted, found
