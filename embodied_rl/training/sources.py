"""Where a rank's rollouts come from: it collects them itself, or rollout workers do, and rank 0 shares them out.

Rollouts are numbered as the weights' versions are: number i is what version i learns from. Where that comes in S
segments, number i·S is the first of them, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from embodied_rl.assembly import build
from embodied_rl.config.schema import TrainConfig
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.policy import Actor, Policy
from embodied_rl.interfaces.sim import Array
from embodied_rl.learning.weights import Weights, publish
from embodied_rl.processes.base import Board, BoardReader, Deadlines, Runtime
from embodied_rl.processes.base import Share as NodeShare
from embodied_rl.processes.handle import Handle
from embodied_rl.ranks.collective import Ranks
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collect import Collector
from embodied_rl.rollout.episodes import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker, RemotePolicy
from embodied_rl.rollout.timeline import WAIT, Timeline
from embodied_rl.runtime import select as runtimes
from embodied_rl.simulators.kind import SimulatorKind, make_handles
from embodied_rl.training.dispatch import Dispatcher
from embodied_rl.training.metrics import Share, joined
from embodied_rl.training.shares import fill, shared_out
from embodied_rl.training.worker import Beginning, Collected, Published, RolloutWorker


class Experience(Protocol):
    """One rank's source of rollouts.

    Attributes:
        timeline: of the present iteration of this rank, for what it does besides.
    """

    timeline: Timeline

    def offer(self) -> None:
        """The actor has new weights, and how to explore with them: collect with them from now on."""
        ...

    def collect(self) -> Rollout:
        """This rank's part of what the present version learns from, or of its next segment; it stays until the present
        version has learned.
        """
        ...

    def shares(self) -> list[Share]:
        """What was done for the present version, by those who collected and whose report this rank has."""
        ...

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        """Episodes that ended in it, on all ranks: what curricula learn from."""
        ...

    def state(self) -> dict[str, Array]:
        """Everything `load` needs, after the last rollout."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on as `state` says; the actor has the weights that belong to it."""
        ...

    def close(self) -> None:
        """End every process."""
        ...


class OwnExperience:
    """A rank collects its rollouts itself.

    Args:
        policy: infers: the actor that learns, or who stands for it.
        collector: of the rank.
        sampler: the collector's.
        handles: the collector's simulators.
    """

    def __init__(
        self, policy: Policy, collector: Collector, sampler: EpisodeSampler, handles: Sequence[Handle]
    ) -> None:
        self.timeline = collector.timeline
        self._policy, self._collector, self._sampler, self._handles = policy, collector, sampler, handles

    def offer(self) -> None:
        """Nothing has to be sent where the actor itself infers."""
        if isinstance(self._policy, RemotePolicy):
            self._policy.refresh()

    def collect(self) -> Rollout:
        rollout = self._collector.collect(self._policy)
        self.timeline = self._collector.timeline
        return rollout

    def shares(self) -> list[Share]:
        restarts = self._policy.restarts if isinstance(self._policy, RemotePolicy) else 0
        return [Share.of(self._collector, self._collector.rollout, restarts)]

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        self._sampler.update(finished)

    def state(self) -> dict[str, Array]:
        return self._collector.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._collector.load(dict(state))

    def close(self) -> None:
        policy = [self._policy.handle] if isinstance(self._policy, RemotePolicy) else []
        for handle in (*self._handles, *policy):
            handle.close()


class SharedExperience:
    """Rollout workers collect; rank 0 knows them and shares out what they make. All ranks call alike.

    Args:
        actor: what learns; its weights are published.
        ranks: that learn together.
        rollouts: this rank's part, filled again and again: one for each segment of what a version learns from.
        sampler: an episode sampler of all environments, for its curriculum.
        workers: the rollout workers, on rank 0; None on others.
    """

    def __init__(
        self,
        actor: Actor,
        ranks: Ranks,
        rollouts: Sequence[Rollout],
        sampler: EpisodeSampler,
        workers: "Workers | None",
    ) -> None:
        self.timeline = Timeline()
        self._actor, self._ranks, self._rollouts = actor, ranks, rollouts
        self._sampler, self._workers = sampler, workers
        self._made: list[list[Collected]] = []
        self._segment = 0

    def offer(self) -> None:
        if self._workers is not None:
            self._workers.offer(self._actor)

    def collect(self) -> Rollout:
        if self._segment == 0:
            self.timeline, self._made = Timeline(), []
        rollout, parts = self._rollouts[self._segment], None
        with self.timeline.record(WAIT):
            if self._workers is not None:
                parts = self._taken(self._workers.dispatcher)
            arrays, finished = self._ranks.scatter(parts, EpisodeRecord)
        fill(rollout, arrays)
        rollout.finished = list(finished)
        self.timeline.finish()
        self._segment = (self._segment + 1) % len(self._rollouts)
        return rollout

    def _taken(self, dispatcher: Dispatcher) -> list[tuple[dict[str, Array], tuple[EpisodeRecord, ...]]]:
        """What each rank gets of the next segment."""
        made = dispatcher.take(self._actor.version * len(self._rollouts) + self._segment)
        self._made.append(made)
        shares = shared_out([part.arrays for part in made], self._ranks.size)
        ended = [part.share.finished for part in made] if self._ranks.size == len(made) else None
        return [(share, ended[rank] if ended else ()) for rank, share in enumerate(shares)]

    def shares(self) -> list[Share]:
        if self._workers is None:
            return []
        first, *others = (joined([part.share for part in parts]) for parts in zip(*self._made, strict=True))
        return [replace(first, restarts=first.restarts + self._workers.dispatcher.restarts), *others]

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        self._sampler.update(finished)
        if self._workers is not None:
            self._workers.dispatcher.tell(finished)

    def state(self) -> dict[str, Array]:
        own = self._sampler.state()
        workers = {
            f"worker/{n}/{name}": array
            for n, made in enumerate(self._made[-1] if self._made else ())
            for name, array in made.state.items()
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


class Workers:
    """The rollout workers of a run, and what rank 0 tells them.

    Args:
        board: that they read weights from.
        handles: of them, in the order of their environments.
        staleness: versions that they may be ahead.
        segments: of what a version learns from.
    """

    def __init__(self, board: Board, handles: Sequence[Handle], staleness: int, segments: int = 1) -> None:
        self.dispatcher = Dispatcher(handles, staleness, segments)
        self._board, self._count = board, len(handles)
        self._everything: Weights | None = None

    @staticmethod
    def start(config: TrainConfig, runtime: Runtime, blueprint: build.Blueprint, sizes: "Sizes") -> "Workers":
        """Those of a run.

        Args:
            config: of the run.
            runtime: starts them.
            blueprint: of their actors.
            sizes: of their rollouts.
        """
        board = runtime.board()
        patience = sizes.decisions * config.plan.call_timeout + config.plan.start_timeout
        given = {"config": config, "blueprint": blueprint, "sizes": sizes, "board": board.reader()}
        handles = [
            runtime.worker(
                f"{__name__}:{rollout_worker.__name__}",
                given | {"number": number},
                name=f"rollout worker {number}",
                deadlines=Deadlines(config.plan.start_timeout, patience),
                share=NodeShare(gpus=float(config.policy.device != "cpu")),
            )
            for number in range(int(config.plan.rollout_workers or 0))
        ]
        return Workers(board, handles, config.staleness if config.mode == "async" else 0, sizes.segments)

    def offer(self, actor: Actor) -> None:
        """Publish what has been learned, and let the workers begin what it allows."""
        learned, exploration = publish(actor, actor.version), actor.exploration()
        self._board.publish(actor.version, Published(learned, exploration))
        if self._everything is None:
            self._everything = publish(actor, actor.version, everything=True)
        self.dispatcher.offer(actor.version, Beginning(self._everything, Published(learned, exploration)))

    def load(self, version: int, state: Mapping[str, Array], learned: Mapping[str, Array]) -> None:
        """Go on with what a version learns from, from a `SharedExperience.state`, and what curricula have learned."""
        parts = [_part(state, f"worker/{worker}/") | dict(learned) for worker in range(self._count)]
        self.dispatcher.load(version, parts)

    def close(self) -> None:
        """End them."""
        self.dispatcher.close()
        self._board.close()


@dataclass(frozen=True)
class Sizes:
    """What an algorithm wants of a rollout.

    Attributes:
        decisions: T, of a segment.
        group_size: episodes that start alike.
        fresh: whether rollouts hold whole episodes.
        segments: rollouts that a version learns from, one after another.
    """

    decisions: int
    group_size: int
    fresh: bool
    segments: int = 1


def rollout_worker(
    config: TrainConfig, blueprint: build.Blueprint, sizes: Sizes, number: int, board: BoardReader
) -> RolloutWorker:
    """The rollout worker `number` of a run, whose weights are still to come."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    kind = SimulatorKind.of(config.sim)
    actor = blueprint.build()
    actor.version = -1
    envs = config.sim.num_envs // int(config.plan.rollout_workers or 1)
    curriculum = build.curriculum(config.episodes, kind.spec)
    sampler = EpisodeSampler(kind.spec, config.seed, group_size=sizes.group_size, curriculum=curriculum)
    handles = make_handles(kind, config.plan, envs, f"worker {number}'s", runtimes.of(config))
    collector = Collector(
        handles,
        kind.spec,
        envs // config.plan.slices,
        sampler,
        Rollout.allocate(actor, sizes.decisions, envs),
        config.seed,
        env_offset=number * envs,
        env_total=config.sim.num_envs,
        fresh=sizes.fresh,
        order=config.plan.order,
    )
    return RolloutWorker(PolicyWorker(actor), board, collector, sampler, handles)


def _part(state: Mapping[str, Array], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
