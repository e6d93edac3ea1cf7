"""Episodes with a sequence of goals in one scene: the next goal, and the progress of the sequence.

The first goal is the episode's own; the others are drawn from those that the scene allows. Each goal
has a different object and a different place, so that no goal undoes another.
"""

from dataclasses import replace

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop.layout import Layout, draw_layout, is_push_clear, list_goals

RISE = 4
"""Control steps for which the operator rises after a goal, so that it does not hit objects on its way."""
_STREAM = 1004  # far from task numbers, which seed the layout


def draw_chain(episode: Episode, randomise: bool, length: int) -> list[Layout]:
    """Draw an episode's goals in their order, each as a layout of the same scene.

    A scene that does not allow `length` goals is drawn again. With one goal, it is the scene of `draw_layout`.
    """
    if length == 1:
        return [draw_layout(episode, randomise)]
    attempt = 0
    while len(chain := _draw_goals(episode, draw_layout(episode, randomise, attempt), length, attempt)) < length:
        attempt += 1
    return chain


def _draw_goals(episode: Episode, own: Layout, length: int, attempt: int) -> list[Layout]:
    """Draw up to `length` goals of a scene. The target of the "execution" split jumps only during the first."""
    rest, chain = [replace(goal, displacement=None) for goal in list_goals(own)[1:]], [own]
    for number in np.random.default_rng([episode.seed, _STREAM, attempt]).permutation(len(rest)):
        goal = rest[number]
        things = [(each.family == "press", each.target) for each in chain]
        places = [each.goal for each in chain if each.goal >= 0]
        is_apart = (goal.family == "press", goal.target) not in things and goal.goal not in places
        if len(chain) < length and is_apart and (goal.family != "push" or is_push_clear(goal)):
            chain.append(goal)
    return chain


class GoalChains:
    """Goal sequences of n environments, and their progress.

    Attributes:
        length: goals of each chain.
        stage: int64 [n], goals reached before the present one.
        since: int64 [n], the control step at which the present goal began.
    """

    def __init__(self, num_envs: int, length: int) -> None:
        self.length = length
        self.stage, self.since = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._goals: list[list[Layout]] = [[] for _ in range(num_envs)]

    def begin(self, row: int, goals: list[Layout]) -> Layout:
        """Begin the first goal of a row, and return it."""
        self._goals[row], self.stage[row], self.since[row] = goals, 0, 0
        return goals[0]

    def park(self, row: int) -> None:
        """Clear the goals of a row."""
        self._goals[row], self.stage[row], self.since[row] = [], 0, 0

    def advance(self, row: int, clock: int) -> Layout:
        """Begin a row's next goal, and return it."""
        self.stage[row], self.since[row] = self.stage[row] + 1, clock
        return self.present(row)

    def present(self, row: int) -> Layout:
        """Return a row's present goal."""
        return self._goals[row][self.stage[row]]

    @property
    def is_last_goal(self) -> Array:
        """Return bool [n]: whether the present goal is the last one."""
        return self.stage == self.length - 1

    def overall_progress(self, progress: Array) -> Array:
        """Return the progress of the sequences, 0…1: goals reached, and the progress [n] of the present one."""
        return (self.stage + progress) / self.length

    def is_rising(self, clock: Array) -> Array:
        """Return bool [n]: whether the operator is still rising after a goal it has reached; clock [n]."""
        return (self.stage > 0) & (clock < self.since + RISE)

    def name_stage(self, row: int, failure: str) -> str:
        """Add to a failure the goal at which it happened."""
        return f"goal {self.stage[row] + 1} of {self.length}: {failure}" if failure and self.length > 1 else failure

    def save(self) -> dict[str, Array]:
        """Return copies of what `load` needs."""
        return {"stage": self.stage.copy(), "since": self.since.copy()}

    def load(self, state: dict[str, Array]) -> list[int]:
        """Restore what `save` returned, after all rows began; return the rows that are past their first goal."""
        self.stage[:], self.since[:] = state["stage"], state["since"]
        return [row for row in np.flatnonzero(self.stage).tolist() if self._goals[row]]
