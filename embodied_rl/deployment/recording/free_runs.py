"""Episodes of a robot that is asked for none: it drives until somebody judges what it did, or the recording ends."""

from dataclasses import dataclass, field, replace

from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.recording.recorded_episode import RecordedEpisode, RecordedStep


@dataclass
class FreeRuns:
    """Makes episodes of control steps outside of numbered ones.

    A run begins with the first step in which somebody drives, and ends with a label, with what a simulated robot
    says of its end, or where the bridge was started anew. What it holds afterwards belongs to none.

    Attributes:
        episodes: so far. steps: that were noted. outcomes: that were noted.
    """

    episodes: list[RecordedEpisode] = field(default_factory=list)
    steps: int = 0
    outcomes: int = 0
    _goes_on: bool = False
    _first: int = 0
    _last: int = 0
    _ended_ns: int = 0

    def note_step(self, step: RecordedStep) -> None:
        """Take a control step."""
        self.steps += 1
        control, number = step.control, step.control.step
        follows, self._last = number > self._last, number
        self._goes_on &= follows
        under_way = follows and bool(self.episodes) and control.time_ns < self._ended_ns  # when somebody judged
        if not (self._goes_on or under_way):
            if control.mode not in MOVING:
                return
            count = len(self.episodes)
            self.episodes.append(RecordedEpisode(count, count, count))
            self._goes_on, self._first = True, number
        self.episodes[-1].steps.append(replace(step, control=replace(control, step=number - self._first)))

    def end(self, label: str, time_ns: int) -> None:
        """Take a judgement, made at this time: it ends the run that goes on, or corrects that of the last one."""
        if self.episodes and (self._goes_on or label):
            self.episodes[-1].label = label
        if self._goes_on:
            self._goes_on, self._ended_ns = False, time_ns
