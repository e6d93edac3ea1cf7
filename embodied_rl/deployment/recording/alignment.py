"""Aligns a recording at control steps: what a policy would have seen, what was wanted, what was executed, and by whom.

Steps that cannot be aligned are left out and counted in words. Where that leaves a gap, the episode is cut there: its
parts follow each other, and only the last one has the episode's end. Shapes: `A` action entries, `S` state entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.recording.episodes import Omissions
from embodied_rl.deployment.recording.freshness import RepeatWatch
from embodied_rl.deployment.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.deployment.recording.observation_finder import ObservationFinder, StepSources
from embodied_rl.deployment.recording.recorded_episode import RecordedEpisode
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.steps import ControlStep
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.mapping import ObservationMapping
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, Source
from embodied_rl.system.untrusted_files import shorten

Action = NDArray[np.float32]


@dataclass(frozen=True)
class AlignedStep:
    """A control step with its observation.

    Attributes:
        number: control steps since the episode began.
        observation: one row, as a policy sees it.
        proposed: float32 [A] in the policy's units, before the safety filter; None where nothing was.
        executed: float32 [A]. source: who decided it. policy_version: of the weights, -1 without a policy.
    """

    number: int
    observation: Observation
    proposed: Action | None
    executed: Action
    source: Source
    policy_version: int


@dataclass(frozen=True)
class EpisodePart:
    """Consecutive steps of an episode; `ends`: the last of them is the episode's last one."""

    episode: RecordedEpisode
    steps: tuple[AlignedStep, ...]
    ends: bool

    @property
    def label(self) -> str:
        """Return success or failure if the episode ended so here; nothing where it goes on, or ended by time."""
        return self.episode.label if self.ends and self.episode.label in ("success", "failure") else ""


def align_recording(
    recording: Recording, robot: RobotDescription, episodes: Sequence[RecordedEpisode], omissions: Omissions
) -> Iterator[EpisodePart]:
    """Yield the parts of episodes, in the order in which they were run; an episode is in memory at a time.

    Args:
        recording, robot: what was recorded of what. episodes: those to align, from `list_episodes`.
        omissions: counts what is left out.

    Raises:
        RecordingError: a file cannot be read, or the recorded actions are not those of this robot.
    """
    aligner = _Aligner(recording, robot, omissions)
    finder = ObservationFinder(robot, aligner.mapping.topics, [step for each in episodes for step in each.steps])
    found = finder.find(recording)
    for episode in episodes:
        steps = [aligner.align(next(found)) for _ in episode.steps]
        yield from _split(episode, steps, omissions)


def _split(
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


class _Aligner:
    """Decodes a step's messages, and says in words what keeps it from being used."""

    def __init__(self, recording: Recording, robot: RobotDescription, omissions: Omissions) -> None:
        self.mapping = ObservationMapping(robot)
        self._recording, self._robot, self._omissions = recording, robot, omissions
        self._watches = {short: RepeatWatch(robot.topics[short]) for short in self.mapping.topics}
        self._decoded: dict[str, tuple[RecordedMessage, object]] = {}

    def align(self, sources: StepSources) -> AlignedStep | None:
        """Return the aligned step; None, and count why, where it cannot be used."""
        control = sources.step.control
        try:
            executed = self._read_action(control.executed, "executed")
            observation = self._observe(sources)
            if executed is None:
                raise UserError("steps in which nothing was executed")
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
                f"{self._recording.place}: a step has {len(values)} {name} entries, and {self._robot.name} has "
                f"{len(names)} ({', '.join(names)}): set robot to the one that was recorded."
            )
        with np.errstate(over="ignore"):  # what no float32 holds is infinite, and refused below
            action = np.array(values, np.float32)
        return action if np.isfinite(action).all() else None

    def _observe(self, sources: StepSources) -> Observation:
        control, messages = sources.step.control, {}
        for short in self.mapping.topics:
            message = sources.found.get(short)
            if message is None:
                raise UserError(f"steps without a message of {self._robot.topics[short].name}")
            messages[short] = self._decode(short, message)
            self._check_fresh(short, message, control)
        state = self.mapping.read_state(messages).astype(np.float32)
        pictures = {name: picture[None] for name, picture in self.mapping.read_pictures(messages).items()}
        return Observation(pictures, state[None], (control.instruction,))

    def _decode(self, short: str, message: RecordedMessage) -> object:
        known = self._decoded.get(short)
        if known is None or known[0] is not message:
            self._check_type(short, message)
            known = self._decoded[short] = (message, self._recording.decode(message))
        return known[1]

    def _check_type(self, short: str, message: RecordedMessage) -> None:
        topic, found = self._robot.topics[short], message.channel.type_name
        if found != topic.type_name:
            raise RecordingError(
                f"{self._recording.place}: {topic.name} was recorded as {found[:100]!r}, and {self._robot.name} has "
                f"{topic.type_name}: set robot to the one that was recorded."
            )

    def _check_fresh(self, short: str, message: RecordedMessage, control: ControlStep) -> None:
        age_ns = 0 if control.observed else control.time_ns - message.received_ns
        repeated_ns = self._watches[short].note(message, self._decoded[short][1], control.time_ns)
        if max(age_ns, repeated_ns) > self._robot.topics[short].max_age_s * 1e9:
            raise UserError(f"steps whose message of {self._robot.topics[short].name} was stale")
