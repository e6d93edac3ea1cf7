"""Rollout worker: it has its own policy and simulators, and collects a part of every rollout with the newest weights.

Messages to and from it hold plain arrays; `embodied_rl.training.worker_pool` builds one from a configuration.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from embodied_rl.actors.learning.weights import Weights
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.runtime.processes.base import BoardReader
from embodied_rl.training.metrics import CollectorReport
from embodied_rl.training.rollout_arrays import to_arrays
from embodied_rl.training.timeouts import REPORT

WEIGHTS_TIMEOUT = 60.0
"""Timeout for announced weights to appear on the board, in seconds."""


@dataclass(frozen=True)
class PublishedWeights:
    """The message on the board: weights, and the exploration settings to use with them."""

    weights: Weights
    exploration: dict[str, float]


@dataclass(frozen=True)
class WorkerStart:
    """The initial weights and state of a rollout worker.

    Attributes:
        everything: all weights of some version, including frozen ones.
        published: the newest learned weights.
        state: of its collector; None at the start of a run.
    """

    everything: Weights
    published: PublishedWeights
    state: dict[str, Array] | None = None


@dataclass(frozen=True)
class CollectOrder:
    """The order to collect a part of a rollout.

    Attributes:
        number: of the rollout.
        least: the oldest version of weights to begin with.
        finished: ended episodes with which to update the curriculum first.
        beginning: the initial weights and state, in a worker's first order.
    """

    number: int
    least: int
    finished: tuple[EpisodeRecord, ...] = ()
    beginning: WorkerStart | None = None


@dataclass(frozen=True)
class CollectedRollout:
    """A collected part of a rollout.

    Attributes:
        arrays: see `embodied_rl.training.rollout_arrays.to_arrays`.
        report: of its collection.
        state: of the collector afterwards.
    """

    arrays: dict[str, Array]
    report: CollectorReport
    state: dict[str, Array]


class LatestWeightsPolicy:
    """A `Policy` that loads newer weights between two decisions, never during one.

    Args:
        policy: the policy that infers.
        board: the board on which weights are published.
    """

    def __init__(self, policy: PolicyWorker, board: BoardReader) -> None:
        self._policy, self._board = policy, board

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Decision:
        """Load newer weights, then decide; see `Actor.act`."""
        self.load_newest()
        return self._policy.act(observation, keys, explore, prefix, committed)

    def value(
        self, observation: Observation, keys: NoiseKeys, prefix: Array | None = None, committed: Array | None = None
    ) -> Tensor:
        """Return the values of observations with the present weights; see `Actor.value`."""
        return self._policy.value(observation, keys, prefix, committed)

    def load(self, published: PublishedWeights) -> None:
        """Load published weights and exploration settings."""
        self._policy.load(published.weights, published.exploration)

    def load_newest(self) -> None:
        """Load the weights on the board if they are newer."""
        if (found := self._board.newest(self._policy.actor.version)) is not None:
            self.load(found[1])

    def wait_for(self, version: int) -> None:
        """Wait until weights of this version, or newer ones, are loaded.

        Raises:
            TimeoutError: the weights were not published in time.
        """
        until = time.monotonic() + WEIGHTS_TIMEOUT
        self.load_newest()
        while self._policy.actor.version < version:
            if time.monotonic() > until:
                raise TimeoutError(f"weights of version {version} were not published within {WEIGHTS_TIMEOUT:g} s")
            time.sleep(0.01)
            self.load_newest()


class RolloutWorker:
    """Collects parts of rollouts, each by one call of `collect` and repeated calls of `proceed`.

    Args:
        policy: the policy, with the network that infers.
        board: the board on which weights are published.
        collector: with its simulators.
        sampler: the episode sampler of the collector.
        handles: of the simulators; `close` closes them.
    """

    def __init__(
        self,
        policy: PolicyWorker,
        board: BoardReader,
        collector: Collector,
        sampler: EpisodeSampler,
        handles: list[Any],
    ) -> None:
        self._policy = LatestWeightsPolicy(policy, board)
        self._board, self._collector, self._sampler, self._handles = board, collector, sampler, handles
        self._turns: Iterator[None] = iter(())

    def collect(self, order: CollectOrder) -> CollectedRollout | None:
        """Start the ordered part of a rollout, and `proceed`."""
        if order.beginning is not None:
            start = order.beginning
            self._policy.load(replace(start.published, weights=start.everything))
            self._policy.load(start.published)
            if start.state is not None:
                self._collector.load(start.state)
        if order.finished:
            self._sampler.update(order.finished)
        self._policy.wait_for(order.least)
        self._turns = self._collector.collect_in_turns(self._policy)
        return self.proceed()

    def proceed(self) -> CollectedRollout | None:
        """Collect for at most `REPORT` seconds; return the part if it is complete, else None.

        The return shows the dispatcher that this worker does not hang, however long a whole part takes.
        """
        until = time.monotonic() + REPORT
        for _ in self._turns:
            if time.monotonic() >= until:
                return None
        rollout = self._collector.rollout
        return CollectedRollout(
            to_arrays(rollout), CollectorReport.of_rollout(self._collector, rollout), self._collector.state()
        )

    def close(self) -> None:
        """Close the simulators, the collector's writers and the board's reader."""
        for handle in self._handles:
            handle.close()
        for writer in self._collector.writers:
            writer.close()
        self._board.close()
