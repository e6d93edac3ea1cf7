"""Align a recording at control steps: observation, proposed and executed action, and source of each step.

Steps that cannot be aligned are left out and counted by reason. Gaps split an episode into parts; only the last part
has the episode's end. Shapes: `A` action entries, `S` state entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.recording.episodes import Omissions
from embodied_rl.deployment.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.deployment.recording.observation_finder import ObservationFinder, StepSources
from embodied_rl.deployment.recording.recorded_episode import RecordedEpisode
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.robots.description import RobotDescription, Topic
from embodied_rl.deployment.robots.mapping import ObservationMapping, digest_content
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, Source
from embodied_rl.system.untrusted_files import shorten

Action = NDArray[np.float32]


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


def align_recording(
    recording: Recording, robot: RobotDescription, episodes: Sequence[RecordedEpisode], omissions: Omissions
) -> Iterator[EpisodePart]:
    """Yield the parts of episodes in order; one episode is in memory at a time.

    Args:
        recording, robot: the recording and the recorded robot. episodes: from `list_episodes`.
        omissions: counts steps that are left out, by reason.

    Raises:
        RecordingError: a file cannot be read, or the recorded actions are not those of this robot.
    """
    aligner = _Aligner(recording, robot, omissions)
    finder = ObservationFinder(robot, aligner.mapping.topics, [step for each in episodes for step in each.steps])
    found = finder.find(recording)
    for episode in episodes:
        steps = [aligner.align(next(found)) for _ in episode.steps]
        yield from _split_at_gaps(episode, steps, omissions)


def _split_at_gaps(
    episode: RecordedEpisode, steps: Sequence[AlignedStep | None], omissions: Omissions
) -> Iterator[EpisodePart]:
    part: list[AlignedStep] = []
    last = episode.steps[0].control.step - 1
    for recorded, step in zip(episode.steps, steps, strict=True):
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
        control = sources.step.control
        try:
            executed = self._read_action(control.executed, "executed")
            observation = self._observe(sources)
            if executed is None:
                raise UserError("steps without an executed action", code="step-unusable")
        except RecordingError:
            raise
        except UserError as error:
            self._omissions[shorten(error)] += 1
            return None
        proposed = self._read_action(control.proposed, "proposed")
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

    def _observe(self, sources: StepSources) -> Observation:
        control, messages = sources.step.control, {}
        for short in self.mapping.topics:
            message = sources.found.get(short)
            if message is None:
                raise UserError(f"steps without a message of {self._robot.topics[short].name}", code="step-unusable")
            messages[short] = content = self._decode(short, message)
            age_ns = 0 if control.observed else control.time_ns - message.received_ns
            repeated_ns = self._watches[short].update(message, content, control.time_ns)
            if max(age_ns, repeated_ns) > self._robot.topics[short].max_age_s * 1e9:
                raise UserError(f"steps with a stale message of {self._robot.topics[short].name}", code="step-unusable")
        state = self.mapping.read_state(messages).astype(np.float32)
        pictures = {name: picture[None] for name, picture in self.mapping.read_pictures(messages).items()}
        return Observation(pictures, state[None], (control.instruction,))

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
