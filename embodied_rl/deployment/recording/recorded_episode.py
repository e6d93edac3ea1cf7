"""An episode of a recording: the bridge's control steps in their order, and how it ended."""

from dataclasses import dataclass, field, replace

from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.recording.steps import ControlStep


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
        ended: how many steps had been recorded when the episode ended, and when that was: as a simulated robot says, by
            its clock, or in the step in which the operator judged it; None: neither.
        judged: the operator ended it.
    """

    index: int
    number: int
    seed: int
    steps: list[RecordedStep] = field(default_factory=list)
    label: str = ""
    ended: tuple[int, int] | None = None
    judged: bool = False

    def is_over_before(self, control: ControlStep) -> bool:
        """Return whether a step belongs to another episode: it is numbered so, or somebody drives after a judgement."""
        numbered = control.episode != self.number or control.step <= self.steps[-1].control.step
        return numbered or (self.judged and control.mode in MOVING)

    def judge(self, control: ControlStep) -> None:
        """Take the operator's label of the last step; the first one ends the episode, later ones correct it."""
        self.label, self.judged = control.label, True
        self.ended = self.ended or (len(self.steps) - 1, control.time_ns)

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

    def add_instruction(self, words: str) -> None:
        """Give these words of the task to the steps that have none."""
        for place, step in enumerate(self.steps):
            if words and not step.control.instruction:
                self.steps[place] = replace(step, control=replace(step.control, instruction=words))

    @property
    def instruction(self) -> str:
        """Return the words of the task, the first that were said."""
        return next((step.control.instruction for step in self.steps if step.control.instruction), "")
