"""Late starts: episodes that begin in mid-episode, near the end of an earlier failure.

Starts close to the goal, or to where an episode goes wrong, give sparse rewards sooner (reverse curricula, Florensa et
al. 2017, arXiv:1707.05300). A state in mid-episode is described by the seed of its episode and the actions executed so
far, which the simulator executes again (`Episode.history`): a few hundred bytes, exact wherever equal seeds and actions
give equal bits. In groups all episodes begin in the same state, so they are compared from there on, as in VinePPO
(arXiv:2410.01679).

An environment remembers the last failure of an episode of its own that began at its beginning, until an episode that
began late from it fails, too: what nothing leads out of is not repeated. A group draws from the failures of its
environments. So starts depend neither on timing nor on the number of ranks and simulators. Left out: a choice of starts
by their rate of success (Florensa), which takes several episodes from each; and starts from successes.

Shapes: N environments, n of a call, D decisions of the longest episode, H executed actions, A action dimensions.
"""

from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec


@dataclass(frozen=True)
class LateStartSettings:
    """The settings of late starts.

    Attributes:
        share: of the episodes, or groups, that begin late where a failure is known.
        decisions: number of decisions before the end of the failure.
    """

    share: float
    decisions: int


class LateStarts:
    """Remembers the actions of running episodes and of the last failures, and chooses late starts.

    Args:
        settings: how many episodes begin late, and where.
        spec: of the simulator.
        envs: N.
        executed: H.
        group_size: adjacent environments whose episodes start alike.

    Raises:
        UserError: no episode has so many decisions.
    """

    def __init__(
        self, settings: LateStartSettings, spec: SimulatorSpec, envs: int, executed: int, group_size: int
    ) -> None:
        longest = -(-spec.horizon // executed)
        if settings.decisions >= longest:
            message = (
                f"train.late_decisions={settings.decisions} must be below {longest}, the decisions of the longest "
                f"episode: {spec.horizon} control steps, {executed} to a decision."
            )
            raise UserError(message, code="late-starts-too-early")
        self._settings, self._group_size = settings, group_size
        shape = (envs, longest, executed, spec.action_dim)
        self._actions, self._length, self._replayed = np.zeros(shape, np.float32), *np.zeros((2, envs), np.int64)
        self._failed, self._until = np.zeros(shape, np.float32), np.zeros(envs, np.int64)
        self._task, self._seed = np.zeros((2, envs), np.int64)

    def choose(self, column: int, episode: Episode, draw: int) -> Episode:
        """Return the episode as it begins in an environment, late or not; `draw` is of its group, in [0, 2^61)."""
        first = column // self._group_size * self._group_size
        known = first + np.flatnonzero(self._until[first : first + self._group_size])
        if not len(known) or (draw >> 8) * 2.0**-53 >= self._settings.share:
            return episode
        chosen = int(known[draw % len(known)])
        history = self._failed[chosen, : self._until[chosen]].copy()
        return replace(episode, task=int(self._task[chosen]), seed=int(self._seed[chosen]), history=history)

    def begin(self, column: int, episode: Episode) -> None:
        """Note that an environment begins an episode."""
        history = self._actions[column, :0] if episode.history is None else episode.history
        self._length[column] = self._replayed[column] = len(history)
        self._actions[column, : len(history)] = history

    def restart(self) -> None:
        """Note that the running episodes begin again."""
        self._length[:] = self._replayed

    def add(self, columns: Array, executed: Array) -> None:
        """Add the chunks that environments executed, float32 [n, H, A]."""
        self._actions[columns, self._length[columns]] = executed
        self._length[columns] += 1

    def end(self, column: int, episode: Episode, success: bool) -> None:
        """Note that an environment's episode ended, after its last chunk; remember or forget a failure."""
        until = int(self._length[column]) - self._settings.decisions
        if success:
            return
        if episode.history is not None:
            self._until[column] *= episode.seed != self._seed[column]
        elif until > 0:
            self._failed[column], self._until[column] = self._actions[column], until
            self._task[column], self._seed[column] = episode.task, episode.seed

    def history(self, column: int) -> Array | None:
        """Return the history with which an environment's running episode began, float32 [d, H, A]; None for none."""
        replayed = int(self._replayed[column])
        return self._actions[column, :replayed].copy() if replayed else None

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that describe the state, not copied."""
        running = {"actions": self._actions, "length": self._length, "replayed": self._replayed}
        failures = {"failed": self._failed, "until": self._until, "failed_task": self._task, "failed_seed": self._seed}
        return {f"late/{name}": array for name, array in (running | failures).items()}
