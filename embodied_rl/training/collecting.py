"""Construction of the collector of a rank or of a rollout worker."""

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.writer import Writer, WriterFactory
from embodied_rl.runtime.processes.base import Runtime
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.simulators.kind import SimulatorKind, make_handles
from embodied_rl.schema import TrainConfig


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

    def close(self) -> None:
        """Close the simulators and the writers."""
        for handle in self.handles:
            handle.close()
        for writer in self.writers:
            writer.close()


def make_sampler(config: TrainConfig, kind: SimulatorKind, needs: Needs) -> EpisodeSampler:
    """Return the episode sampler (index → episode) for all environments of a run."""
    curriculum = build.build_curriculum(config.curriculum, kind.spec)
    return EpisodeSampler(kind.spec, config.seed, group_size=needs.group_size, curriculum=curriculum)


def make_collector(
    config: TrainConfig,
    kind: SimulatorKind,
    needs: Needs,
    rollout: Rollout,
    runtime: Runtime,
    *,
    number: int,
    purpose: str,
    writers: Sequence[WriterFactory] = (),
) -> Collecting:
    """Build a collector with its simulators.

    Args:
        config: of the run.
        kind: of the run's simulators.
        needs: of the run's algorithm.
        rollout: the rollout that it fills: T × the environments of this collector.
        runtime: starts the simulators' processes.
        number: of the collector among all collectors of the run.
        purpose: for the names of the simulators.
        writers: factories of writers that receive the same data as the rollout.
    """
    sampler, envs = make_sampler(config, kind, needs), rollout.num_envs
    handles = make_handles(kind, config.plan, envs, purpose, runtime)
    made = [factory.make(number) for factory in writers]
    collector = Collector(
        handles,
        kind.spec,
        envs // config.plan.slices,
        sampler,
        rollout,
        config.seed,
        env_offset=number * envs,
        env_total=config.sim.num_envs,
        fresh=needs.fresh_episodes,
        order=config.plan.order,
        writers=made,
    )
    return Collecting(collector, sampler, handles, made)
