"""An optional capability of simulators: the progress of all goals that a scene allows, not only the episode's own.

One episode then gives examples for many instructions: "pick up the red cube" while the blue one is put on a plate.
Imports the standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Relation = Literal["own", "object", "place", "task"]
"""Relation of a goal to the episode's: the same; the same task with another object; with the same object at another
place; or another task."""


@dataclass(frozen=True)
class GoalProgress:
    """The progress of one goal of a scene.

    Attributes:
        instruction: the goal as text, different for each goal of a scene.
        relation: to the goal of the episode.
        progress: 0…1 since the episode began, 1 where the goal holds; for the own goal `Observation.progress`.
        done: whether the goal holds now.
    """

    instruction: str
    relation: Relation
    progress: float
    done: bool


class GoalWatch(Protocol):
    """The progress of all goals of n environments after the last `reset` or `step`."""

    def current(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of each of the n environments, the episode's own first; none for parked environments.

        The goals of an episode and their order stay the same as long as it runs.
        """
        ...

    def ended(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of the episodes that ended in the last step, in the order of `StepResult.ended`."""
        ...


@runtime_checkable
class GoalWatched(Protocol):
    """A simulator that can report the progress of all goals."""

    def watch_goals(self) -> GoalWatch:
        """Monitor all goals from the next `reset` on. Otherwise the simulator does not compute them."""
        ...
