"""Collectors with their simulators, and the rollout worker, which collects a part of every rollout by itself.

Messages to and from it hold plain arrays; `embodied_rl.training.worker_pool` builds one from a configuration.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.learning.weights import Weights
from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl.rollout.buffer import OF_ENVIRONMENTS, Columns, Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.late_starts import LateStartSettings
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.rollout.writer import Writer, WriterFactory
from embodied_rl.runtime.processes.handle import BoardReader, Handle, Runtime
from embodied_rl.runtime.simulators.kind import SimulatorKind, make_handles
from embodied_rl.schema import TrainConfig, TrainLoop
from embodied_rl.training.metrics import CollectorReport

REPORT = 10.0
"""Seconds between two reports: of a rollout worker to rank 0, and of rank 0, which waits for it, to the other ranks."""

WEIGHTS_TIMEOUT = 60.0
"""Timeout for announced weights to appear on the board, in seconds."""


@dataclass(frozen=True)
class RolloutWork:
    """The work of a rollout worker.

    Attributes:
        needs: of the algorithm.
        explore: whether the exploring policy collects, or the deployed one.
        decisions: T, the decisions of a segment.
        segments: number of rollouts that a version learns from in turn.
        writers: factories of writers in each worker, besides its rollouts.
        extras: columns of the rollouts that these fill.
    """

    needs: Needs
    explore: bool
    decisions: int
    segments: int = 1
    writers: tuple[WriterFactory, ...] = ()
    extras: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Collecting:
    """A collector and its parts.

    Attributes:
        collector: with its writers.
        sampler: of its episodes.
        handles: of its simulators; `close` closes them.
        writers: additional receivers of the collected data, besides the rollout.
    """

    collector: Collector
    sampler: EpisodeSampler
    handles: Sequence[Handle]
    writers: Sequence[Writer]

    def clear(self) -> None:
        """Let all writers discard what an earlier process wrote, because the run starts again without a checkpoint."""
        for writer in self.writers:
            writer.clear()

    def close(self) -> None:
        """Close the simulators and the writers."""
        for handle in self.handles:
            handle.close()
        for writer in self.writers:
            writer.close()


def make_sampler(config: TrainConfig, kind: SimulatorKind, needs: Needs) -> EpisodeSampler:
    """Return the episode sampler (index → episode) for all environments of a run."""
    curriculum = build.build_curriculum(config.curriculum, kind.spec)
    return EpisodeSampler(
        kind.spec,
        config.seed,
        group_size=needs.group_size,
        task=config.train.task,
        curriculum=curriculum,
        late_starts=find_late_starts(config.train),
    )


def find_late_starts(config: TrainLoop) -> LateStartSettings | None:
    """Return the settings of late starts; None if no episode begins late."""
    return LateStartSettings(config.late_starts, config.late_decisions) if config.late_starts else None


def make_collector(
    config: TrainConfig,
    kind: SimulatorKind,
    work: RolloutWork,
    rollout: Rollout,
    runtime: Runtime,
    number: int,
    purpose: str,
) -> Collecting:
    """Build collector `number` of all of a run, with its simulators, which are named after a purpose.

    It fills a rollout of T decisions in the environments of this collector; `runtime` starts its processes.
    """
    sampler, envs = make_sampler(config, kind, work.needs), rollout.num_envs
    handles = make_handles(kind, config.plan, envs, purpose, runtime)
    made = [factory.make(number) for factory in work.writers]
    collector = Collector(
        handles,
        kind.spec,
        envs // config.plan.slices,
        sampler,
        rollout,
        config.seed,
        env_offset=number * envs,
        env_total=config.sim.num_envs,
        fresh=work.needs.fresh_episodes,
        order=config.plan.order,
        writers=made,
        explore=work.explore,
    )
    return Collecting(collector, sampler, handles, made)


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
        arrays: see `embodied_rl.training.rollout_worker.to_arrays`.
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
        collecting: its collector.
        traces: whether to send the traces of decisions, too, which learning from replay does not read.
    """

    def __init__(self, policy: PolicyWorker, board: BoardReader, collecting: Collecting, traces: bool = True) -> None:
        self._policy, self._traces = LatestWeightsPolicy(policy, board), traces
        self._board, self._collecting, self._collector = board, collecting, collecting.collector
        self._turns: Iterator[None] = iter(())

    def collect(self, order: CollectOrder) -> CollectedRollout | None:
        """Start the ordered part of a rollout, and `proceed`."""
        if order.beginning is not None:
            start = order.beginning
            self._policy.load(replace(start.published, weights=start.everything))
            self._policy.load(start.published)
            if start.state is None:
                self._collecting.clear()
            else:
                self._collector.load(start.state)
        if order.finished:
            self._collecting.sampler.update(order.finished)
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
        arrays = to_arrays(rollout)
        if not self._traces:
            arrays = {name: array for name, array in arrays.items() if not name.startswith("trace/")}
        return CollectedRollout(arrays, CollectorReport.of_rollout(self._collector, rollout), self._collector.state())

    def simulate(self, method: str, args: tuple[Any, ...]) -> tuple[Any]:
        """Call the simulator between two parts of rollouts; return the answer, with its images, in a tuple."""
        (handle,) = self._collecting.handles
        return (handle.submit(method, *args).result(),)

    def restart_episodes(self) -> None:
        """Let the next rollout restart the present episodes, because `simulate` has run others."""
        self._collector.restart_episodes()

    def close(self) -> None:
        """Close the collector and the board's reader."""
        self._collecting.close()
        self._board.close()


def to_arrays(rollout: Rollout) -> dict[str, Array]:
    """Return a rollout's tensors as array views, [T, N, ...] each and [N] for `last_value`; bfloat16 as int16."""
    return {name: _plain(tensor.detach().cpu()).numpy() for name, tensor in rollout.tensors().items()}


def fill_rollout(rollout: Rollout, arrays: Mapping[str, Array]) -> None:
    """Copy arrays of `to_arrays`, which may lack traces, into a rollout of the same sizes.

    Raises:
        UserError: the arrays have other sizes.
    """
    tensors = rollout.tensors()
    for name, tensor in ((name, tensors[name]) for name in arrays):
        if arrays[name].shape != (view := _plain(tensor)).shape:
            message = f"a rollout's {name} is {arrays[name].shape}, {tuple(tensor.shape)} was expected"
            raise UserError(message, code="rollout-shape-mismatch")
        view.copy_(torch.from_numpy(np.require(arrays[name], requirements=["C", "W"])))


def redistribute(parts: Sequence[dict[str, Array]], count: int) -> list[dict[str, Array]]:
    """Join parts of consecutive environments, and divide them by environments into `count` equal parts."""
    if len(parts) == count:
        return list(parts)
    shares: list[dict[str, Array]] = [{} for _ in range(count)]
    for name in parts[0]:
        axis = 0 if name in OF_ENVIRONMENTS else 1
        whole = np.concatenate([part[name] for part in parts], axis)
        for share, piece in zip(shares, np.split(whole, count, axis), strict=True):
            share[name] = piece
    return shares


def _plain(tensor: Tensor) -> Tensor:
    """Return a view with a dtype that NumPy supports: int16 for bfloat16."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
