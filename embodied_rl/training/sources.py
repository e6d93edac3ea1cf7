"""The sources of a rank's rollouts: it collects them itself, or rollout workers do and rank 0 distributes them.

Rollouts are numbered like the versions of the weights: version i learns from rollout i. If a version learns from S
segments, its first rollout is number i·S.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.policy import Actor, Policy
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import RemotePolicy
from embodied_rl.rollout.replay.followed_storage import FollowedStorage
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.rollout.timeline import WAIT, Timeline
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.process import read_resident_bytes
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.lent_simulator import LentSimulator
from embodied_rl.training.metrics import CollectorReport, join_reports
from embodied_rl.training.rollout_worker import REPORT, CollectedRollout, Collecting, fill_rollout, redistribute
from embodied_rl.training.worker_pool import RolloutWorkers


class OwnExperience:
    """Rollouts that the rank collects itself.

    Args:
        policy: the policy that infers: the learning actor, or a remote copy of it.
        collecting: the collector of the rank and its parts.

    Attributes:
        timeline: of this rank's present iteration; the trainer adds its own spans to it.
    """

    def __init__(self, policy: Policy, collecting: Collecting) -> None:
        self._policy, self._collecting, self._collector = policy, collecting, collecting.collector
        self.timeline = self._collector.timeline

    def offer(self) -> None:
        """Collect with the actor's new weights and exploration settings from now on."""
        if isinstance(self._policy, RemotePolicy):
            self._policy.refresh()

    def collect(self) -> Rollout:
        """Return this rank's part of the present version's next rollout, valid until this version has learned."""
        rollout = self._collector.collect(self._policy)
        self.timeline = self._collector.timeline
        return rollout

    def reports(self) -> list[CollectorReport]:
        """Return the collectors' reports on the present version that this rank has."""
        restarts = self._policy.restarts if isinstance(self._policy, RemotePolicy) else 0
        return [CollectorReport.of_rollout(self._collector, self._collector.rollout, restarts)]

    def figures(self) -> dict[str, float]:
        """Return metrics of the curriculum, for the log."""
        return self._collecting.sampler.figures()

    def update_curriculum(self, finished: Sequence[EpisodeRecord]) -> None:
        """Update the curriculum with the episodes that ended in the rollout, on all ranks."""
        self._collecting.sampler.update(finished)

    @property
    def storages(self) -> list[ReplayStorage]:
        """Return the replay storages that this rank learns from: that which its rollouts are written to, if any."""
        return [writer for writer in self._collecting.writers if isinstance(writer, ReplayStorage)]

    def share_simulators(self, spec: SimulatorSpec) -> list[Handle]:
        """Return the simulators, for evaluations inside of `lend_simulators`."""
        return [*self._collecting.handles]

    @contextmanager
    def lend_simulators(self) -> Iterator[None]:
        """Let an evaluation use the simulators in the `with` block; the next rollout restarts its episodes."""
        yield
        self._collector.restart_episodes()

    def state(self) -> dict[str, Array]:
        """Return the state after the last rollout, as needed by `load`."""
        return self._collector.state()

    def load(self, state: Mapping[str, Array]) -> None:
        """Continue from a state; the actor must already have the weights that belong to it."""
        self._collector.load(dict(state))

    def close(self) -> None:
        """End all processes of this source."""
        self._collecting.close()
        if isinstance(self._policy, RemotePolicy):
            self._policy.handle.close()


class SharedExperience:
    """Rollouts that workers collect and rank 0 distributes: the calls of `OwnExperience`, made by all ranks alike.

    Args:
        actor: the policy that learns; its weights are published.
        ranks: the ranks that learn together.
        rollouts: this rank's buffers, filled for each version: one for each segment.
        sampler: an episode sampler of all environments, for its curriculum.
        workers: the rollout workers, on rank 0; None on other ranks.
        storages: replay storages of this rank's share of the workers, for an algorithm that learns from replay.
    """

    def __init__(
        self,
        actor: Actor,
        ranks: Ranks,
        rollouts: Sequence[Rollout],
        sampler: EpisodeSampler,
        workers: RolloutWorkers | None,
        storages: Sequence[FollowedStorage] = (),
    ) -> None:
        self.timeline, self.storages = Timeline(), storages
        self._actor, self._ranks, self._rollouts = actor, ranks, rollouts
        self._sampler, self._workers = sampler, workers
        self._collected: list[list[CollectedRollout]] = []
        self._segment = 0

    def offer(self) -> None:
        if self._workers is not None:
            self._workers.offer(self._actor)

    def collect(self) -> Rollout:
        if self._segment == 0:
            self.timeline, self._collected = Timeline(), []
        rollout, parts = self._rollouts[self._segment], None
        with self.timeline.record(WAIT):
            self._await_parts()
            if self._workers is not None:
                collected = self._workers.dispatcher.take(self._number)
                self._collected.append(collected)
                shares = redistribute([part.arrays for part in collected], self._ranks.size)
                ended = [part.report.finished for part in collected] if self._ranks.size == len(collected) else None
                stored, each = [find_stored(part.state) for part in collected], len(self.storages)
                parts = [
                    (share, ended[rank] if ended else (), stored[rank * each : (rank + 1) * each])
                    for rank, share in enumerate(shares)
                ]
            arrays, finished, stored = self._ranks.scatter(parts, EpisodeRecord)
        fill_rollout(rollout, arrays)
        for storage, state in zip(self.storages, stored, strict=True):
            storage.advance(state)
        rollout.finished = list(finished)
        self.timeline.finish()
        self._segment = (self._segment + 1) % len(self._rollouts)
        return rollout

    @property
    def _number(self) -> int:
        return self._actor.version * len(self._rollouts) + self._segment

    def _await_parts(self) -> None:
        """Wait until the workers have collected the next rollout.

        Rank 0 reports to the other ranks every `REPORT` seconds, so that their timeout need not cover a whole rollout.
        """
        complete = False
        while not complete:
            mine = self._workers is None or self._workers.dispatcher.wait(self._number, REPORT)
            complete = self._ranks.gather(mine)[0]

    def reports(self) -> list[CollectorReport]:
        if self._workers is None:
            return []
        first, *others = (join_reports([part.report for part in parts]) for parts in zip(*self._collected, strict=True))
        return [replace(first, restarts=first.restarts + self._workers.dispatcher.restarts), *others]

    def figures(self) -> dict[str, float]:
        return self._sampler.figures()

    def update_curriculum(self, finished: Sequence[EpisodeRecord]) -> None:
        self._sampler.update(finished)
        if self._workers is not None:
            self._workers.dispatcher.update_curriculum(finished)

    def share_simulators(self, spec: SimulatorSpec) -> list[Handle]:
        return [LentSimulator(handle, spec) for handle in (self._workers.handles if self._workers else ())]

    def lend_simulators(self) -> AbstractContextManager[None]:
        return nullcontext() if self._workers is None else self._workers.lend_simulators()

    def state(self) -> dict[str, Array]:
        own = self._sampler.state()
        workers = {
            f"worker/{n}/{name}": array
            for n, part in enumerate(self._collected[-1] if self._collected else ())
            for name, array in part.state.items()
        }
        return own | workers

    def load(self, state: Mapping[str, Array]) -> None:
        self._sampler.load(state)
        if self._workers is not None:
            learned = {name: array for name, array in state.items() if name.startswith("episodes/curriculum/")}
            self._workers.load(self._actor.version, state, learned)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def find_stored(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the state of the replay storage in a collector's state; empty if it has none."""
    return {f"replay/{name.partition('/replay/')[2]}": array for name, array in state.items() if "/replay/" in name}


class NoCollection:
    """The source of a run that learns from stored experience alone: the calls of `OwnExperience`, without a rollout."""

    storages: Sequence[ReplayStorage] = ()

    def __init__(self) -> None:
        self.timeline = Timeline()

    def lend_simulators(self) -> AbstractContextManager[None]:
        return nullcontext()

    def offer(self) -> None:
        """Begin the timeline of an iteration."""
        self.timeline = Timeline()

    def collect(self) -> Rollout:
        raise AssertionError("a run with replay.collect=false has no rollouts")

    def reports(self) -> list[CollectorReport]:
        memory = read_resident_bytes(os.getpid())
        return [CollectorReport(0, 0, 0, 0, (memory, 0), memory, (), self.timeline)]

    def figures(self) -> dict[str, float]:
        return {}

    def update_curriculum(self, finished: Sequence[EpisodeRecord]) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        pass

    def close(self) -> None:
        pass


Experience = OwnExperience | SharedExperience | NoCollection
