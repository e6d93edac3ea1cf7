"""Where a rank's rollouts come from: it collects them itself, or rollout workers do, and rank 0 shares them out.

Rollouts are numbered as the weights' versions are: number i is what version i learns from. Where that comes in S
segments, number i·S is the first of them, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.policy import Actor, Policy
from embodied_rl.interfaces.sim import Array
from embodied_rl.ranks.collective import Ranks
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import RemotePolicy
from embodied_rl.rollout.timeline import WAIT, Timeline
from embodied_rl.training.collecting import Collecting
from embodied_rl.training.dispatch import Dispatcher
from embodied_rl.training.metrics import CollectorReport, join_reports
from embodied_rl.training.rollout_worker import CollectedRollout
from embodied_rl.training.shares import divide_anew, fill_rollout
from embodied_rl.training.worker_pool import RolloutWorkers


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

    def shares(self) -> list[CollectorReport]:
        """What was done for the present version, by those who collected and whose report this rank has."""
        ...

    def figures(self) -> dict[str, float]:
        """What there is to say of how episodes are drawn."""
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
        collecting: of the rank.
    """

    def __init__(self, policy: Policy, collecting: Collecting) -> None:
        self._policy, self._collecting, self._collector = policy, collecting, collecting.collector
        self.timeline = self._collector.timeline

    def offer(self) -> None:
        """Nothing has to be sent where the actor itself infers."""
        if isinstance(self._policy, RemotePolicy):
            self._policy.refresh()

    def collect(self) -> Rollout:
        rollout = self._collector.collect(self._policy)
        self.timeline = self._collector.timeline
        return rollout

    def shares(self) -> list[CollectorReport]:
        restarts = self._policy.restarts if isinstance(self._policy, RemotePolicy) else 0
        return [CollectorReport.of_rollout(self._collector, self._collector.rollout, restarts)]

    def figures(self) -> dict[str, float]:
        return self._collecting.sampler.figures()

    def tell(self, finished: Sequence[EpisodeRecord]) -> None:
        self._collecting.sampler.update(finished)

    def state(self) -> dict[str, Array]:
        return self._collector.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._collector.load(dict(state))

    def close(self) -> None:
        self._collecting.close()
        if isinstance(self._policy, RemotePolicy):
            self._policy.handle.close()


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
        workers: RolloutWorkers | None,
    ) -> None:
        self.timeline = Timeline()
        self._actor, self._ranks, self._rollouts = actor, ranks, rollouts
        self._sampler, self._workers = sampler, workers
        self._made: list[list[CollectedRollout]] = []
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
        fill_rollout(rollout, arrays)
        rollout.finished = list(finished)
        self.timeline.finish()
        self._segment = (self._segment + 1) % len(self._rollouts)
        return rollout

    def _taken(self, dispatcher: Dispatcher) -> list[tuple[dict[str, Array], tuple[EpisodeRecord, ...]]]:
        """What each rank gets of the next segment."""
        made = dispatcher.take(self._actor.version * len(self._rollouts) + self._segment)
        self._made.append(made)
        shares = divide_anew([part.arrays for part in made], self._ranks.size)
        ended = [part.share.finished for part in made] if self._ranks.size == len(made) else None
        return [(share, ended[rank] if ended else ()) for rank, share in enumerate(shares)]

    def shares(self) -> list[CollectorReport]:
        if self._workers is None:
            return []
        first, *others = (join_reports([part.share for part in parts]) for parts in zip(*self._made, strict=True))
        return [replace(first, restarts=first.restarts + self._workers.dispatcher.restarts), *others]

    def figures(self) -> dict[str, float]:
        return self._sampler.figures()

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
