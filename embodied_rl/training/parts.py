"""The assembly step: from a configuration to everything that one rank of a run is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from embodied_rl.assembly import build
from embodied_rl.config.schema import PolicyNode, TrainConfig
from embodied_rl.interfaces.algorithm import Algorithm, Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.learning import checkpoint, sharded
from embodied_rl.processes.allocator import keep_freed_memory
from embodied_rl.processes.base import NodeShare, Runtime
from embodied_rl.processes.handle import Handle
from embodied_rl.ranks.collective import Ranks
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime import selection as runtimes
from embodied_rl.simulators.kind import SimulatorKind, make_handles
from embodied_rl.training.collecting import WriterFactory, make_collector, make_sampler
from embodied_rl.training.sources import Experience, OwnExperience, SharedExperience
from embodied_rl.training.worker_pool import RolloutWork, RolloutWorkers

EVALUATION_ENVS = 32
"""Environments of an evaluation on each rank, at most."""


@dataclass
class Parts:
    """One rank of a run.

    Attributes:
        config, folder, ranks: of the run.
        kind: of its simulators.
        needs: of its algorithm.
        actor: what learns. kept: what its traces hold of an observation.
        sharding: how its network is spread over ranks; None where each has it whole.
        algorithm: learns.
        experience: where rollouts come from. segments: in how many parts those of one version come.
        evaluators: simulators of evaluations.
        resumed: the checkpoint that the run continues from, until it is restored; None for a run that begins.
    """

    config: TrainConfig
    folder: RunFolder
    ranks: Ranks
    kind: SimulatorKind
    needs: Needs
    actor: Actor
    kept: str
    sharding: sharded.Sharding | None
    algorithm: Algorithm
    experience: Experience
    segments: int
    evaluators: Sequence[Handle]
    resumed: checkpoint.Loaded | None

    def close(self) -> None:
        """End every process, and leave the others."""
        self.experience.close()
        for handle in self.evaluators:
            handle.close()
        sharded.leave_group()


def assemble_parts(
    config: TrainConfig, folder: RunFolder, ranks: Ranks, writers: Sequence[WriterFactory] = ()
) -> Parts:
    """Build one rank of a run; all ranks do so together.

    Args:
        config: of the run; its plan has been resolved.
        folder: of the run.
        ranks: that learn together.
        writers: made in each process that collects, and told everything that its rollout is told.

    Raises:
        UserError: parts that do not fit each other.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    kind, runtime, method = (
        SimulatorKind.find(config.sim),
        runtimes.select_runtime(config),
        build.find_method(config.algo),
    )
    resumed = load_checkpoint(config, folder)
    node = find_policy_node(config, folder, resumed)
    actor = build.build_actor(node, config.algo.sampler, kind.spec, method.needs.critic)
    sharding = sharded.shard_network(actor.network, config.plan.learner, ranks)
    algorithm = method.build(actor, ranks, config.seed, config.train.iterations)
    segments = config.segments if config.mode == "stream" else 1
    work = RolloutWork(method.needs, count_decisions(config, method.needs, kind, actor), segments, tuple(writers))
    envs = config.sim.num_envs // ranks.size
    kept = actor.keep_within(work.decisions * envs * segments, config.policy.cache_gigabytes * 1e9)
    evaluators = make_evaluators(config, kind, runtime, ranks)
    rollouts = Rollout.allocate(actor, work.decisions * segments, envs).segments(segments)
    blueprint = build.Blueprint.of_actor(actor, node, config.algo.sampler, kind.spec)
    experience = make_experience(config, kind, work, actor, ranks, rollouts, blueprint, runtime)
    return Parts(
        config, folder, ranks, kind, method.needs, actor, kept, sharding, algorithm, experience, segments, evaluators,
        resumed,
    )  # fmt: skip


def load_checkpoint(config: TrainConfig, folder: RunFolder) -> checkpoint.Loaded | None:
    """The newest whole checkpoint of a run that continues, if it had come to one."""
    begun = config.resume is not None and checkpoint.list_steps(folder.checkpoints)
    return checkpoint.load_latest_checkpoint(folder.checkpoints) if begun else None


def find_policy_node(config: TrainConfig, folder: RunFolder, resumed: checkpoint.Loaded | None) -> PolicyNode:
    """Where the network comes from: a run that continues has it, even where what it began from is gone."""
    if resumed is None:
        return config.policy
    return replace(config.policy, checkpoint=str(folder.checkpoints / f"{resumed[0]:08d}" / build.POLICY))


def count_decisions(config: TrainConfig, needs: Needs, kind: SimulatorKind, actor: Actor) -> int:
    """T of a segment; a method that needs whole episodes gets as many decisions as the longest takes."""
    if needs.fresh_episodes:
        return -(-kind.spec.horizon // actor.embodiment.executed)
    return config.train.decisions // (config.segments if config.mode == "stream" else 1)


def make_evaluators(config: TrainConfig, kind: SimulatorKind, runtime: Runtime, ranks: Ranks) -> list[Handle]:
    """Simulators of evaluations, which work while those of training rest.

    With as many environments as train, at most: some simulators take hundreds of megabytes for each.
    """
    return make_handles(
        kind, config.plan, count_evaluation_envs(config, ranks), "evaluation", runtime, NodeShare(cpus=0.0)
    )


def count_evaluation_envs(config: TrainConfig, ranks: Ranks) -> int:
    """Environments of an evaluation on each rank, the same number for each simulator."""
    parts = config.plan.simulators
    most = min(EVALUATION_ENVS, config.sim.num_envs // ranks.size)
    return most // parts * parts or parts


def make_experience(
    config: TrainConfig,
    kind: SimulatorKind,
    work: RolloutWork,
    actor: Actor,
    ranks: Ranks,
    rollouts: Sequence[Rollout],
    blueprint: build.Blueprint,
    runtime: Runtime,
) -> Experience:
    """Where this rank's rollouts come from: itself, or rollout workers, which rank 0 starts."""
    if config.plan.rollout_workers:
        workers = RolloutWorkers.start(config, runtime, blueprint, work) if ranks.rank == 0 else None
        return SharedExperience(actor, ranks, rollouts, make_sampler(config, kind, work.needs), workers)
    collecting = make_collector(
        config, kind, work.needs, rollouts[0], runtime, number=ranks.rank, purpose="training", writers=work.writers
    )
    return OwnExperience(build.build_policy(actor, blueprint, config.plan, runtime), collecting)
