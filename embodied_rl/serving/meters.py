"""Metrics of a server in the text format of Prometheus. Standard library only."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "embodied_rl_"
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Histogram with given upper bounds.

    Args:
        bounds: ascending; "+Inf" is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(self.counts)

    def write(self, name: str) -> Iterator[str]:
        """Yield the lines of the histogram."""
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:g}"
        yield f"{name}_count {total}"


class Meters:
    """Metrics of a server since its start.

    Attributes:
        answered: HTTP status → completion requests.
        rejected: reason → requests that were not enqueued, or were removed from the queue.
        batch_sizes, batch_seconds: of each call of the model.
        request_seconds: of each answered request, from its first byte to the answer.
        open: completion requests that were received completely and not answered yet.
    """

    def __init__(self) -> None:
        self.answered: Counter[int] = Counter()
        self.rejected: Counter[str] = Counter()
        self.batch_sizes, self.batch_seconds = Histogram(SIZES), Histogram(SECONDS)
        self.request_seconds = Histogram(SECONDS)
        self.open = 0

    def watch_batch(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_sizes.add(size)
        self.batch_seconds.add(seconds)

    def write(self, waiting: int) -> str:
        """Return all metrics and the queue length as text."""
        lines: list[str] = []
        _write_counter(lines, "requests_total", "Requests for completions, by status.", "status", self.answered)
        _write_counter(lines, "rejected_total", "Requests that were not answered, by reason.", "reason", self.rejected)
        lines += [
            *_head("batches_total", "counter", "Calls of the model."),
            f"{PREFIX}batches_total {self.batch_sizes.count}",
        ]
        lines += [*_head("queue", "gauge", "Questions that wait."), f"{PREFIX}queue {waiting}"]
        lines += [*_head("open", "gauge", "Requests without an answer yet."), f"{PREFIX}open {self.open}"]
        for name, said, histogram in (
            ("batch_size", "Questions of a call of the model.", self.batch_sizes),
            ("batch_seconds", "Seconds of a call of the model.", self.batch_seconds),
            ("request_seconds", "Seconds from a request to its answer.", self.request_seconds),
        ):
            lines += [*_head(name, "histogram", said), *histogram.write(PREFIX + name)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, said: str) -> tuple[str, str]:
    return f"# HELP {PREFIX}{name} {said}", f"# TYPE {PREFIX}{name} {kind}"


def _write_counter(lines: list[str], name: str, said: str, label: str, counts: Counter[str] | Counter[int]) -> None:
    lines += _head(name, "counter", said)
    lines += [f'{PREFIX}{name}{{{label}="{value}"}} {count}' for value, count in sorted(counts.items(), key=str)]
