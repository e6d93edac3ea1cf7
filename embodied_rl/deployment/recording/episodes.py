"""Find the episodes of a recording.

Control steps come from the bridge or, in recordings without the bridge, from commands (`commanded_steps`). The label of
an episode is the operator's, or else a simulated robot's outcome. Without episode requests, for example if the robot is
reset by hand, labels separate episodes (`ImplicitEpisodes`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.recording.commanded_steps import CommandedSteps
from embodied_rl.deployment.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.steps import (
    MAX_TEXT,
    STEPS,
    ControlStep,
    EpisodeOutcome,
    RecordedStep,
    StepError,
    read_label,
    read_request,
)
from embodied_rl.deployment.robots.commands import CommandMapping
from embodied_rl.deployment.robots.description import CommandTopic, RobotDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

TEXT = "std_msgs/msg/String"
Omissions = Counter[str]
"""Reason for leaving something out → how often."""


@dataclass
class RecordedEpisode:
    """An episode.

    Attributes:
        index: in the recording, from 0. number: of the bridge. seed: as requested.
        steps: control steps. label: success, failure, abort, or empty if the time limit ended the episode.
        ended: number of steps recorded before the episode ended, and the time of the end: of a simulated robot's
            outcome, by its clock, or of the step with the operator's label; None without either.
        labelled: whether the operator's label ended it.
    """

    index: int
    number: int
    seed: int
    steps: list[RecordedStep] = field(default_factory=list)
    label: str = ""
    ended: tuple[int, int] | None = None
    labelled: bool = False

    def is_over_before(self, control: ControlStep) -> bool:
        """Return whether a step belongs to another episode: by its numbers, or because it moves after a label."""
        numbered = control.episode != self.number or control.step <= self.steps[-1].control.step
        return numbered or (self.labelled and control.mode in MOVING)

    def set_label(self, control: ControlStep) -> None:
        """Set the operator's label of the last step. The first label ends the episode, later ones correct it."""
        self.label, self.labelled = control.label, True
        self.ended = self.ended or (len(self.steps) - 1, control.time_ns)

    def cut_after_end(self) -> int:
        """Remove the steps that the bridge made before it received the end of the episode; return their number.

        The step in which the episode ends is recorded after the end. Later steps are removed only if their own time is
        after the end, too, because the order between topics is undefined.
        """
        if self.ended is None:
            return 0
        count, ended_ns = self.ended
        after = range(count + 1, len(self.steps))
        kept = next((n for n in after if self.steps[n].control.time_ns > ended_ns), len(self.steps))
        cut = len(self.steps) - kept
        del self.steps[kept:]
        return cut

    def add_instruction(self, instruction: str) -> None:
        """Set the instruction of steps that have none."""
        for place, step in enumerate(self.steps):
            if instruction and not step.control.instruction:
                self.steps[place] = replace(step, control=replace(step.control, instruction=instruction))

    @property
    def instruction(self) -> str:
        """Return the first instruction."""
        return next((step.control.instruction for step in self.steps if step.control.instruction), "")


@dataclass
class ImplicitEpisodes:
    """Episodes of a recording without episode requests; a label or the end of the recording ends one.

    An episode begins with the first step in which the robot is driven. It ends with a label, with an outcome of a
    simulated robot, or when the bridge was restarted. Steps in which the robot holds afterwards belong to no episode.

    Attributes:
        episodes: so far. steps, outcomes: number of those that were added.
    """

    episodes: list[RecordedEpisode] = field(default_factory=list)
    steps: int = 0
    outcomes: int = 0
    _active: bool = False
    _first: int = 0
    _last: int = 0
    _ended_ns: int = 0

    def add_step(self, step: RecordedStep) -> None:
        """Add a control step."""
        self.steps += 1
        control, number = step.control, step.control.step
        follows, self._last = number > self._last, number
        self._active &= follows
        before_end = follows and bool(self.episodes) and control.time_ns < self._ended_ns
        if not (self._active or before_end):
            if control.mode not in MOVING:
                return
            count = len(self.episodes)
            self.episodes.append(RecordedEpisode(count, count, count))
            self._active, self._first = True, number
        self.episodes[-1].steps.append(replace(step, control=replace(control, step=number - self._first)))

    def end(self, label: str, time_ns: int) -> None:
        """Set a label given at a time: it ends the active episode, or corrects the label of the last one."""
        if self.episodes and (self._active or label):
            self.episodes[-1].label = label
        if self._active:
            self._active, self._ended_ns = False, time_ns


def list_episodes(
    recording: Recording, robot: RobotDescription, omissions: Omissions, instruction: str = ""
) -> list[RecordedEpisode]:
    """Return the episodes of a recording.

    Args:
        omissions: counts invalid messages and steps outside of episodes.
        instruction: of steps without one.

    Raises:
        RecordingError: a file cannot be read, or the recording has no episode.
    """
    bridged = next(iter(recording.read({STEPS})), None) is not None
    finder = _EpisodeFinder(recording, robot, omissions, bridged)
    for message in recording.read(finder.readers):
        try:
            finder.readers[message.channel.topic](message)
        except RecordingError:
            raise
        except UserError as error:
            omissions[f"invalid: {shorten(error)}"] += 1
    episodes = finder.choose_episodes()
    for episode in episodes:
        episode.add_instruction(instruction)
        if cut := episode.cut_after_end():
            omissions["steps after an episode's end"] += cut
    if not episodes:
        topics = " and ".join(topic.name for topic in robot.command_topics.values())
        cut = "".join(f" The end of {path.name} was cut off." for path in sorted(recording.cut_off))
        raise RecordingError(
            f"{recording.place} holds no episode: it has no control steps on {STEPS} in which the robot was driven, "
            f"and no commands on {topics}.{cut} Record while the robot is driven.",
            code="recording-without-episodes",
        )
    return episodes


class _EpisodeFinder:
    """Builds episodes from messages. `bridged`: the recording has control steps of the bridge."""

    def __init__(self, recording: Recording, robot: RobotDescription, omissions: Omissions, bridged: bool) -> None:
        self._recording, self._robot = recording, robot
        self.episodes: list[RecordedEpisode] = []
        self._implicit = ImplicitEpisodes()
        self._omissions, self._operator = omissions, robot.operator
        self._seeds: dict[int, int] = {}
        self._numbered: dict[int, list[RecordedEpisode]] = {}
        self._position = -1
        topics = robot.operator
        named = {
            STEPS: self._read_step, topics.reset: self._read_request, topics.outcome: self._read_outcome,
            topics.label: self._read_label,
        }  # fmt: skip
        self._commanded = CommandedSteps(robot)
        if not bridged:
            named |= {topics.instruction: self._read_instruction}
            named |= {
                topic.name: partial(self._read_command, topic, CommandMapping(robot, recording.messages, name))
                for name, topic in robot.command_topics.items()
            }
        self.readers: dict[str, Callable[[RecordedMessage], None]] = {n: read for n, read in named.items() if n}

    def choose_episodes(self) -> list[RecordedEpisode]:
        """Return the requested episodes or, if there are none, the implicit ones."""
        self._add_implicit_steps(self._commanded.finish())
        if self._commanded.lost:
            self._omissions["steps before each position had been commanded"] += self._commanded.lost
        if not self.episodes:
            return self._implicit.episodes
        for what, count in (
            ("steps outside of an episode", self._implicit.steps),
            ("outcomes of episodes that were not recorded", self._implicit.outcomes),
        ):
            if count:
                self._omissions[what] += count
        return self.episodes

    def _read_text(self, message: RecordedMessage) -> str:
        """Return the text of a message; raise `UserError` if its type or its bytes are wrong."""
        if (found := message.channel.type_name) != TEXT:
            raise StepError(
                f"{message.channel.topic} was recorded as {found[:100]}, not as {TEXT}", code="step-invalid"
            )
        return self._recording.decode(message).data

    def _read_command(self, command: CommandTopic, mapping: CommandMapping, message: RecordedMessage) -> None:
        found = message.channel.type_name
        if found != command.type_name:
            raise RecordingError(
                f"{self._recording.place}: {command.name} was recorded as {found[:100]!r}, but {self._robot.name} has "
                f"{command.type_name}: set robot to the recorded one.",
                code="recording-of-another-robot",
            )
        decoded = mapping.decode(self._recording.decode(message))
        self._add_implicit_steps(self._commanded.add_command(decoded, message.received_ns))

    def _add_implicit_steps(self, steps: Iterable[RecordedStep]) -> None:
        for step in steps:
            self._implicit.add_step(step)

    def _read_instruction(self, message: RecordedMessage) -> None:
        words = self._read_text(message)[:MAX_TEXT]
        self._add_implicit_steps(self._commanded.pass_time(message.received_ns))
        self._commanded.instruction = words

    def _read_step(self, message: RecordedMessage) -> None:
        self._position += 1
        control = ControlStep.from_json(self._read_text(message))
        if control.episode < 0:
            self._implicit.add_step(RecordedStep(control, self._position, message.received_ns))
            if control.label:
                self._implicit.end(control.label, control.time_ns)
            return
        last = self.episodes[-1] if self.episodes else None
        if last is None or last.is_over_before(control):
            seed = self._seeds.get(control.episode, len(self.episodes))
            last = RecordedEpisode(len(self.episodes), control.episode, seed)
            self.episodes.append(last)
            self._numbered.setdefault(control.episode, []).append(last)
        last.steps.append(RecordedStep(control, self._position, message.received_ns))
        if control.label:
            last.set_label(control)

    def _read_request(self, message: RecordedMessage) -> None:
        index, seed = read_request(self._read_text(message), self._operator.reset)
        for episode in self._numbered.get(index, ()):  # even its end, and later episodes, may be recorded before
            if message.source_ns < episode.ended[1] if episode.ended else index not in self._seeds:
                episode.seed = seed
                break
        self._seeds[index] = seed

    def _read_outcome(self, message: RecordedMessage) -> None:
        outcome = EpisodeOutcome.from_json(self._read_text(message), self._operator.outcome)
        numbered = self._numbered.get(outcome.index)
        if not numbered:
            self._implicit.outcomes += 1
            self._add_implicit_steps(self._commanded.end_episode(message.received_ns))
            self._implicit.end(outcome.label, message.received_ns)
            return
        ended = numbered[-1]
        ended.ended = ended.ended or (len(ended.steps), message.source_ns)
        ended.label = ended.label or outcome.label  # the operator's label has priority

    def _read_label(self, message: RecordedMessage) -> None:
        label = read_label(self._read_text(message), self._operator.label)
        self._add_implicit_steps(self._commanded.end_episode(message.received_ns))
        self._implicit.end(label, message.received_ns)
        if self.episodes:
            self.episodes[-1].label = label
        elif not self._implicit.episodes:
            self._omissions["labels before the first episode"] += 1
