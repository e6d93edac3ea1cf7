"""Keeps what the first camera of a simulated robot saw, for a film."""

from collections import deque
from dataclasses import dataclass, field

from embodied_rl.interfaces.servo import RobotOutcome
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.simulated_robot.node import Watcher

MOST = 16
"""Episodes that are kept, the last ones."""
LONGEST = 2000
"""Pictures of an episode that are kept, the first ones."""


@dataclass
class FilmedEpisode:
    """The pictures of one episode, uint8 [height, width, 3], one a control step."""

    episode: Episode
    instruction: str
    pictures: list[Array] = field(default_factory=list)
    success: bool = False


class FilmWatcher(Watcher):
    """Keeps the pictures of the last episodes that ended.

    Attributes:
        episodes: those that ended.
    """

    def __init__(self) -> None:
        self.episodes: deque[FilmedEpisode] = deque(maxlen=MOST)
        self._running: FilmedEpisode | None = None

    def on_begin(self, episode: Episode, instruction: str) -> None:
        self._running = FilmedEpisode(episode, instruction)

    def on_picture(self, pictures: dict[str, Array]) -> None:
        if self._running is not None and len(self._running.pictures) < LONGEST:
            self._running.pictures.append(next(iter(pictures.values())))

    def on_end(self, episode: Episode, outcome: RobotOutcome) -> None:
        if self._running is not None:
            self._running.success = outcome.success
            self.episodes.append(self._running)
        self._running = None
