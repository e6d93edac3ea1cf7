"""From a recording to episodes that others learn from: what it holds, and a LeRobotDataset of it.

A dataset has the columns that `collect format=lerobot` writes, and more: what was proposed before the safety filter,
and whose weights did. Reward is 1 at the last step of a success and 0 elsewhere.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.deployment.recording.alignment import EpisodePart, align_recording
from embodied_rl.deployment.recording.episodes import Omissions, list_episodes
from embodied_rl.deployment.recording.recorded_episode import RecordedEpisode
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.robot_file import read_robot
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Source, Task

NO_WORDS = "unnamed"
"""The name of a task of which no instruction was recorded."""


@dataclass
class Conversion:
    """A recording that is converted.

    Args:
        place: its folder. messages: the types of messages.
        robot: the description; None takes the one in the folder.
        aborted: whether episodes that the operator aborted are kept, as if time had ended them.
        instruction: words of the task of steps that say none.

    Attributes:
        robot: the description. episodes: those that are converted. omissions: what is left out, in words, so far.
        kept: control steps that were converted, by who decided them.

    Raises:
        RecordingError: there is no recording, it is damaged, or it holds no episode.
        UserError: nobody says what the robot is. Unavailable: the extra ros2 is missing.
    """

    place: Path
    messages: Messages
    robot: RobotDescription
    episodes: list[RecordedEpisode]
    omissions: Omissions = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def open(
        place: Path, messages: Messages, robot: RobotDescription | None, aborted: bool = False, instruction: str = ""
    ) -> "Conversion":
        """See the class."""
        recording, omissions = Recording(place, messages), Counter[str]()
        known = robot or (read_robot(place, messages) if place.is_dir() else None)
        if known is None:
            raise UserError(f"{place} does not say which robot was recorded: set robot=<name or yaml>.")
        listed = list_episodes(recording, known, omissions, instruction)
        kept = [episode for episode in listed if aborted or episode.label != "abort"]
        if len(kept) < len(listed):
            omissions["episodes that the operator aborted"] += len(listed) - len(kept)
        for path in sorted(recording.cut_off):
            omissions[f"the end of {path.name}, which was cut off"] += 1
        return Conversion(place, messages, known, kept, omissions)

    @property
    def steps(self) -> int:
        """Return how many control steps were recorded of these episodes."""
        return sum(len(episode.steps) for episode in self.episodes)

    def make_spec(self) -> SimulatorSpec:
        """Return what is recorded, as a simulator would say it; tasks are the instructions."""
        body = self.robot.body
        words = dict.fromkeys(episode.instruction or NO_WORDS for episode in self.episodes)
        return SimulatorSpec(
            cameras=tuple(Camera(name, *size) for name, size in body.cameras.items()),
            state_names=body.state_names,
            action_names=body.action_names,
            action_low=body.action_low,
            action_high=body.action_high,
            control_hz=body.control_hz,
            horizon=max((len(episode.steps) for episode in self.episodes), default=1),
            tasks=tuple(Task(name, name) for name in words),
        )

    def read_parts(self) -> Iterator[EpisodePart]:
        """Yield the aligned parts of the episodes; see `align_recording`."""
        recording = Recording(self.place, self.messages)
        for part in align_recording(recording, self.robot, self.episodes, self.omissions):
            self.kept.update(step.source.name.lower() for step in part.steps)
            yield part

    def list_lines(self) -> list[str]:
        """Return what was kept and what was left out, for people."""
        by = ", ".join(f"{many} by {source}" for source, many in sorted(self.kept.items()))
        lines = [f"{self.kept.total()} of {self.steps} control steps kept" + (f": {by}" if by else "")]
        return lines + [f"left out: {what} ({many})" for what, many in sorted(self.omissions.items())]


def describe_part(part: EpisodePart) -> dict[str, Any]:
    """Return a part's entries of the index, as `collect` writes one for each episode."""
    sources: Sequence[Source] = [step.source for step in part.steps]
    return {
        "recorded_episode": part.episode.index, "number": part.episode.number, "seed": part.episode.seed,
        "instruction": part.episode.instruction, "label": part.episode.label, "ends": part.ends,
        "first_step": part.steps[0].number, "steps": len(part.steps), "success": part.label == "success",
        "by": dict(Counter(source.name.lower() for source in sources)),
    }  # fmt: skip
