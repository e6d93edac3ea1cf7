"""Convert a recording to episodes and to a LeRobotDataset.

The dataset has the columns of `collect format=lerobot`, the action proposed before the safety filter, and the version
of the policy's weights. Reward is 1 at the last step of a success and 0 elsewhere.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.deployment.recording.alignment import EpisodePart, align_recording
from embodied_rl.deployment.recording.episodes import Omissions, RecordedEpisode, list_episodes
from embodied_rl.deployment.recording.recording_folder import Recording, read_description
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Source, Task

UNNAMED_TASK = "unnamed"
"""Name of a task without a recorded instruction."""


@dataclass
class Conversion:
    """A recording that is converted; see `open`.

    Attributes:
        episodes: those that are converted. omissions: number of things left out so far, by reason.
        kept: number of converted control steps, by source.
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
        """Open a recording.

        Args:
            robot: its description; by default the one in the folder.
            aborted: whether to keep episodes that the operator aborted, as if the time limit had ended them.
            instruction: of steps without one.

        Raises:
            RecordingError: the recording is missing, damaged, or has no episode.
            UserError: the robot is unknown. Unavailable: a package is missing.
        """
        recording, omissions = Recording(place, messages), Counter[str]()
        known = robot or (read_description(place, messages) if place.is_dir() else None)
        if known is None:
            raise UserError(f"{place} has no description of its robot: set robot=<name or yaml>.", code="robot-missing")
        listed = list_episodes(recording, known, omissions, instruction)
        kept = [episode for episode in listed if aborted or episode.label != "abort"]
        if len(kept) < len(listed):
            omissions["episodes that the operator aborted"] += len(listed) - len(kept)
        for path in sorted(recording.cut_off):
            omissions[f"the end of {path.name}, which was cut off"] += 1
        return Conversion(place, messages, known, kept, omissions)

    @property
    def steps(self) -> int:
        """Return the number of recorded control steps of these episodes."""
        return sum(len(episode.steps) for episode in self.episodes)

    def make_spec(self) -> SimulatorSpec:
        """Return the specification of the recorded robot; tasks are the instructions."""
        body = self.robot.body
        words = dict.fromkeys(episode.instruction or UNNAMED_TASK for episode in self.episodes)
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
        """Return what was kept and left out, as lines of text."""
        by = ", ".join(f"{many} by {source}" for source, many in sorted(self.kept.items()))
        lines = [f"{self.kept.total()} of {self.steps} control steps kept" + (f": {by}" if by else "")]
        return lines + [f"left out: {what} ({many})" for what, many in sorted(self.omissions.items())]


def describe_part(part: EpisodePart) -> dict[str, Any]:
    """Return a part's entry of the index."""
    sources: Sequence[Source] = [step.source for step in part.steps]
    return {
        "recorded_episode": part.episode.index, "number": part.episode.number, "seed": part.episode.seed,
        "instruction": part.episode.instruction, "label": part.episode.label, "ends": part.ends,
        "first_step": part.steps[0].number, "steps": len(part.steps), "success": part.label == "success",
        "by": dict(Counter(source.name.lower() for source in sources)),
    }  # fmt: skip
