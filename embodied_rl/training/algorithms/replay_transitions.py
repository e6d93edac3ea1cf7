"""Transitions over chunks of executed actions, as temporal differences on stored episodes need them.

Shapes: B decisions, Hx executed actions of a chunk, A action dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.interfaces.policy import Trace
from embodied_rl.interfaces.sim import Array, Source
from embodied_rl.rollout.replay.experience import Replay

LARGEST_TABLE = 2e9
"""Most bytes that an update keeps of what a frozen network sees in the stored rows."""


@dataclass(frozen=True)
class Transitions:
    """Decisions to learn from, on the host.

    Attributes:
        where: int64 [B, 3], see `Replay`.
        following: int64 [B, 3], the row after the last chunk; its own row if that is not read.
        reward: float32 [B], discounted over the chunks.
        discount: float32 [B], of the value of `following`; 0 if the task ended.
        actions: float32 [B, Hx, A] in the simulator's units.
        human: bool [B], whether a human chose a part of it.
    """

    where: Array
    following: Array
    reward: Array
    discount: Array
    actions: Array
    human: Array

    def __len__(self) -> int:
        return len(self.where)

    def select(self, rows: Array) -> "Transitions":
        """Return the given rows."""
        return Transitions(**{name: value[rows] for name, value in vars(self).items()})


class RowTable:
    """Tensors of rows of the replay, each computed when it is first read; computed anew if they are too large."""

    def __init__(self, rows: Array, compute: Callable[[Array], Trace]) -> None:
        """Prepare a table of rows int64 [B, 3], of which `compute` returns tensors with the same rows."""
        self._rows, self._compute = np.unique(rows, axis=0), compute
        self._position = {tuple(row): number for number, row in enumerate(self._rows.tolist())}
        self._known, self._tensors = np.zeros(len(self._rows), bool), Trace()

    def read(self, where: Array) -> Trace:
        """Return the tensors of rows int64 [B, 3]."""
        at = np.array([self._position[tuple(row)] for row in where.tolist()], np.int64)
        missing, again = np.unique(at[~self._known[at]], return_inverse=True)
        if len(missing):
            found = self._compute(self._rows[missing])
            if sum(value.nbytes for value in found.values()) / len(missing) * len(self._rows) > LARGEST_TABLE:
                return {name: value[torch.from_numpy(again).to(value.device)] for name, value in found.items()}
            for name, value in found.items():
                table = self._tensors.setdefault(name, value.new_empty(len(self._rows), *value.shape[1:]))
                table[torch.from_numpy(missing).to(table.device)] = value
            self._known[missing] = True
        rows = torch.from_numpy(at)
        return {name: table[rows.to(table.device)] for name, table in self._tensors.items()}


def find_transitions(replay: Replay, executed: int, gamma: float, n: int = 1) -> Transitions:
    """Return the decisions of all whole episodes of a rank, with what was executed in Hx = `executed` control steps.

    Rewards are those of n chunks, see `sum_rewards`.
    """
    parts = [
        read_transitions(replay, replay.list_decisions(number, [episode]), executed, gamma, n)
        for number in range(len(replay.storages))
        for episode in replay.list_episodes(number)
    ]
    if not parts:
        blank = np.zeros((0, executed, len(replay.own.format.action_names)), np.float32)
        empty, nothing = np.zeros((0, 3), np.int64), np.zeros(0, np.float32)
        return Transitions(empty, empty, nothing, nothing, blank, np.zeros(0, bool))
    return Transitions(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def read_transitions(replay: Replay, where: Array, executed: int, gamma: float, n: int = 1) -> Transitions:
    """Return the decisions of a whole episode, int64 [B, 3] in order, with chunks of up to Hx = `executed` steps.

    Shorter stored chunks are joined as long as they fit. Rewards are those of n chunks, see `sum_rewards`.
    """
    field = {
        name: replay.read_field(name, where)
        for name in ("steps", "reward", "executed", "action", "source", "terminated", "truncated")
    }
    steps, positions = field["steps"], np.arange(executed)
    used = np.arange(field["reward"].shape[1]) < steps[:, None]
    ends = np.cumsum(steps)
    begin = ends - steps
    last = np.searchsorted(ends, begin + executed, side="right") - 1
    at = begin[:, None] + positions  # control steps of the episode, int64 [B, Hx]
    played = at < ends[last, None]
    at = np.minimum(at, ends[last, None] - 1)
    reward = np.where(played, field["reward"][used][at] * gamma**positions, 0).sum(axis=1)
    actions = field["executed"][used][at]
    if field["action"].shape[1] == executed:
        actions = np.where(played[..., None], actions, field["action"])
    ended = field["terminated"][last] | (field["truncated"][last] & replay.ends_at_time_limit)
    following = np.where(ended[:, None], where, replay.find_following(where[last]))
    discount = np.where(ended, 0, gamma ** (ends[last] - begin))
    human = (played & (field["source"][used][at] == Source.HUMAN)).any(axis=1)
    reward, discount, origin = sum_rewards(reward, discount, last + 1, n)
    return Transitions(
        where,
        following[origin],
        reward.astype(np.float32),
        discount.astype(np.float32),
        actions.astype(np.float32),
        human,
    )


def sum_rewards(reward: Array, discount: Array, after: Array, n: int) -> tuple[Array, Array, Array]:
    """Sum the discounted rewards of n consecutive chunks of an episode, or of those until its end (n-step returns).

    What the policy chose then stays as it was: the returns are not corrected for a policy that has changed since.

    Args:
        reward, discount: float [B], of each chunk alone; a discount of 0 ends the episode.
        after: int64 [B], the decision that follows each chunk; B where none does.
        n: number of chunks, at least 1.

    Returns:
        Reward and discount [B], and the decision [B] whose chunk is the last of the n.
    """
    total, product, origin = reward.copy(), discount.copy(), np.arange(len(reward))
    for _ in range(min(n, len(reward)) - 1):
        going = np.flatnonzero(after[origin] < len(reward))
        origin[going] = after[origin[going]]
        total[going] += product[going] * reward[origin[going]]
        product[going] *= discount[origin[going]]
    return total, product, origin
