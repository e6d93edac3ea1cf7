"""An optional capability of simulators: they tell how far each goal has come that a scene allows, not only the own one.

An episode is then an example of many instructions, each with its truth: "pick up the red cube" while the blue one is
put on a plate. The standard library alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Relation = Literal["own", "object", "place", "task"]
"""Of a goal to the one that the robot was told: the same; the same task with another object; with the same object at
another place; or another task."""


@dataclass(frozen=True)
class GoalProgress:
    """How far one goal of a scene has come.

    Attributes:
        instruction: the goal in words; the goals of a scene differ in them.
        relation: to the goal of the episode.
        progress: 0…1 since the episode began, 1 where the goal holds; for the own goal `Observation.progress`.
        done: whether the goal holds now.
    """

    instruction: str
    relation: Relation
    progress: float
    done: bool


class GoalWatch(Protocol):
    """Tells the progress of all goals of n environments, as of the last `reset` or `step`."""

    def current(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of each of the n environments, the own one first; none where an environment is parked.

        The goals of an episode and their order stay the same as long as it runs.
        """
        ...

    def ended(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of the episodes that ended in the last step, in the order of `StepResult.ended`."""
        ...


@runtime_checkable
class GoalWatched(Protocol):
    """A simulator that can tell the progress of all goals."""

    def watch_goals(self) -> GoalWatch:
        """Watch all goals from the next `reset` on. Without a watch the simulator spends nothing on them."""
        ...
