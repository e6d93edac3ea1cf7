"""A rollout worker: a policy and simulators of its own, which make a part of every rollout, with the newest weights.

Messages to and from it hold plain arrays; `embodied_rl.assembly.build` makes one from a configuration.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl.learning.weights import Weights
from embodied_rl.processes.base import BoardReader
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.training.metrics import CollectorReport
from embodied_rl.training.shares import to_arrays

PATIENCE = 60.0
"""Seconds in which weights that were promised must be on the board."""


@dataclass(frozen=True)
class PublishedWeights:
    """What is on the board: weights, and how strongly to explore with them."""

    weights: Weights
    exploration: dict[str, float]


@dataclass(frozen=True)
class WorkerStart:
    """What a rollout worker begins with.

    Attributes:
        everything: all weights of some version, frozen ones included.
        published: what has been learned since.
        state: of its collector; None at the start of a run.
    """

    everything: Weights
    published: PublishedWeights
    state: dict[str, Array] | None = None

    def going_on(self, state: dict[str, Array] | None) -> "WorkerStart":
        """The same for a worker that goes on from a state."""
        return replace(self, state=state)


@dataclass(frozen=True)
class CollectOrder:
    """What to collect.

    Attributes:
        number: of the rollout.
        least: the version of weights to begin with, or a newer one.
        finished: episodes for the curriculum to hear of first.
        beginning: for a worker's first order.
    """

    number: int
    least: int
    finished: tuple[EpisodeRecord, ...] = ()
    beginning: WorkerStart | None = None


@dataclass(frozen=True)
class CollectedRollout:
    """A part of a rollout.

    Attributes:
        arrays: see `embodied_rl.training.shares.to_arrays`.
        share: what was done for it.
        state: of the collector afterwards.
    """

    arrays: dict[str, Array]
    share: CollectorReport
    state: dict[str, Array]


class FollowingPolicy:
    """A `Policy` that takes over newer weights between two decisions, never in the middle of one.

    Args:
        policy: infers.
        board: where the weights appear.
    """

    def __init__(self, policy: PolicyWorker, board: BoardReader) -> None:
        self._policy, self._board = policy, board

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        """See `Actor.act`."""
        self.follow()
        return self._policy.act(observation, keys, explore)

    def value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        """See `Actor.value`."""
        return self._policy.value(observation, keys)

    def load(self, published: PublishedWeights) -> None:
        """Take over weights."""
        self._policy.load(published.weights, published.exploration)

    def follow(self) -> None:
        """Take over what is on the board, if it is newer."""
        if (found := self._board.newest(self._policy.actor.version)) is not None:
            self.load(found[1])

    def wait_for(self, version: int) -> None:
        """Until weights of this version, or newer ones, are loaded.

        Raises:
            TimeoutError: they did not come.
        """
        until = time.monotonic() + PATIENCE
        self.follow()
        while self._policy.actor.version < version:
            if time.monotonic() > until:
                raise TimeoutError(f"weights of version {version} were not published within {PATIENCE:g} s")
            time.sleep(0.01)
            self.follow()


class RolloutWorker:
    """Collects one part of a rollout at each call.

    Args:
        policy: with the network to infer with.
        board: where weights appear.
        collector: with simulators.
        sampler: the collector's.
        end: ends the simulators.
    """

    def __init__(
        self,
        policy: PolicyWorker,
        board: BoardReader,
        collector: Collector,
        sampler: EpisodeSampler,
        handles: list[Any],
    ) -> None:
        self._policy = FollowingPolicy(policy, board)
        self._board, self._collector, self._sampler, self._handles = board, collector, sampler, handles

    def collect(self, order: CollectOrder) -> CollectedRollout:
        """Make the part that is ordered."""
        if order.beginning is not None:
            self._begin(order.beginning)
        if order.finished:
            self._sampler.update(order.finished)
        self._policy.wait_for(order.least)
        rollout = self._collector.collect(self._policy)
        return CollectedRollout(
            to_arrays(rollout), CollectorReport.of_rollout(self._collector, rollout), self._collector.state()
        )

    def close(self) -> None:
        """End the simulators."""
        for handle in self._handles:
            handle.close()
        self._board.close()

    def _begin(self, beginning: WorkerStart) -> None:
        self._policy.load(replace(beginning.published, weights=beginning.everything))
        self._policy.load(beginning.published)
        if beginning.state is not None:
            self._collector.load(beginning.state)
