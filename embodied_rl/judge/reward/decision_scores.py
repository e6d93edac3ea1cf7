"""The score of each decision: the newest available score of its episode when the action is executed.

It depends only on events before the action, so that a potential computed from it is a function of the episode's
history, for any speed of the scorer, any order of answers and any failures.

Shapes: T decisions, N environments of a collector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService
from embodied_rl.judge.reward.score_table import RolloutScores, Scores, advance, is_usable

_KEPT = ("value", "number", "settled")
"""Fields of `_EpisodeScore` that a checkpoint keeps."""


@dataclass(eq=False)
class _EpisodeScore:
    """Scores of an episode so far.

    Attributes:
        pending: tickets without a used answer.
        value: of the newest scored observation; NaN for none.
        number: decision of that observation.
        settled: the last settled decision; -1 for none.
    """

    value: float
    pending: list[Ticket] = field(default_factory=list[Ticket])
    number: int = 0
    settled: int = -1

    def settle(self, decision: int, least: float) -> list[Ticket]:
        """Use what has come before a decision; return tickets that became useless, because a newer one counts."""
        if decision <= self.settled:
            return []
        self.settled = decision
        for ticket in list(self.pending):
            score = ticket.score  # read once: another thread sets it
            if score is None or (score.valid and score.counts_from > decision):
                continue
            self.pending.remove(ticket)
            pair, asked = ticket.request.kind == "pair", ticket.request.decision
            if is_usable(score, least) and (pair or asked >= self.number):
                self.value = float(advance(np.array(self.value), np.array(score.value))) if pair else score.value
                self.number, ticket.counted = max(asked, self.number), decision
        useless = [each for each in self.pending if each.request.kind != "pair" and each.request.decision < self.number]
        self.pending = [each for each in self.pending if each not in useless]
        return useless


class DecisionScores:
    """Settles the scores of N environments, row by row.

    Pairwise scores are accumulated to progress in the order in which they are used; an episode then begins at 0.

    Args:
        service: its tickets are abandoned when their episode has ended, or a newer score is used.
        sizes: T and N.
        least: minimum confidence; other scores count as missing.
        pair: whether scores are pairwise.
    """

    def __init__(self, service: ScoreService, sizes: tuple[int, int], least: float, pair: bool) -> None:
        self._service, self._sizes, self._least = service, sizes, least
        self._none = 0.0 if pair else np.nan
        self._running = [_EpisodeScore(self._none) for _ in range(sizes[1])]
        self._ending: dict[int, tuple[int, _EpisodeScore]] = {}
        """Column → row and scores of an episode that was truncated, until the next action of its environment."""
        self.begin_rollout()

    def begin_rollout(self) -> None:
        """Clear the tables."""
        self._rows, self._finals, self._age = (np.full(self._sizes, np.nan) for _ in range(3))
        self._lasts = np.full(self._sizes[1], np.nan)

    def add(self, asked: Mapping[int, Ticket]) -> None:
        """Add tickets of running episodes, by column."""
        for column, ticket in asked.items():
            self._running[column].pending.append(ticket)

    def begin_episodes(self, columns: Sequence[int]) -> None:
        """Begin an episode in each of the environments, and drop what is asked about another one."""
        for column in columns:
            self._service.abandon(self._running[column].pending)
            self._running[column] = _EpisodeScore(self._none)

    def end_episodes(self, row: int, columns: Sequence[int], finals: Mapping[int, Ticket]) -> None:
        """End the episodes of `columns` in a row, with the tickets of the final observations of truncated ones."""
        self.add(finals)
        for column in finals:
            self._ending[column], self._running[column] = (row, self._running[column]), _EpisodeScore(self._none)
        self.begin_episodes([column for column in columns if column not in finals])

    def list_awaited(self, columns: Sequence[int], decisions: Sequence[int]) -> list[Ticket]:
        """Return the tickets of the observations before these decisions, and of final ones that are settled now."""
        found: list[Ticket] = []
        for column, decision in zip(columns, decisions, strict=True):
            running = self._running[column]
            if decision > running.settled:
                found += [each for each in running.pending if each.request.decision == decision]
            if column in self._ending:
                found += self._ending[column][1].pending[-1:]
        return found

    def settle(self, rows: Sequence[int], columns: Sequence[int], decisions: Sequence[int]) -> None:
        """Settle the scores of decisions with actions that are executed now."""
        useless: list[Ticket] = []
        for row, column, decision in zip(rows, columns, decisions, strict=True):
            useless += self._settle_ending(column)
            running = self._running[column]
            useless += running.settle(decision, self._least)
            self._rows[row, column] = running.value
            self._age[row, column] = np.nan if np.isnan(running.value) else decision - running.number
        self._service.abandon(useless)

    def settle_lasts(self, columns: Sequence[int], decisions: Sequence[int]) -> None:
        """Settle the scores of the observations after the last row, and what is left of episodes that ended."""
        useless = [ticket for column in list(self._ending) for ticket in self._settle_ending(column)]
        for column, decision in zip(columns, decisions, strict=True):
            useless += self._running[column].settle(decision, self._least)
            self._lasts[column] = self._running[column].value
        self._service.abandon(useless)

    def _settle_ending(self, column: int) -> list[Ticket]:
        if column not in self._ending:
            return []
        row, ending = self._ending.pop(column)
        useless = ending.settle(ending.settled + 1, self._least)
        self._finals[row, column] = ending.value
        return useless + ending.pending

    def list_pending(self) -> list[Ticket]:
        """Return all tickets of running episodes that did not count yet, and still may."""
        return [ticket for running in self._running for ticket in running.pending]

    def read(self) -> RolloutScores:
        """Return the scores of the rollout."""
        return RolloutScores(Scores.of(self._rows), Scores.of(self._finals), Scores.of(self._lasts), self._age)

    def state(self) -> dict[str, Array]:
        """Return what running episodes need to go on; tickets without an answer are not kept."""
        return {f"scores/{name}": np.array([getattr(each, name) for each in self._running]) for name in _KEPT}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`; checkpoints of earlier versions hold none."""
        if "scores/value" not in state:
            return
        for name in _KEPT:
            for running, value in zip(self._running, state[f"scores/{name}"].tolist(), strict=True):
                setattr(running, name, value)
