"""Episodes of a recording: their control steps, and how they ended."""

from dataclasses import dataclass, field, replace

from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.recording.steps import ControlStep


@dataclass(frozen=True)
class RecordedStep:
    """A control step: its index among all messages of the steps' topic, and the time at which it was recorded."""

    control: ControlStep
    position: int
    received_ns: int


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
