"""Which episodes a recording holds: the bridge's control steps in their order, and how each episode ended.

Without any control step of the bridge, the commands on the robot's command topics make them; see `commanded_steps`.

An episode's label is the operator's, from a control step or the topic of labels; else what a simulated robot says of
its end; without one, it ended by time. Where nobody asked for episodes, as with a robot that is reset by hand, labels
part them; see `free_runs`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from embodied_rl.deployment.recording.commanded_steps import CommandedSteps
from embodied_rl.deployment.recording.free_runs import FreeRuns
from embodied_rl.deployment.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.deployment.recording.recorded_episode import RecordedEpisode, RecordedStep
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.steps import (
    LONGEST_TEXT,
    STEPS,
    ControlStep,
    EpisodeOutcome,
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
"""What is left out, in words → how often."""


def list_episodes(
    recording: Recording, robot: RobotDescription, omissions: Omissions, instruction: str = ""
) -> list[RecordedEpisode]:
    """Return the episodes of a recording; what cannot be understood is counted in `omissions`.

    Steps that say no words of the task get `instruction`.

    Raises:
        RecordingError: a file cannot be read, or the recording has no control step in an episode.
    """
    bridged = next(iter(recording.read({STEPS})), None) is not None
    finder = _EpisodeFinder(recording, robot, omissions, bridged)
    for message in recording.read(finder.readers):
        try:
            finder.readers[message.channel.topic](message)
        except RecordingError:
            raise
        except UserError as error:
            omissions[f"not understood: {shorten(error)}"] += 1
    episodes = finder.choose_episodes()
    for episode in episodes:
        episode.add_instruction(instruction)
        if cut := episode.cut_after_end():
            omissions["steps after an episode's end"] += cut
    if not episodes:
        topics = " and ".join(topic.name for topic in robot.command_topics.values())
        cut = "".join(f" The end of {path.name} was cut off." for path in sorted(recording.cut_off))
        raise RecordingError(
            f"{recording.place} holds no episode: no control step in which somebody drove the robot was recorded on "
            f"{STEPS}, and no commands on {topics}.{cut} Record while somebody drives it."
        )
    return episodes


class _EpisodeFinder:
    """Takes the messages of a recording. `bridged`: it holds the bridge's control steps."""

    def __init__(self, recording: Recording, robot: RobotDescription, omissions: Omissions, bridged: bool) -> None:
        self._recording, self._robot = recording, robot
        self.episodes: list[RecordedEpisode] = []
        self._free = FreeRuns()
        self._omissions, self._operator = omissions, robot.operator
        self._seeds: dict[int, int] = {}
        self._latest: dict[int, RecordedEpisode] = {}
        self._position = -1
        topics = robot.operator
        named = {
            STEPS: self._note_step, topics.reset: self._note_request, topics.outcome: self._note_outcome,
            topics.label: self._note_label,
        }  # fmt: skip
        self._commanded = CommandedSteps(robot)
        if not bridged:
            named |= {topics.instruction: self._note_instruction}
            named |= {
                topic.name: partial(self._note_command, topic, CommandMapping(robot, recording.messages, name))
                for name, topic in robot.command_topics.items()
            }
        self.readers: dict[str, Callable[[RecordedMessage], None]] = {n: read for n, read in named.items() if n}

    def choose_episodes(self) -> list[RecordedEpisode]:
        """Return the numbered episodes; where there are none, what was driven outside of any."""
        self._note_free(self._commanded.finish())
        if self._commanded.lost:
            self._omissions["steps before each position had been commanded"] += self._commanded.lost
        if not self.episodes:
            return self._free.episodes
        for what, count in (
            ("steps outside of an episode", self._free.steps),
            ("outcomes of episodes that were not recorded", self._free.outcomes),
        ):
            if count:
                self._omissions[what] += count
        return self.episodes

    def _read_text(self, message: RecordedMessage) -> str:
        """Return the text of a message; raise `UserError` where it is none, whatever else it holds."""
        if (found := message.channel.type_name) != TEXT:
            raise StepError(f"{message.channel.topic} was recorded as {found[:100]}, and a text is {TEXT}")
        return self._recording.decode(message).data

    def _note_command(self, command: CommandTopic, mapping: CommandMapping, message: RecordedMessage) -> None:
        found = message.channel.type_name
        if found != command.type_name:
            raise RecordingError(
                f"{self._recording.place}: {command.name} was recorded as {found[:100]!r}, and {self._robot.name} has "
                f"{command.type_name}: set robot to the one that was recorded."
            )
        decoded = mapping.decode(self._recording.decode(message))
        self._note_free(self._commanded.note(decoded, message.received_ns))

    def _note_free(self, steps: Iterable[RecordedStep]) -> None:
        for step in steps:
            self._free.note_step(step)

    def _note_instruction(self, message: RecordedMessage) -> None:
        words = self._read_text(message)[:LONGEST_TEXT]
        self._note_free(self._commanded.pass_time(message.received_ns))
        self._commanded.instruction = words

    def _note_step(self, message: RecordedMessage) -> None:
        self._position += 1
        control = ControlStep.from_json(self._read_text(message))
        if control.episode < 0:
            self._free.note_step(RecordedStep(control, self._position, message.received_ns))
            if control.label:
                self._free.end(control.label, control.time_ns)
            return
        last = self.episodes[-1] if self.episodes else None
        if last is None or last.is_over_before(control):
            seed = self._seeds.get(control.episode, len(self.episodes))
            last = RecordedEpisode(len(self.episodes), control.episode, seed)
            self.episodes.append(last)
            self._latest[control.episode] = last
        last.steps.append(RecordedStep(control, self._position, message.received_ns))
        if control.label:
            last.judge(control)

    def _note_request(self, message: RecordedMessage) -> None:
        index, seed = read_request(self._read_text(message), self._operator.reset)
        last = self.episodes[-1] if self.episodes and index not in self._seeds else None
        if last is not None and last.number == index and (last.ended is None or message.source_ns < last.ended[1]):
            last.seed = seed  # another publisher's: the steps, and even the end, may be recorded before
        self._seeds[index] = seed

    def _note_outcome(self, message: RecordedMessage) -> None:
        outcome = EpisodeOutcome.from_json(self._read_text(message), self._operator.outcome)
        ended = self._latest.get(outcome.index)
        if ended is None:
            self._free.outcomes += 1
            self._note_free(self._commanded.end_episode(message.received_ns))
            self._free.end(outcome.label, message.received_ns)
            return
        ended.ended = ended.ended or (len(ended.steps), message.source_ns)
        ended.label = ended.label or outcome.label  # the operator knows better

    def _note_label(self, message: RecordedMessage) -> None:
        label = read_label(self._read_text(message), self._operator.label)
        self._note_free(self._commanded.end_episode(message.received_ns))
        self._free.end(label, message.received_ns)
        if self.episodes:
            self.episodes[-1].label = label
        elif not self._free.episodes:
            self._omissions["labels before the first episode"] += 1
