"""The contract of a logger: where a run's metrics, texts and films go in addition to its own folder.

A distribution offers loggers by an entry point of the group `embodied_rl.loggers`; `logger=<name>` chooses one. Metrics
are always written to `metrics.jsonl` as well, which reports and `resume` read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class NoKeys:
    """The configuration of a logger without keys."""


@dataclass(frozen=True)
class LoggedRun:
    """What a logger is told about its run.

    Attributes:
        folder: of the run. experiment: its name. settings: the whole configuration as plain values.
        resumed: the last iteration that is kept if the run was resumed; None for a new run.
    """

    folder: Path
    experiment: str
    settings: Mapping[str, Any]
    resumed: int | None = None


class Logger:
    """A logger that drops everything; others override what they record. Created on rank 0 alone.

    Args:
        config: an instance of `Config`, the keys of `logger` in the configuration.
        run: the run that is logged.
    """

    Config: ClassVar[type] = NoKeys

    def __init__(self, config: Any, run: LoggedRun) -> None:
        pass

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the finite metrics of one iteration, such as "rollout/success"; steps rise, also after a resume."""

    def write_text(self, step: int, text: str) -> None:
        """Record one line that is shown to the user, such as that a simulator was replaced."""

    def write_film(self, step: int, path: Path) -> None:
        """Record a film of episodes, an MP4 file."""

    def close(self, success: bool) -> None:
        """Finish; `success` is False if the run ends with an exception."""
