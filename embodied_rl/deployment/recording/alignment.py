"""Align a recording at control steps: observation, proposed and executed action, and source of each step.

Steps that cannot be aligned are left out and counted by reason. Gaps split an episode into parts; only the last part
has the episode's end. Shapes: `A` action entries.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.recording.episodes import Omissions, RecordedEpisode
from embodied_rl.deployment.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.steps import STEPS, RecordedStep
from embodied_rl.deployment.robots.description import RobotDescription, Topic
from embodied_rl.deployment.robots.mapping import ObservationMapping, digest_content
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, Source
from embodied_rl.system.untrusted_files import shorten

Action = NDArray[np.float32]
SLACK_NS = 2_000_000_000
"""How long after a step the messages of its observation may be recorded."""


@dataclass(frozen=True)
class AlignedStep:
    """A control step with its observation.

    Attributes:
        number: control steps since the episode began.
        observation: observation of the policy, one row.
        proposed: float32 [A] in the policy's units, before the safety filter; None without a proposed action.
        executed: float32 [A]. source: of the executed action. policy_version: of the weights, -1 without a policy.
    """

    number: int
    observation: Observation
    proposed: Action | None
    executed: Action
    source: Source
    policy_version: int


@dataclass(frozen=True)
class EpisodePart:
    """Consecutive steps of an episode. `ends`: whether they include the end of the episode."""

    episode: RecordedEpisode
    steps: tuple[AlignedStep, ...]
    ends: bool

    @property
    def label(self) -> str:
        """Return success or failure if the part ends with it, or else an empty text."""
        return self.episode.label if self.ends and self.episode.label in ("success", "failure") else ""


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
    """Finds the messages of each step's observation in one pass through a recording.

    Steps with `observed` get exactly these messages, others the newest messages recorded before their start. The work
    is linear in the number of messages and steps, for any times.

    Args:
        topics: short names of the topics of an observation.
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
            while self._waiting:
                first = self._waiting[0]
                complete = first.passed and len(first.found) == len(self._names)
                if not (complete or message.received_ns > first.step.received_ns + SLACK_NS):
                    break
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


class _RepeatWatch:
    """Measures for how long the steps have seen the same message, or content, of a topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._message: RecordedMessage | None = None
        self._content = b""
        self._message_ns = self._content_ns = 0

    def update(self, message: RecordedMessage, content: object, time_ns: int) -> int:
        """Return for how many nanoseconds steps before `time_ns` have seen the same.

        The same message, and for topics that must not repeat themselves also the same content without stamps.
        """
        if message is not self._message:
            self._message, self._message_ns = message, time_ns
            digest = b"" if self._topic.may_repeat else digest_content(content)
            if self._topic.may_repeat or digest != self._content:
                self._content, self._content_ns = digest, time_ns
        return time_ns - min(self._message_ns, self._content_ns)


class _Aligner:
    """Decodes the messages of control steps and checks them."""

    def __init__(self, recording: Recording, robot: RobotDescription, omissions: Omissions) -> None:
        self.mapping = ObservationMapping(robot)
        self._recording, self._robot, self._omissions = recording, robot, omissions
        self._watches = {short: _RepeatWatch(robot.topics[short]) for short in self.mapping.topics}
        self._decoded: dict[str, tuple[RecordedMessage, object]] = {}

    def align(self, sources: StepSources) -> AlignedStep | None:
        """Return the aligned step, or count the reason and return None if it cannot be used."""
        control, messages = sources.step.control, dict[str, object]()
        try:
            executed = self._read_action(control.executed, "executed")
            for short in self.mapping.topics:
                message, name = sources.found.get(short), self._robot.topics[short].name
                if message is None:
                    raise UserError(f"steps without a message of {name}", code="step-unusable")
                messages[short] = content = self._decode(short, message)
                age_ns = 0 if control.observed else control.time_ns - message.received_ns
                repeated_ns = self._watches[short].update(message, content, control.time_ns)
                if max(age_ns, repeated_ns) > self._robot.topics[short].max_age_s * 1e9:
                    raise UserError(f"steps with a stale message of {name}", code="step-unusable")
            state = self.mapping.read_state(messages).astype(np.float32)
            pictures = {name: picture[None] for name, picture in self.mapping.read_pictures(messages).items()}
            if executed is None:
                raise UserError("steps without an executed action", code="step-unusable")
        except RecordingError:
            raise
        except UserError as error:
            self._omissions[shorten(error)] += 1
            return None
        proposed = self._read_action(control.proposed, "proposed")
        observation = Observation(pictures, state[None], (control.instruction,))
        return AlignedStep(control.step, observation, proposed, executed, control.source, control.policy_version)

    def _read_action(self, values: Sequence[float] | None, name: str) -> Action | None:
        if values is None:
            return None
        names = [entry.name for entry in self._robot.actions]
        if len(values) != len(names):
            raise RecordingError(
                f"{self._recording.place}: a step has {len(values)} {name} entries, but {self._robot.name} has "
                f"{len(names)} ({', '.join(names)}): set robot to the recorded one.",
                code="recording-of-another-robot",
            )
        with np.errstate(over="ignore"):  # overflows become infinite, and are refused below
            action = np.array(values, np.float32)
        return action if np.isfinite(action).all() else None

    def _decode(self, short: str, message: RecordedMessage) -> object:
        known = self._decoded.get(short)
        if known is None or known[0] is not message:
            topic, found = self._robot.topics[short], message.channel.type_name
            if found != topic.type_name:
                raise RecordingError(
                    f"{self._recording.place}: {topic.name} was recorded as {found[:100]!r}, but {self._robot.name} "
                    f"has {topic.type_name}: set robot to the recorded one.",
                    code="recording-of-another-robot",
                )
            known = self._decoded[short] = (message, self._recording.decode(message))
        return known[1]


def align_recording(
    recording: Recording, robot: RobotDescription, episodes: Sequence[RecordedEpisode], omissions: Omissions
) -> Iterator[EpisodePart]:
    """Yield the parts of episodes in order; one episode is in memory at a time.

    Args:
        episodes: from `list_episodes`.
        omissions: counts steps that are left out, by reason.

    Raises:
        RecordingError: a file cannot be read, or the recorded actions are not those of this robot.
    """
    aligner = _Aligner(recording, robot, omissions)
    finder = ObservationFinder(robot, aligner.mapping.topics, [step for each in episodes for step in each.steps])
    found = finder.find(recording)
    for episode in episodes:
        part: list[AlignedStep] = []
        last = episode.steps[0].control.step - 1
        for recorded, step in [(recorded, aligner.align(next(found))) for recorded in episode.steps]:
            lost, last = recorded.control.step - last - 1, recorded.control.step
            if lost:
                omissions["steps that were not recorded"] += lost
            if part and (lost or step is None):
                yield EpisodePart(episode, tuple(part), ends=False)
                part = []
            if step is not None:
                part.append(step)
        if part:
            yield EpisodePart(episode, tuple(part), ends=True)
