"""The observation gate: which readings are accepted, and which streams are stale, by content as well as by time.

A stamp is what a publisher says, and a publisher may be wrong: a frozen camera goes on sending one picture with new
stamps, a recorded one sends new pictures with old stamps. So each reading is compared with the one before it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from embodied_rl.deployment.control.settings import StreamRule
from embodied_rl.deployment.execution.tick import Stream
from embodied_rl.interfaces.errors import UserError

EARLY_S = 0.05
"""A stamp may be so far ahead of the publisher's clock, by what clocks of two machines differ."""
DRIFT = 1e-3
"""Two clocks run apart by at most this much per second; quartz by a tenth of it."""
READINGS = 3
"""A clock that was set is believed after so many readings in a row, and after the settling time."""


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
    """The gate of one stream.

    Args:
        rule: when it is stale.
        source_clock: returns the time in ns that its publisher's stamps are of; None: it is estimated by the reading
            that came soonest after its stamp, since the last pause. What is late from then on is not noticed.
        settle_s: see `CoreSettings`.

    Attributes:
        changed_s: when its content changed, by the core's clock.
        counts: how many readings were "accepted", refused for each `Fault`, and how often the "clock was set".
    """

    def __init__(self, rule: StreamRule, source_clock: Callable[[], int] | None, settle_s: float) -> None:
        self.rule, self._source_clock, self._settle_s = rule, source_clock, settle_s
        self.counts: Counter[str] = Counter()
        self.forget()

    def forget(self) -> None:
        """Forget all readings, such as after a simulated world was reset; the counts stay."""
        self._seen: Stream | None = None
        self._last: Stream | None = None
        self._fault: Fault | None = None
        self.changed_s = 0.0
        self._other: list[Stream] = []  # readings in a row of a clock that was perhaps set: first and last

    def take(self, stream: Stream, now: float, finite: bool = True) -> bool | None:
        """Take what the topic has said last. Return whether it was accepted; None: it is not new."""
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
        self._accept(stream)
        return True

    @property
    def said_s(self) -> float:
        """Return when the last accepted reading was published, by the core's clock as estimated; NaN: there is none."""
        return math.nan if self._last is None else self._offset + self._last.source_ns * 1e-9

    def explain(self, now: float) -> str:
        """Return in words why the stream is stale; empty where it is fresh."""
        last, limit = self._last, self.rule.max_age_s
        if self._fault == Fault.UNREADABLE and self._seen is not None:
            return f"{self.rule.name}: {self._seen.unreadable}"
        if last is None:
            return f"{self.rule.name}: {self._fault or 'no message has come'}"
        age, late = now - last.received_s, self._find_source_s(now) - last.source_ns * 1e-9
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

    def _accept(self, stream: Stream) -> None:
        self.counts["accepted"] += 1
        offset = stream.received_s - stream.source_ns * 1e-9
        if self._last is None or self._is_after_pause(stream, self._last):
            self._offset = self._anchor = offset  # seconds of arrival minus seconds of stamp: least of late, first
            self._anchored_s = stream.received_s
        else:
            passed = stream.received_s - self._last.received_s
            self._offset = min(self._offset + DRIFT * passed, offset)
        if self._last is None or stream.digest != self._last.digest:
            self.changed_s = stream.received_s
        self._last = stream
        self._other.clear()

    def _is_after_pause(self, stream: Stream, last: Stream) -> bool:
        """Return whether a publisher's clock may have been paused, with its simulation: the estimate begins anew."""
        return self.rule.pauses and stream.received_s - last.received_s > self.rule.max_age_s

    def _find_fault(self, stream: Stream, now: float, finite: bool) -> Fault | None:
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
        return Fault.FUTURE if self._is_early(stream) else None

    def _is_early(self, stream: Stream) -> bool:
        stamp = stream.source_ns * 1e-9
        if self._source_clock is not None:
            return stamp > self._source_clock() * 1e-9 + EARLY_S
        if self._last is None:
            return False
        passed = stream.received_s - self._anchored_s
        return stream.received_s - stamp < self._anchor - DRIFT * passed - max(EARLY_S, self.rule.max_age_s)

    def _find_source_s(self, now: float) -> float:
        return now - self._offset if self._source_clock is None else self._source_clock() * 1e-9

    def _is_clock_set(self, stream: Stream, now: float) -> bool:
        """Return whether readings that do not fit the others fit one another for long enough: a clock was set."""
        if self._source_clock is not None and self._fault == Fault.FUTURE:
            return False  # its clock is known, and says otherwise
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
    """The gate of all streams.

    Args:
        rules: of each stream.
        source_clock, settle_s: as in `StreamGate`.
    """

    def __init__(self, rules: Iterable[StreamRule], source_clock: Callable[[], int] | None, settle_s: float) -> None:
        self.streams = {rule.name: StreamGate(rule, source_clock, settle_s) for rule in rules}

    def observe(self, streams: Mapping[str, Stream], now: float, finite: bool = True) -> bool:
        """Take what topics have said last; those that say nothing new may be left out or repeated.

        Args:
            streams: by the topic's name.
            now: seconds of the core's clock.
            finite: whether the measured entries are; what measures is refused otherwise.

        Returns:
            Whether the measured entries may be used: streams that measure brought them, and all were accepted.

        Raises:
            UserError: a stream that no rule names.
        """
        taken: list[bool | None] = []
        for name, stream in streams.items():
            if name not in self.streams:
                raise UserError(f"{name} is no stream of this robot. Its streams are {', '.join(self.streams)}.")
            gate = self.streams[name]
            accepted = gate.take(stream, now, finite or not gate.rule.measures)
            if gate.rule.measures:
                taken.append(accepted)
        return True in taken and False not in taken

    def explain(self, now: float, measuring: bool | None = None) -> str:
        """Return in words which streams are stale and why, empty: none; of those alone that measure, or do not."""
        gates = (each for each in self.streams.values() if measuring in (None, each.rule.measures))
        return "; ".join(words for each in gates if (words := each.explain(now)))

    def forget(self) -> None:
        """Forget all readings."""
        for each in self.streams.values():
            each.forget()

    def list_counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of each stream."""
        return {name: dict(each.counts) for name, each in self.streams.items()}
