"""The one function that makes a collector of a run, wherever it collects: on a rank, or in a rollout worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from embodied_rl.assembly import build
from embodied_rl.config.schema import TrainConfig
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.processes.base import Runtime
from embodied_rl.processes.handle import Handle
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.writer import Writer
from embodied_rl.simulators.kind import SimulatorKind, make_handles


@dataclass(frozen=True)
class WriterFactory:
    """Makes a writer in each process that collects: a replay storage, say, or what asks for scores.

    Attributes:
        path: "module:function", called with `options` and the number of the collector among all.
        options: picklable.
    """

    path: str
    options: Any = None

    def make(self, number: int) -> Writer:
        """The writer of one collector."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)(self.options, number)


@dataclass(frozen=True)
class Collecting:
    """A collector and what it is made of.

    Attributes:
        collector: with its writers.
        sampler: of its episodes.
        handles: of its simulators, to be closed by whoever made it.
        writers: beside the rollout.
    """

    collector: Collector
    sampler: EpisodeSampler
    handles: Sequence[Handle]
    writers: Sequence[Writer]

    def close(self) -> None:
        """End the simulators."""
        for handle in self.handles:
            handle.close()


def make_sampler(config: TrainConfig, kind: SimulatorKind, needs: Needs) -> EpisodeSampler:
    """Index → episode, for all environments of a run."""
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
    """A collector with its simulators.

    Args:
        config: of the run.
        kind: of its simulators.
        needs: of its algorithm.
        rollout: that it fills: T × the environments of this collector.
        runtime: starts the simulators' processes.
        number: of the collector among all of the run.
        purpose: for the names of the simulators.
        writers: told everything that the rollout is told.
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
