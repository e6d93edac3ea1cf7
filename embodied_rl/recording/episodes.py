"""Which episodes a recording holds: the bridge's control steps in their order, and how each episode ended.

An episode's label is the operator's, or what a simulated robot says of its end; without one, it ended by time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from embodied_rl.interfaces.errors import UserError
from embodied_rl.recording.mcap_reader import RecordedMessage, RecordingError
from embodied_rl.recording.recording_folder import Recording
from embodied_rl.recording.steps import STEPS, ControlStep, EpisodeOutcome, read_label, read_request
from embodied_rl.robots.description import RobotDescription
from embodied_rl.runs.untrusted_files import shorten

Omissions = Counter[str]
"""What is left out, in words → how often."""


@dataclass(frozen=True)
class RecordedStep:
    """A control step: `position` among all texts on the steps' topic, and when its text was recorded."""

    control: ControlStep
    position: int
    received_ns: int


@dataclass
class RecordedEpisode:
    """An episode as it was run.

    Attributes:
        index: of the recording's episodes, from 0. number: as the bridge counts them. seed: as it was asked for.
        steps: in their order. label: success, failure, abort, or nothing where the episode ended by time.
        ended: how many steps had been recorded when a simulated robot said that the episode had ended, and when it said
            so, by its clock; None: nobody did.
    """

    index: int
    number: int
    seed: int
    steps: list[RecordedStep] = field(default_factory=list)
    label: str = ""
    ended: tuple[int, int] | None = None

    def cut_after_end(self) -> int:
        """Leave out the steps that the bridge made before it heard of the end; return how many.

        The step in which the episode ends is over later than that, so it is recorded after it. A later one counts as
        late only if its own time says so, too: the order in which two topics arrive is not promised.
        """
        if self.ended is None:
            return 0
        count, ended_ns = self.ended
        after = range(count + 1, len(self.steps))
        kept = next((n for n in after if self.steps[n].control.time_ns > ended_ns), len(self.steps))
        cut = len(self.steps) - kept
        del self.steps[kept:]
        return cut

    @property
    def instruction(self) -> str:
        """Return the words of the task, the first that were said."""
        return next((step.control.instruction for step in self.steps if step.control.instruction), "")


def list_episodes(recording: Recording, robot: RobotDescription, omissions: Omissions) -> list[RecordedEpisode]:
    """Return the episodes of a recording; what cannot be understood is counted in `omissions`.

    Raises:
        RecordingError: a file cannot be read, or the recording has no control step in an episode.
    """
    finder = _EpisodeFinder(robot, omissions)
    for message in recording.read(finder.readers):
        try:
            finder.readers[message.channel.topic](recording.decode(message).data, message)
        except (UserError, AttributeError) as error:  # AttributeError: the topic has another type
            omissions[f"not understood: {shorten(error)}"] += 1
    for episode in finder.episodes:
        if cut := episode.cut_after_end():
            omissions["steps after an episode's end"] += cut
    if not finder.episodes:
        raise RecordingError(
            f"{recording.place} holds no episode: no control step of one was recorded on {STEPS}. Record while the "
            "bridge drives the robot."
        )
    return finder.episodes


class _EpisodeFinder:
    def __init__(self, robot: RobotDescription, omissions: Omissions) -> None:
        self.episodes: list[RecordedEpisode] = []
        self._omissions, self._operator = omissions, robot.operator
        self._seeds: dict[int, int] = {}
        self._latest: dict[int, RecordedEpisode] = {}
        self._position = -1
        topics = robot.operator
        named = {topics.reset: self._note_request, topics.outcome: self._note_outcome, topics.label: self._note_label}
        self.readers: dict[str, Callable[[str, RecordedMessage], None]] = {
            STEPS: self._note_step, **{name: reader for name, reader in named.items() if name},
        }  # fmt: skip

    def _note_step(self, text: str, message: RecordedMessage) -> None:
        self._position += 1
        control = ControlStep.from_json(text)
        if control.episode < 0:
            self._omissions["steps outside of an episode"] += 1
            return
        last = self.episodes[-1] if self.episodes else None
        if last is None or control.episode != last.number or control.step <= last.steps[-1].control.step:
            seed = self._seeds.get(control.episode, len(self.episodes))
            last = RecordedEpisode(len(self.episodes), control.episode, seed)
            self.episodes.append(last)
            self._latest[control.episode] = last
        last.steps.append(RecordedStep(control, self._position, message.received_ns))

    def _note_request(self, text: str, message: RecordedMessage) -> None:
        index, seed = read_request(text, self._operator.reset)
        self._seeds[index] = seed

    def _note_outcome(self, text: str, message: RecordedMessage) -> None:
        outcome = EpisodeOutcome.from_json(text, self._operator.outcome)
        ended = self._latest.get(outcome.index)
        if ended is None:
            self._omissions["outcomes of episodes that were not recorded"] += 1
            return
        ended.ended = ended.ended or (len(ended.steps), message.source_ns)
        ended.label = ended.label or outcome.label  # the operator knows better

    def _note_label(self, text: str, message: RecordedMessage) -> None:
        label = read_label(text, self._operator.label)
        if self.episodes:
            self.episodes[-1].label = label
        else:
            self._omissions["labels before the first episode"] += 1
