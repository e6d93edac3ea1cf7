"""Finds the messages that each control step's observation was made of, in one pass through a recording.

A step that says what it observed gets these very messages. Otherwise the newest ones count that had been recorded when
it began. What a step lacks is waited for until `SLACK_NS` after it was recorded.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from embodied_rl.recording.episodes import RecordedStep
from embodied_rl.recording.mcap_reader import RecordedMessage
from embodied_rl.recording.recording_folder import Recording
from embodied_rl.recording.steps import STEPS
from embodied_rl.robots.description import RobotDescription

SLACK_NS = 2_000_000_000


@dataclass
class StepSources:
    """A control step and the messages of its observation, by the short names of their topics."""

    step: RecordedStep
    found: dict[str, RecordedMessage] = field(default_factory=dict)
    passed: bool = False


class ObservationFinder:
    """Finds the messages of steps.

    Args:
        robot: the description. topics: short names of the topics that an observation needs.
        steps: in the order in which they were recorded.
    """

    def __init__(self, robot: RobotDescription, topics: Sequence[str], steps: Sequence[RecordedStep]) -> None:
        self._names = {robot.topics[short].name: short for short in topics}
        self._waiting = deque(StepSources(step) for step in steps)
        self._at: dict[int, StepSources] = {sources.step.position: sources for sources in self._waiting}
        self._named: dict[tuple[str, int], list[StepSources]] = {}
        self._timed: dict[str, deque[StepSources]] = {short: deque() for short in topics}
        self._newest: dict[str, RecordedMessage] = {}
        self._position = -1
        for sources in self._waiting:
            self._ask(sources)

    def find(self, recording: Recording) -> Iterator[StepSources]:
        """Yield the steps in their order, each with what was found.

        Raises:
            RecordingError: a file cannot be read.
        """
        for message in recording.read({STEPS, *self._names}):
            if message.channel.topic == STEPS:
                self._pass_step()
            else:
                self._note(self._names[message.channel.topic], message)
            while self._waiting and self._is_over(self._waiting[0], message.received_ns):
                yield self._take()
        while self._waiting:
            yield self._take()

    def _ask(self, sources: StepSources) -> None:
        observed = sources.step.control.observed
        for name, short in self._names.items():
            time_ns = observed.get(name)
            if time_ns is not None:
                self._named.setdefault((short, time_ns), []).append(sources)
            elif not observed:
                self._timed[short].append(sources)

    def _note(self, short: str, message: RecordedMessage) -> None:
        self._give_newest(short, message.received_ns)
        self._newest[short] = message
        for sources in self._named.get((short, message.source_ns), ()):
            if not sources.passed or short not in sources.found:  # of two that have one time the later one counts
                sources.found[short] = message

    def _give_newest(self, short: str, before_ns: int) -> None:
        waiting = self._timed[short]
        while waiting and waiting[0].step.control.time_ns < before_ns:
            sources = waiting.popleft()
            if short in self._newest:
                sources.found[short] = self._newest[short]

    def _pass_step(self) -> None:
        self._position += 1
        sources = self._at.pop(self._position, None)
        if sources is not None:
            sources.passed = True

    def _is_over(self, sources: StepSources, now_ns: int) -> bool:
        complete = sources.passed and len(sources.found) == len(self._names)
        return complete or now_ns > sources.step.received_ns + SLACK_NS

    def _take(self) -> StepSources:
        """Return the first step, and forget it: whoever keeps pictures does so by itself."""
        sources = self._waiting.popleft()
        control = sources.step.control
        for name, short in self._names.items():
            asked = self._named.get((short, control.observed.get(name, -1)), [])
            if asked and asked.pop(0) and not asked:
                del self._named[short, control.observed[name]]
            newest = self._newest.get(short)
            if not control.observed and newest is not None and newest.received_ns <= control.time_ns:
                sources.found.setdefault(short, newest)
        return sources
