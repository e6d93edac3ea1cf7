"""Conditional flow matching on decisions of the replay, each with a weight: what the algorithms on replay share.

The loss of a minibatch is the mean of the flow matching loss (arXiv:2410.24164, eq. 1) on what was executed, multiplied
by the weights, which have a mean of 1 over all decisions. Actions that the safety filter replaced are left out of the
loss, and are seen beside the others of their chunk; a human's corrections are learned.

Shapes: B decisions, H actions of a chunk, A action dimensions.
"""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning import sharded
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.sim import Array, Source
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.storage import StoredEpisode
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.imitation.cloning import cloning_loss

LEARNED = (int(Source.POLICY), int(Source.HUMAN), int(Source.REPLAY))
"""Sources of the actions that are cloned."""


@dataclass(frozen=True)
class ReplayCloningConfig:
    """Settings of cloning from replay."""

    lr: float = at_least(0, 3e-4)
    """peak learning rate of an update: it rises over 50 steps, and falls to a tenth."""
    minibatch: int = at_least(1, 64)
    """decisions of an optimiser step over all ranks."""
    steps: int = at_least(1, 400)
    """optimiser steps of an update, at most."""
    held_out: float = at_least(0, 0.0, at_most=0.9)
    """share of the episodes that are not learned from; 0 for none, and no early stop."""
    check_every: int = at_least(1, 50)
    """optimiser steps between two computations of the held-out loss."""
    patience: int = at_least(1, 2)
    """computations of the held-out loss without a fall after which an update ends."""
    offline_share: float = at_least(0, 0.25, at_most=1)
    """share of a minibatch that is taken from the offline episodes (`replay.preload`), if there are some."""
    grad_clip: float = at_least(0, 1.0)
    """largest gradient norm."""


@dataclass(frozen=True)
class WeightedDecisions:
    """Decisions to learn from.

    Attributes:
        where: where they are, int64 [B, 3], see `Replay`. weight: float32 [B].
        condition: the text that follows the instruction of each, [B]; None for the policy's own, see `Embodiment`.
    """

    where: Array
    weight: Array
    condition: Array | None = None

    def __len__(self) -> int:
        return len(self.where)

    def select(self, rows: Array) -> "WeightedDecisions":
        """Return the given rows."""
        condition = None if self.condition is None else self.condition[rows]
        return WeightedDecisions(self.where[rows], self.weight[rows], condition)


class ReplayCloning(ABC):
    """An algorithm that clones weighted decisions of the replay in each iteration; `weigh` chooses them."""

    def __init__(self, config: ReplayCloningConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.actor, self.ranks, self.seed = actor, ranks, seed
        self._cloning, self._share = config, 0.0
        groups = {name: group for name, group in actor.parameter_groups().items() if name != "critic"}
        rates = dict.fromkeys(groups, config.lr)
        self.optimiser = Optimiser(groups, rates, config.grad_clip, sharded.find_sharding(actor))

    @abstractmethod
    def weigh(self, replay: Replay, iteration: int) -> tuple[WeightedDecisions, dict[str, float]]:
        """Return the decisions of all storages to learn from, those held out included, and figures for the log.

        The figures are equal on all ranks.
        """

    def prepare(self, iteration: int) -> None:  # noqa: B027  the usual behaviour, not an omission
        """Do nothing: the deployed policy collects, without any exploration setting."""

    def update(self, replay: Replay, iteration: int) -> dict[str, float]:
        """Clone the decisions that `weigh` chooses; return figures for the log."""
        chosen, figures = self.weigh(replay, iteration)
        held_out = self._find_held_out(replay, chosen)
        learned, checked = chosen.select(np.flatnonzero(~held_out)), chosen.select(np.flatnonzero(held_out))
        mixed = (self.seed * 1_000_003 + iteration) * 257 + self.ranks.rank
        draws, generator = np.random.default_rng(mixed), torch.Generator().manual_seed(mixed % 2**63)
        counts = torch.tensor([len(learned), len(checked)], dtype=torch.float64)
        self.ranks.sum_([counts])
        rows, checks = counts.tolist()
        losses, best, since, shares = list[float](), float("inf"), 0, self._count_shares(learned, replay.owned)
        first = last = 0.0
        for step in range(self._cloning.steps if rows else 0):
            if checks and step % self._cloning.check_every == 0:
                last = self._held_out_loss(replay, checked)
                first = first if step else last
                best, since = min(best, last), 0 if last < best else since + 1
                if since >= self._cloning.patience:
                    break
            losses.append(self._step(replay, learned, shares, draws, generator, step))
        loss = float(np.mean(losses[-50:])) if losses else 0.0
        held = {"held_out_loss_before": first, "held_out_loss": last} if self._cloning.held_out else {}
        return figures | {"rows": rows, "steps": float(len(losses)), "loss": loss} | held

    def sum_figures(self, figures: dict[str, float]) -> dict[str, float]:
        """Return the sums of figures over all ranks."""
        totals = torch.tensor([*figures.values()], dtype=torch.float64)
        self.ranks.sum_([totals])
        return dict(zip(figures, totals.tolist(), strict=True))

    def _find_held_out(self, replay: Replay, chosen: WeightedDecisions) -> Array:
        """Return which decisions are held out, bool [B]; it depends on their episodes alone."""
        if not self._cloning.held_out:
            return np.zeros(len(chosen), bool)
        held = [
            replay.list_decisions(number, [each for each in replay.list_episodes(number) if self._is_held_out(each)])
            for number in range(len(replay.storages))
        ]
        known = set(map(tuple, np.concatenate(held).tolist()))
        return np.array([tuple(each) in known for each in chosen.where.tolist()], bool)

    def _is_held_out(self, episode: StoredEpisode) -> bool:
        return zlib.crc32(f"{episode.episode} {episode.seed}".encode()) < self._cloning.held_out * 2**32

    def _step(
        self, replay: Replay, learned: WeightedDecisions, shares: Array, draws: np.random.Generator,
        generator: torch.Generator, step: int,
    ) -> float:  # fmt: skip
        """Take an optimiser step on a random minibatch; return this rank's part of the loss: its mean is over ranks.

        `shares` are the weights of this rank's own and of its offline decisions in a minibatch, see `_count_shares`.
        """
        size = max(1, self._cloning.minibatch // self.ranks.size)
        rows, factor = draw_rows(learned.where, size, self._share, shares, draws, replay.owned)
        self.optimiser.zero_grad()
        loss = torch.zeros(())
        if len(rows):
            drawn = learned.select(rows)
            drawn = replace(drawn, weight=drawn.weight * factor)
            loss = self._loss(replay, drawn, generator) * (len(drawn) / size)
            loss.backward()
        rate = min(1.0, (step + 1) / 50) * (1 - 0.9 * step / self._cloning.steps)
        self.optimiser.step(self.ranks, rate)
        return loss.item()

    def _count_shares(self, learned: WeightedDecisions, owned: int = 1) -> Array:
        """Return how much more this rank's own and offline decisions count than those of a mean rank, float64 [2].

        Also sets the share of a minibatch that is offline on every rank, `_share`.
        """
        shares, self._share = count_shares(learned.where, self._cloning.offline_share, self.ranks, owned)
        return shares

    def _loss(self, replay: Replay, chosen: WeightedDecisions, generator: torch.Generator) -> Tensor:
        """Compute the weighted mean loss of decisions."""
        actor, network = self.actor, self.actor.network
        observation, actions, sources = replay.read_chunks(chosen.where, network.spec.horizon)
        targets = actor.embodiment.model_actions(actions, observation.state, network.spec.action_dim).to(actor.device)
        left_out = torch.from_numpy(~np.isin(sources, LEARNED)).to(actor.device)
        weight = torch.from_numpy(chosen.weight).to(actor.device)
        inputs = actor.observation_inputs(observation, None if chosen.condition is None else chosen.condition.tolist())
        with torch.autocast(actor.device.type, torch.bfloat16, enabled=actor.autocast):
            return cloning_loss(network, inputs, targets, generator, left_out, weight=weight)

    @torch.no_grad()
    def _held_out_loss(self, replay: Replay, chosen: WeightedDecisions) -> float:
        """Compute the loss of the held-out decisions of all ranks, always with the same times and noise."""
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        sums = torch.zeros(2, dtype=torch.float64)
        size = max(1, self._cloning.minibatch // self.ranks.size)
        for rows in np.array_split(np.arange(len(chosen)), -(-len(chosen) // size)) if len(chosen) else []:
            loss = float(self._loss(replay, chosen.select(rows), generator))
            sums += torch.tensor([loss * len(rows), len(rows)])
        self.ranks.sum_([sums])
        return float(sums[0] / sums[1])

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        return self.optimiser.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.optimiser.load(state)


def count_shares(where: Array, offline_share: float, ranks: Ranks, owned: int = 1) -> tuple[Array, float]:
    """Return how much more a rank's own and offline decisions count than those of a mean rank, float64 [2].

    Also returns the share of a minibatch that is offline on every rank: `offline_share`, or 0 or 1 where all ranks
    together have only own or only offline decisions.

    Args:
        where: int64 [B, 3], the decisions of this rank.
        offline_share: share of a minibatch that is offline, if there are decisions of both kinds.
        ranks: which learn together.
        owned: number of storages that are not offline, see `Replay`.
    """
    offline = int((where[:, 0] >= owned).sum())
    mine = np.array([len(where) - offline, offline], np.float64)
    totals = torch.from_numpy(mine.copy())
    ranks.sum_([totals])
    everywhere = totals.numpy()
    share = offline_share if everywhere.all() else float(everywhere[0] == 0)
    return mine * ranks.size / np.maximum(everywhere, 1), share


def draw_rows(
    where: Array, size: int, share: float, shares: Array, draws: np.random.Generator, owned: int = 1
) -> tuple[Array, NDArray[np.float32]]:
    """Draw rows of decisions `where` int64 [B, 3] for a minibatch of `size`, of which a `share` is offline on average.

    Returns:
        The rows, int64, at most `size`, and how much each counts by `shares`, see `count_shares`.
    """
    offline = int(size * share + draws.random())
    found = [(np.zeros(0, np.int64), np.zeros(0, np.float32))]
    for later, count in ((False, size - offline), (True, offline)):
        rows = np.flatnonzero((where[:, 0] >= owned) == later)
        if len(rows) and count:
            found.append((rows[draws.integers(len(rows), size=count)], np.full(count, shares[int(later)], np.float32)))
    rows, factors = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(factors)
