"""Progress of every goal of the scenes, for all environments at once.

Goals and their progress are those of `goals.py` and `progress.py`, with a row for each pair of environment and goal.
"""

from collections.abc import Sequence

import numpy as np

from embodied_rl.interfaces.goals import GoalProgress, Relation
from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.bodies import Bodies
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import Layout, list_goals
from embodied_rl_sims.tabletop.observation import Truth
from embodied_rl_sims.tabletop.progress import ProgressMeter

MAX_GOALS = 9
"""Maximum number of goals of a scene: pick each of three objects, and bring each to both of two fixtures."""


class AllGoals:
    """The goals of n environments; implements `embodied_rl.interfaces.goals.GoalWatch`.

    Attributes:
        progress: n * `MAX_GOALS` rows; the rows of an environment are adjacent.
    """

    def __init__(self, num_envs: int) -> None:
        self.progress = ProgressMeter(num_envs * MAX_GOALS)
        self._goals = Goals(num_envs * MAX_GOALS)
        self._owner = np.repeat(np.arange(num_envs), MAX_GOALS)
        self._named: list[list[tuple[str, Relation]]] = [[] for _ in range(num_envs)]
        self._value, self._done = np.zeros((num_envs, MAX_GOALS)), np.zeros((num_envs, MAX_GOALS), bool)
        self._ended: list[list[GoalProgress]] = []
        self._just_ended: list[list[GoalProgress]] = []

    def begin(self, row: int, layout: Layout, fixtures: Array) -> None:
        """Set the goals of an environment to those of an episode's scene; fixtures [6, 2] metres."""
        allowed = list_goals(layout)
        self._named[row] = [(goal.instruction, _relate(goal, layout)) for goal in allowed]
        for pair, goal in enumerate(allowed, row * MAX_GOALS):
            self._goals.begin(pair, goal, fixtures)
            self.progress.begin(pair, goal.family)

    def park(self, row: int) -> None:
        """Clear the goals of an environment."""
        self._named[row] = []

    def move(self, row: int, fixtures: Array) -> None:
        """Update the goals' positions after fixtures have moved."""
        for pair in range(row * MAX_GOALS, row * MAX_GOALS + len(self._named[row])):
            self._goals.move(pair, fixtures)

    def measure(self, bodies: Bodies, ended: Array | None) -> None:
        """Judge all goals by the bodies' last `gather`.

        Args:
            bodies: of all environments.
            ended: rows that have just ended their episode and have not begun the next one; None at the end of a step or
                reset.
        """
        objects, caps, width = (values[self._owner] for values in (bodies.objects, bodies.caps, bodies.width))
        target = self._goals.targets(objects, caps)
        tool = bodies.tool[self._owner]
        truth = Truth(tool, tool, width, target, self._goals.places(target), objects)
        done, _ = self._goals.judge(objects, caps, width)
        self._value, self._done = (v.reshape(-1, MAX_GOALS) for v in (self.progress.measure(truth, done), done))
        if ended is not None:
            self._just_ended = [self._describe(row) for row in ended.tolist()]
        else:
            self._ended, self._just_ended = self._just_ended, []

    def current(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of all environments; see `GoalWatch`."""
        return [self._describe(row) for row in range(len(self._named))]

    def ended(self) -> Sequence[Sequence[GoalProgress]]:
        """Return the goals of the episodes that ended in the last step; see `GoalWatch`."""
        return self._ended

    def _describe(self, row: int) -> list[GoalProgress]:
        values = zip(self._named[row], self._value[row].tolist(), self._done[row].tolist(), strict=False)
        return [GoalProgress(*named, value, done) for named, value, done in values]


def _relate(goal: Layout, own: Layout) -> Relation:
    if goal.family != own.family:
        return "task"
    if goal.target != own.target:
        return "object"
    return "own" if goal.goal == own.goal else "place"
