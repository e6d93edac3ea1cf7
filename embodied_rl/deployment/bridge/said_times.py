"""When an operator said something, by the core's clock, however late it arrives."""

from typing import Any

from embodied_rl.deployment.control.freshness import StreamGate
from embodied_rl.deployment.control.settings import CoreSettings, StreamRule
from embodied_rl.deployment.execution.tick import StreamReading
from embodied_rl.deployment.robots.mapping import make_stream


class SaidTimes:
    """The times of one topic's messages, by the stamp of their header, or where they have none by the middleware's.

    The rules are those of a robot's topics (`freshness.py`), but for one: the clock of whoever says it is taken not to
    pause, so that what comes in a burst after the network failed is as old as it is.

    Args:
        name: of the topic.
        max_age_s: what is older is stale.
        headers: count; else the middleware's stamps do, as where time is simulated.
    """

    def __init__(self, name: str, max_age_s: float, headers: bool = True) -> None:
        self._headers = headers
        self._gate = StreamGate(StreamRule(name, max_age_s, may_repeat=True, pauses=False), None, CoreSettings.settle_s)

    def find(self, message: Any, source_ns: int, now_s: float) -> float | None:
        """Return when a message was said, in seconds of the core's clock; None: its stamp repeats or cannot be.

        Args:
            message: that has just come. source_ns: when it was published; 0 where the middleware does not say.
            now_s: the present time.
        """
        stream = make_stream(message, source_ns, now_s)
        if not self._headers:
            stream = StreamReading(source_ns, now_s, stream.digest)
        if not stream.source_ns:
            return now_s
        return min(self._gate.said_s, now_s) if self._gate.take(stream, now_s) else None  # rounding is no future
