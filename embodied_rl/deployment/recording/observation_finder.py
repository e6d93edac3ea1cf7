"""Finds the messages that each control step's observation was made of, in one pass through a recording.

A step that says what it observed gets these very messages. Otherwise the newest ones count that had been recorded when
it began. What a step lacks is waited for until `SLACK_NS` after it was recorded. The work grows as messages and steps
do, whatever times a stranger's recording has: a time may stand there many times.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from embodied_rl.deployment.recording.mcap_reader import RecordedMessage
from embodied_rl.deployment.recording.recorded_episode import RecordedStep
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.steps import STEPS
from embodied_rl.deployment.robots.description import RobotDescription

SLACK_NS = 2_000_000_000


@dataclass
class StepSources:
    """A control step and the messages of its observation, by the short names of their topics."""

    step: RecordedStep
    found: dict[str, RecordedMessage] = field(default_factory=dict)
    passed: bool = False
    taken: bool = False


@dataclass
class _Asked:
    """The message of one topic and one time, which steps say that they observed.

    Attributes:
        steps: that have not been taken. newest: the last message of that time; of several that one counts which came
            last before a step was recorded. late: steps that were recorded before any; theirs is the first that comes.
    """

    steps: int = 0
    newest: RecordedMessage | None = None
    late: list[StepSources] = field(default_factory=list)

    def note(self, short: str, message: RecordedMessage) -> None:
        self.newest = message
        for sources in self.late:
            if not sources.taken:
                sources.found[short] = message
        self.late.clear()


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
        self._named: dict[tuple[str, int], _Asked] = {}
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
                self._named.setdefault((short, time_ns), _Asked()).steps += 1
            elif not observed:
                self._timed[short].append(sources)

    def _note(self, short: str, message: RecordedMessage) -> None:
        self._give_newest(short, message.received_ns)
        self._newest[short] = message
        if (asked := self._named.get((short, message.source_ns))) is not None:
            asked.note(short, message)

    def _give_newest(self, short: str, before_ns: int) -> None:
        waiting = self._timed[short]
        while waiting and waiting[0].step.control.time_ns < before_ns:
            sources = waiting.popleft()
            if short in self._newest:
                sources.found[short] = self._newest[short]

    def _pass_step(self) -> None:
        self._position += 1
        sources = self._at.pop(self._position, None)
        if sources is None or sources.taken:
            return
        sources.passed = True
        for short, asked in self._list_asked(sources):
            if asked.newest is None:
                asked.late.append(sources)
            else:
                sources.found[short] = asked.newest

    def _list_asked(self, sources: StepSources) -> list[tuple[str, _Asked]]:
        """Return what a step that has not been taken says that it observed, with the topics' short names."""
        observed = sources.step.control.observed
        return [(short, self._named[short, observed[name]]) for name, short in self._names.items() if name in observed]

    def _is_over(self, sources: StepSources, now_ns: int) -> bool:
        complete = sources.passed and len(sources.found) == len(self._names)
        return complete or now_ns > sources.step.received_ns + SLACK_NS

    def _take(self) -> StepSources:
        """Return the first step, and forget it: whoever keeps pictures does so by itself."""
        sources = self._waiting.popleft()
        control = sources.step.control
        for short, asked in self._list_asked(sources):
            if not sources.passed and asked.newest is not None:
                sources.found[short] = asked.newest
            asked.steps -= 1
        for name, short in self._names.items():
            time_ns, newest = control.observed.get(name), self._newest.get(short)
            if time_ns is not None and not self._named[short, time_ns].steps:
                del self._named[short, time_ns]
            if not control.observed and newest is not None and newest.received_ns <= control.time_ns:
                sources.found.setdefault(short, newest)
        sources.taken = True
        return sources
