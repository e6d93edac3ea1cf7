"""Filtered cloning: run the deployed policy, clone its successful episodes, repeat (rejection fine-tuning).

It needs no critic, no likelihood and no exploration noise: the start noise of the flow explores. It is the baseline of
every method that learns from few episodes. It can only choose among what the policy already does, and soon memorises
its few rows; so part of the episodes is held out, and an update ends when their loss no longer falls.

The loss is conditional flow matching (arXiv:2410.24164, eq. 1) on what was executed. Actions that the safety filter
replaced are left out; a human's corrections are learned.

Shapes: B decisions, H actions of a chunk, A action dimensions.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning import sharded
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.sim import Array, Source
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.storage import StoredEpisode
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.imitation.cloning import conditional_flow_matching_loss

LEARNED = (int(Source.POLICY), int(Source.HUMAN), int(Source.REPLAY))
"""Sources of the actions that are cloned."""


@dataclass(frozen=True)
class FilteredConfig:
    """Settings of filtered cloning."""

    lr: float = at_least(0, 3e-4)
    """learning rate at the beginning of an update; it falls to a tenth."""
    minibatch: int = at_least(1, 64)
    """decisions of an optimiser step over all ranks."""
    steps: int = at_least(1, 300)
    """optimiser steps of an update, at most."""
    held_out: float = at_least(0, 0.1, at_most=0.9)
    """share of the successful episodes that are not learned from; 0 for none, and no early stop."""
    check_every: int = at_least(1, 50)
    """optimiser steps between two computations of the held-out loss."""
    patience: int = at_least(1, 2)
    """an update ends after so many computations in which the held-out loss has not fallen."""
    offline_share: float = at_least(0, 0.25, at_most=1)
    """share of a minibatch that is taken from the offline episodes, if there are some."""
    grad_clip: float = at_least(0, 1.0)
    """largest gradient norm."""


class Filtered:
    """One update an iteration: clone the successful episodes of the replay."""

    Config = FilteredConfig

    @staticmethod
    def needs(config: FilteredConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(learns_from="replay", explores=False, minibatch=config.minibatch)

    def __init__(self, config: FilteredConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.config, self.actor, self.ranks, self.seed = config, actor, ranks, seed
        groups = {name: group for name, group in actor.parameter_groups().items() if name != "critic"}
        self.optimiser = Optimiser(
            groups, dict.fromkeys(groups, config.lr), config.grad_clip, sharded.find_sharding(actor)
        )

    def prepare(self, iteration: int) -> None:
        """Do nothing: the deployed policy collects, without any exploration setting."""

    def update(self, replay: Replay, iteration: int) -> dict[str, float]:
        """Clone the successful episodes; return figures for the log."""
        learned, held_out, figures = self._divide(replay)
        mixed = (self.seed * 1_000_003 + iteration) * 257 + self.ranks.rank
        draws, generator = np.random.default_rng(mixed), torch.Generator().manual_seed(mixed % 2**63)
        counts = torch.tensor([sum(map(len, learned)), len(held_out)], dtype=torch.float64)
        self.ranks.sum_([counts])
        everywhere, checked = counts.tolist()
        losses, best, since = list[float](), float("inf"), 0
        first = last = 0.0
        for step in range(self.config.steps if everywhere else 0):
            if checked and step % self.config.check_every == 0:
                last = self._held_out_loss(replay, held_out)
                first = first if step else last
                best, since = min(best, last), 0 if last < best else since + 1
                if since >= self.config.patience:
                    break
            losses.append(self._step(replay, learned, draws, generator, step))
        totals = torch.tensor([*figures.values()], dtype=torch.float64)
        self.ranks.sum_([totals])
        return dict(zip(figures, totals.tolist(), strict=True)) | {
            "steps": float(len(losses)),
            "loss": float(np.mean(losses[-50:])) if losses else 0.0,
            "held_out_loss_before": first,
            "held_out_loss": last,
        }

    def _divide(self, replay: Replay) -> tuple[tuple[Array, Array], Array, dict[str, float]]:
        """Return the decisions to learn from, own and offline, int64 [B, 3]; those held out; and counts for the log."""
        parts, held_out, episodes, successes = list[Array](), list[Array](), 0, 0
        for number, storage in enumerate(replay.storages):
            found = storage.list_episodes()
            good = [episode for episode in found if episode.success]
            episodes, successes = episodes + len(found), successes + len(good)
            parts.append(replay.list_decisions(number, [each for each in good if not self._is_held_out(each)]))
            held_out.append(replay.list_decisions(number, [each for each in good if self._is_held_out(each)]))
        learned = parts[0], np.concatenate([parts[0][:0], *parts[1:]])
        rows = float(sum(map(len, learned)))
        return learned, np.concatenate(held_out), {"episodes": episodes, "successes": successes, "rows": rows}

    def _is_held_out(self, episode: StoredEpisode) -> bool:
        """Return whether an episode is held out, which depends on the episode alone."""
        return zlib.crc32(f"{episode.episode} {episode.seed}".encode()) < self.config.held_out * 2**32

    def _step(
        self,
        replay: Replay,
        learned: tuple[Array, Array],
        draws: np.random.Generator,
        generator: torch.Generator,
        step: int,
    ) -> float:
        """Take an optimiser step on a random minibatch, and return its loss on this rank."""
        size = max(1, self.config.minibatch // self.ranks.size)
        own, offline = learned
        share = self.config.offline_share if len(own) and len(offline) else float(len(own) == 0)
        count = round(size * share)
        parts = [
            decisions[draws.integers(max(len(decisions), 1), size=number if len(decisions) else 0)]
            for decisions, number in ((own, size - count), (offline, count))
        ]
        self.optimiser.zero_grad()
        weight, loss = float(len(own) + len(offline)), torch.zeros(())
        if weight:
            loss = self._loss(replay, np.concatenate(parts), generator)
            loss.backward()
        rate = min(1.0, (step + 1) / 50) * (1 - 0.9 * step / self.config.steps)
        self.optimiser.step(self.ranks, rate, weight)
        return loss.item()

    def _loss(self, replay: Replay, decisions: Array, generator: torch.Generator) -> Tensor:
        """Compute the mean loss of decisions int64 [B, 3]."""
        actor, network = self.actor, self.actor.network
        observation, actions, sources = replay.read_chunks(decisions, network.spec.horizon)
        targets = actor.embodiment.model_actions(actions, observation.state, network.spec.action_dim)
        left_out = torch.from_numpy(~np.isin(sources, LEARNED)).to(actor.device)
        inputs = actor.observation_inputs(observation)
        with torch.autocast(actor.device.type, torch.bfloat16, enabled=actor.autocast):
            return conditional_flow_matching_loss(network, inputs, targets.to(actor.device), generator, left_out)

    @torch.no_grad()
    def _held_out_loss(self, replay: Replay, decisions: Array) -> float:
        """Compute the loss of the held-out decisions of all ranks, always with the same times and noise."""
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        sums = torch.zeros(2, dtype=torch.float64)
        for rows in np.array_split(decisions, -(-len(decisions) // 256)) if len(decisions) else []:
            sums += torch.tensor([float(self._loss(replay, rows, generator)) * len(rows), len(rows)])
        self.ranks.sum_([sums])
        return float(sums[0] / sums[1])

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        return self.optimiser.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.optimiser.load(state)
