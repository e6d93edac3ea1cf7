"""Freshness of observations: which readings are accepted, and which streams are stale, by time and by content.

Stamps alone are not enough: a frozen camera may send one image with new stamps, and a replayed recording new images
with old stamps. So each reading is compared with the one before it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from embodied_rl.deployment.control.settings import StreamRule
from embodied_rl.deployment.execution.tick import StreamReading
from embodied_rl.interfaces.errors import UserError

EARLY_S = 0.05
"""Largest lead of a stamp over the publisher's clock: the clocks of two machines differ."""
DRIFT = 1e-3
"""Largest relative drift of two clocks; quartz clocks drift by a tenth of it."""
READINGS = 3
"""Readings in a row, over the settling time, after which the stamps of a clock that was set are accepted."""


class Fault(StrEnum):
    """Why a reading was refused."""

    UNREADABLE = "it cannot be read"
    NOT_FINITE = "it holds NaN or infinity"
    DUPLICATE = "it came twice"
    STANDS_STILL = "its stamp stands still while its content changes"
    BACK = "its stamp went back"
    FUTURE = "its stamp is in the future"
    ARRIVAL = "its time of arrival is not between that of the one before and now"


class StreamGate:
    """Freshness gate of one stream.

    Args:
        rule: when it is stale.
        source_clock: returns the time in ns of the clock that stamps the stream; None: it is estimated from the
            reading since the last pause that came soonest after its stamp. A constant delay is not noticed then.
        settle_s: see `CoreSettings`.

    Attributes:
        changed_s: when its content changed, by the core's clock.
        counts: of readings "accepted", refused by `Fault`, and of times that the "clock was set".
    """

    def __init__(self, rule: StreamRule, source_clock: Callable[[], int] | None, settle_s: float) -> None:
        self.rule, self._source_clock, self._settle_s = rule, source_clock, settle_s
        self.counts: Counter[str] = Counter()
        self._offset = self._anchor = 0.0  # time of arrival minus stamp: the smallest, and of the first reading
        self._anchored_s = 0.0  # when the first reading came
        self._others = 0  # number of the readings in a row after a possible clock change
        self.forget()

    def forget(self) -> None:
        """Forget all readings, such as after a simulated world was reset; the counts stay."""
        self._seen: StreamReading | None = None  # the last reading, accepted or not
        self._last: StreamReading | None = None  # the last accepted reading
        self._fault: Fault | None = None
        self.changed_s = 0.0
        self._other: list[StreamReading] = []  # first and last of the readings after a possible clock change

    def take(self, stream: StreamReading, now: float, finite: bool = True) -> bool | None:
        """Take the newest reading; return whether it was accepted, None if it is not new."""
        if stream == self._seen:
            return None
        self._seen = stream
        self._fault = self._find_fault(stream, now, finite and stream.finite)
        if self._fault is not None:
            self.counts[self._fault.name.lower()] += 1
            if self._fault not in (Fault.BACK, Fault.FUTURE) or not self._is_clock_set(stream, now):
                return False
            self.counts["clock was set"] += 1
            self._last, self._fault = None, None
        self.counts["accepted"] += 1
        offset = stream.received_s - stream.source_ns * 1e-9
        passed = math.inf if self._last is None else stream.received_s - self._last.received_s
        if self._last is None or (self.rule.pauses and passed > self.rule.max_age_s):  # its clock may have been paused
            self._offset = self._anchor = offset
            self._anchored_s = stream.received_s
        else:
            self._offset = min(self._offset + DRIFT * passed, offset)
        if self._last is None or stream.digest != self._last.digest:
            self.changed_s = stream.received_s
        self._last = stream
        self._other.clear()
        return True

    @property
    def said_s(self) -> float:
        """Return when the last accepted reading was published, by the core's clock as estimated; NaN: there is none."""
        return math.nan if self._last is None else self._offset + self._last.source_ns * 1e-9

    def explain(self, now: float) -> str:
        """Return why the stream is stale; empty if it is fresh."""
        last, limit = self._last, self.rule.max_age_s
        if self._fault == Fault.UNREADABLE and self._seen is not None:
            return f"{self.rule.name}: {self._seen.unreadable}"
        if last is None:
            return f"{self.rule.name}: {self._fault or 'no message has come'}"
        source_s = now - self._offset if self._source_clock is None else self._source_clock() * 1e-9
        age, late = now - last.received_s, source_s - last.source_ns * 1e-9
        if max(age, late) > limit and self._fault is not None:
            return f"{self.rule.name}: {self._fault}"
        if age > limit or age < 0:
            return f"{self.rule.name}: no message for {age:.2f} s, at most {limit:g}"
        if late > limit:
            return f"{self.rule.name}: its stamp is {late:.2f} s old, at most {limit:g}"
        same = now - self.changed_s
        if same > limit and not self.rule.may_repeat:
            return f"{self.rule.name}: the same content for {same:.2f} s, at most {limit:g}"
        return ""

    def _find_fault(self, stream: StreamReading, now: float, finite: bool) -> Fault | None:
        last = self._last
        if stream.unreadable:
            return Fault.UNREADABLE
        if not finite:
            return Fault.NOT_FINITE
        if stream.received_s > now or (last is not None and stream.received_s < last.received_s):
            return Fault.ARRIVAL
        if last is not None and stream.source_ns == last.source_ns:
            return Fault.DUPLICATE if stream.digest == last.digest else Fault.STANDS_STILL
        if last is not None and stream.source_ns < last.source_ns:
            return Fault.BACK
        stamp = stream.source_ns * 1e-9
        if self._source_clock is not None:
            return Fault.FUTURE if stamp > self._source_clock() * 1e-9 + EARLY_S else None
        if last is None:
            return None
        passed = stream.received_s - self._anchored_s
        earliest = self._anchor - DRIFT * passed - max(EARLY_S, self.rule.max_age_s)
        return Fault.FUTURE if stream.received_s - stamp < earliest else None

    def _is_clock_set(self, stream: StreamReading, now: float) -> bool:
        """Return whether enough refused readings are consistent with each other: the publisher's clock was set."""
        if self._source_clock is not None and self._fault == Fault.FUTURE:
            return False  # the clock is known
        follows = bool(self._other) and stream.source_ns > self._other[1].source_ns
        if not follows or now - self._other[1].received_s > self.rule.max_age_s:
            self._other, self._others = [stream, stream], 1
            return False
        self._other[1] = stream
        self._others += 1
        passed = stream.received_s - self._other[0].received_s
        said = (stream.source_ns - self._other[0].source_ns) * 1e-9
        return self._others >= READINGS and passed >= self._settle_s and passed / 2 <= said <= passed * 2


class FreshnessGate:
    """Freshness gate of all streams, by name; arguments as of `StreamGate`."""

    def __init__(self, rules: Iterable[StreamRule], source_clock: Callable[[], int] | None, settle_s: float) -> None:
        self.streams = {rule.name: StreamGate(rule, source_clock, settle_s) for rule in rules}

    def observe(self, streams: Mapping[str, StreamReading], now: float, finite: bool = True) -> bool:
        """Take the newest reading of each topic, by name; unchanged readings may be left out or repeated.

        Return whether the measured entries may be used: there are new readings of streams that measure, all accepted.

        Args:
            finite: whether the measured entries are finite; otherwise the streams that measure are refused.

        Raises:
            UserError: an unknown stream.
        """
        taken: list[bool | None] = []
        for name, stream in streams.items():
            if name not in self.streams:
                raise UserError(
                    f"{name} is not a stream of this robot. Its streams are {', '.join(self.streams)}.",
                    code="stream-unknown",
                )
            gate = self.streams[name]
            accepted = gate.take(stream, now, finite or not gate.rule.measures)
            if gate.rule.measures:
                taken.append(accepted)
        return True in taken and False not in taken

    def explain(self, now: float, measuring: bool | None = None) -> str:
        """Return which streams are stale and why; only those that do or do not measure unless `measuring` is None."""
        gates = (each for each in self.streams.values() if measuring in (None, each.rule.measures))
        return "; ".join(reason for each in gates if (reason := each.explain(now)))

    def forget(self) -> None:
        """Forget all readings."""
        for each in self.streams.values():
            each.forget()

    def list_counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of each stream."""
        return {name: dict(each.counts) for name, each in self.streams.items()}
