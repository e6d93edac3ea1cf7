"""Find the messages of each control step's observation in one pass through a recording.

Steps with `observed` get exactly these messages, others the newest messages recorded before their start. Messages may
be recorded up to `SLACK_NS` after the step. The work is linear in the number of messages and steps, for any times.
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
    """A control step and the messages of its observation, by the short names of their topics.

    Attributes:
        passed: whether the step's own message has been read. taken: whether the step has been yielded.
    """

    step: RecordedStep
    found: dict[str, RecordedMessage] = field(default_factory=dict)
    passed: bool = False
    taken: bool = False


@dataclass
class _ObservedMessage:
    """The message of one topic and one time that steps have observed.

    Attributes:
        steps: number of steps that have not been taken. newest: last message of that time; if there are several, a step
            gets the last one recorded before it. late: steps recorded before any message; they get the first one.
    """

    steps: int = 0
    newest: RecordedMessage | None = None
    late: list[StepSources] = field(default_factory=list)

    def add(self, short: str, message: RecordedMessage) -> None:
        self.newest = message
        for sources in self.late:
            if not sources.taken:
                sources.found[short] = message
        self.late.clear()


class ObservationFinder:
    """Finds the messages of steps.

    Args:
        robot: the recorded robot. topics: short names of the topics of an observation.
        steps: in the order of recording.
    """

    def __init__(self, robot: RobotDescription, topics: Sequence[str], steps: Sequence[RecordedStep]) -> None:
        self._names = {robot.topics[short].name: short for short in topics}
        self._waiting = deque(StepSources(step) for step in steps)
        self._at: dict[int, StepSources] = {sources.step.position: sources for sources in self._waiting}
        self._observed: dict[tuple[str, int], _ObservedMessage] = {}
        self._timed: dict[str, deque[StepSources]] = {short: deque() for short in topics}
        self._newest: dict[str, RecordedMessage] = {}
        self._position = -1
        for sources in self._waiting:
            observed = sources.step.control.observed
            for name, short in self._names.items():
                time_ns = observed.get(name)
                if time_ns is not None:
                    self._observed.setdefault((short, time_ns), _ObservedMessage()).steps += 1
                elif not observed:
                    self._timed[short].append(sources)

    def find(self, recording: Recording) -> Iterator[StepSources]:
        """Yield the steps in order, each with the messages that were found.

        Raises:
            RecordingError: a file cannot be read.
        """
        for message in recording.read({STEPS, *self._names}):
            if message.channel.topic == STEPS:
                self._pass_step()
            else:
                self._add(self._names[message.channel.topic], message)
            while self._waiting and self._is_over(self._waiting[0], message.received_ns):
                yield self._take()
        while self._waiting:
            yield self._take()

    def _add(self, short: str, message: RecordedMessage) -> None:
        waiting = self._timed[short]
        while waiting and waiting[0].step.control.time_ns < message.received_ns:
            sources = waiting.popleft()
            if short in self._newest:
                sources.found[short] = self._newest[short]
        self._newest[short] = message
        if (observed := self._observed.get((short, message.source_ns))) is not None:
            observed.add(short, message)

    def _pass_step(self) -> None:
        self._position += 1
        sources = self._at.pop(self._position, None)
        if sources is None or sources.taken:
            return
        sources.passed = True
        for short, observed in self._list_observed(sources):
            if observed.newest is None:
                observed.late.append(sources)
            else:
                sources.found[short] = observed.newest

    def _list_observed(self, sources: StepSources) -> list[tuple[str, _ObservedMessage]]:
        """Return the observed messages of a step that has not been taken, with the short names of their topics."""
        observed = sources.step.control.observed
        return [
            (short, self._observed[short, observed[name]]) for name, short in self._names.items() if name in observed
        ]

    def _is_over(self, sources: StepSources, now_ns: int) -> bool:
        complete = sources.passed and len(sources.found) == len(self._names)
        return complete or now_ns > sources.step.received_ns + SLACK_NS

    def _take(self) -> StepSources:
        """Remove and return the first step, and drop messages that no other step needs."""
        sources = self._waiting.popleft()
        control = sources.step.control
        for short, observed in self._list_observed(sources):
            if not sources.passed and observed.newest is not None:
                sources.found[short] = observed.newest
            observed.steps -= 1
        for name, short in self._names.items():
            time_ns, newest = control.observed.get(name), self._newest.get(short)
            if time_ns is not None and not self._observed[short, time_ns].steps:
                del self._observed[short, time_ns]
            if not control.observed and newest is not None and newest.received_ns <= control.time_ns:
                sources.found.setdefault(short, newest)
        sources.taken = True
        return sources
