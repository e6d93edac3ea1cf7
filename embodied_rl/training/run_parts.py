"""Construction of all parts of one rank of a run from a configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from embodied_rl.actors.learning import checkpoint, sharded
from embodied_rl.assembly import build
from embodied_rl.config import assets
from embodied_rl.interfaces.algorithm import Algorithm, Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.reward.distill import Distiller
from embodied_rl.judge.reward.run_scoring import list_extra_columns, make_distiller, make_scoring
from embodied_rl.rollout.audit import make_audit_factory
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.episode_sampler import name_tasks
from embodied_rl.rollout.replay.experience import Replay, list_stored, make_storage_factory, open_offline
from embodied_rl.rollout.replay.followed_storage import FollowedStorage, follow_storage
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.rollout.writer import WriterFactory
from embodied_rl.runs import audit_file
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.processes.handle import Handle, NodeShare, Runtime
from embodied_rl.runtime.processes.process import keep_freed_memory
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.simulators.kind import SimulatorKind, make_handles
from embodied_rl.schema import TrainConfig
from embodied_rl.training.rollout_worker import RolloutWork, make_collector, make_sampler
from embodied_rl.training.sources import Experience, NoCollection, OwnExperience, SharedExperience
from embodied_rl.training.worker_pool import RolloutWorkers

EVALUATION_ENVS = 32
"""Environments of an evaluation on each rank, at most."""


@dataclass
class Parts:
    """The parts of one rank of a run.

    Attributes:
        config, folder, ranks: of the run.
        kind: of the run's simulators.
        needs: of the run's algorithm.
        actor: the policy that learns. kept: what its traces store of an observation.
        sharding: how its network is spread over ranks; None where each rank has the whole network.
        algorithm: the learning algorithm.
        experience: the source of rollouts. segments: number of rollouts that each version learns from.
        replay: the stored experience, for an algorithm that learns from it; else None.
        evaluators: simulators of evaluations. distiller: the head that scores in a judge's place, if there is one.
        audit: of what this rank executes on a robot itself, in evaluations; None without a robot.
        resumed: the checkpoint that the run continues from, until it is restored; None for a new run.
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
    distiller: Distiller | None
    experience: Experience
    segments: int
    replay: Replay | None
    evaluators: Sequence[Handle]
    audit: audit_file.AuditFile | None
    resumed: checkpoint.Loaded | None

    def close(self) -> None:
        """End all processes of this rank and leave the group of ranks."""
        self.experience.close()
        for handle in self.evaluators:
            handle.close()
        if self.audit is not None:
            self.audit.close()
        sharded.leave_group()


def assemble_parts(
    config: TrainConfig, folder: RunFolder, ranks: Ranks, writers: Sequence[WriterFactory] = ()
) -> Parts:
    """Build the parts of one rank of a run; all ranks must call this together.

    Args:
        config: of the run; its plan has been resolved.
        ranks: the ranks that learn together.
        writers: factories of writers in each collecting process, which receive the same data as its rollout.

    Raises:
        UserError: some parts do not fit each other.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    kind, runtime = SimulatorKind.find(config.sim), runtimes.select_runtime(config)
    method = build.find_method(config.algo)
    begun = config.resume is not None and checkpoint.list_steps(folder.checkpoints)
    resumed, node = checkpoint.load_latest_checkpoint(folder.checkpoints) if begun else None, config.policy
    if resumed is not None:  # from its own checkpoint, even if its initial policy file is gone
        node = replace(node, checkpoint=str(folder.checkpoints / f"{resumed[0]:08d}" / build.POLICY))
    actor = build.build_actor(node, config.algo.sampler, kind.spec, method.needs)
    sharding = sharded.shard_network(actor.network, config.plan.learner, ranks)
    algorithm = method.build(actor, ranks, config.seed, config.train.iterations)
    segments = config.segments if config.mode == "stream" else int(config.replay.collect)
    decisions = count_decisions(config, method.needs, kind.spec, actor)
    scoring = make_scoring(config, kind.spec, method.needs, decisions, folder)
    extras = list_extra_columns(config.reward, kind.spec)
    envs, followed = config.sim.num_envs // ranks.size, list[FollowedStorage]()
    if method.needs.learns_from == "replay":
        each, root = config.sim.num_envs // config.plan.collectors, Path(config.replay.root or folder.path / "replay")
        layout = make_replay_format(config, kind.spec, actor, decisions, each, method.needs.stores)
        writers = (*writers, make_storage_factory(layout, root, keep=kind.limits.robot))
        followed = follow_workers(config, layout, root, ranks)
    audit: audit_file.AuditFile | None = None
    if kind.limits.robot:
        audit = audit_file.AuditFile(folder.path / audit_file.FOLDER / f"rank_{ranks.rank}.jsonl")
        writers = (*writers, make_audit_factory(folder.path / audit_file.FOLDER))
    explore = method.needs.explores_with(actor)
    work = RolloutWork(method.needs, explore, decisions, segments, (*scoring, *writers), extras)
    kept = actor.keep_within(work.decisions * envs * segments, config.policy.cache_gigabytes * 1e9)
    evaluators: list[Handle] = []
    if not (kind.limits.one_robot and config.replay.collect):  # they run while the training simulators are idle
        envs_each = count_evaluation_envs(config, ranks)
        evaluators = make_handles(
            kind.without_human(), config.plan, envs_each, "evaluation", runtime, NodeShare(cpus=0.0)
        )
    experience: Experience = NoCollection()
    if config.replay.collect:
        rollouts = Rollout.allocate(actor, work.decisions * segments, envs, extras=extras).segments(segments)
        blueprint = build.Blueprint.of_actor(actor, node, config.algo.sampler, kind.spec)
        experience = make_experience(config, kind, work, actor, ranks, rollouts, blueprint, runtime, followed)
    if kind.limits.one_robot and not isinstance(experience, NoCollection):
        evaluators = experience.share_simulators(kind.spec)
    replay = None
    if method.needs.learns_from == "replay":
        own = [*experience.storages] or [ReplayStorage(layout)]
        replay = open_replay(config, kind.spec, own, ranks, clear=resumed is None and not followed)
    distiller = make_distiller(config, kind.spec, method.needs, ranks)
    return Parts(
        config, folder, ranks, kind, method.needs, actor, kept, sharding, algorithm, distiller, experience, segments,
        replay, evaluators, audit, resumed,
    )  # fmt: skip


def count_decisions(config: TrainConfig, needs: Needs, spec: SimulatorSpec, actor: Actor) -> int:
    """Return T, the decisions of a segment: for a method that needs whole episodes, those of the longest episode."""
    each = config.train.decisions // (config.segments if config.mode == "stream" else 1)
    return needs.count_decisions(each, spec.horizon, actor.embodiment.executed)


def make_replay_format(
    config: TrainConfig, spec: SimulatorSpec, actor: Actor, decisions: int, envs: int, stores: Sequence[str] = ()
) -> ReplayFormat:
    """Return the format of the storage of a collector with `envs` environments and T decisions of each in a rollout.

    `stores` are the entries of the actor's traces that it keeps.

    Each track holds the longest episode at least, and the rows that an exact resume removes: those of the iterations
    between two checkpoints and, with mode=async, of the rollouts that workers collect ahead. While iteration i learns,
    they may begin rollouts up to i + staleness; before the next checkpoint is complete, one more. A decision needs up
    to two rows, where the time limit ends an episode.
    """
    executed, longest = actor.embodiment.executed, -(-spec.horizon // actor.embodiment.executed)
    capacity = max(config.replay.capacity // config.sim.num_envs, 2 * longest + 2)
    ahead = config.staleness + 1 if config.mode == "async" else 0
    spare = 2 * decisions * (config.checkpoint.every + ahead)
    extra = list_stored(actor, stores)
    return ReplayFormat.of_simulator(spec, envs, capacity, executed, spare=spare, extra=extra)


def follow_workers(config: TrainConfig, layout: ReplayFormat, root: Path, ranks: Ranks) -> list[FollowedStorage]:
    """Open the storages of a rank's share of the rollout workers, which have not started; none if ranks collect."""
    share = int(config.plan.rollout_workers or 0) // ranks.size
    followed = [follow_storage(layout, root, ranks.rank * share + number) for number in range(share)]
    ranks.barrier()
    return followed


def open_replay(
    config: TrainConfig, spec: SimulatorSpec, own: Sequence[ReplayStorage], ranks: Ranks, clear: bool
) -> Replay:
    """Return the stored experience of a rank, whose rollouts are written to the storages `own`.

    With `clear` they are emptied: a run without a checkpoint may have been killed before its first one.
    """
    for storage in own if clear else ():
        storage.clear()
    offline = () if config.replay.preload is None else open_offline(assets.resolve_path(config.replay.preload), spec)
    terminal = config.train.time_limit == "terminal"
    tasks = name_tasks(spec, config.train.task)
    return Replay(own[0], offline, ranks.rank, ranks.size, terminal, further=tuple(own[1:]), tasks=tasks)


def count_evaluation_envs(config: TrainConfig, ranks: Ranks) -> int:
    """Return the number of evaluation environments on each rank, a multiple of the number of simulators.

    There are at most as many as in training: some simulators need hundreds of megabytes for each.
    """
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
    followed: Sequence[FollowedStorage] = (),
) -> Experience:
    """Build the source of this rank's rollouts: the rank itself, or rollout workers, which rank 0 starts.

    `followed` are the replay storages of this rank's share of the workers.
    """
    if config.plan.rollout_workers:
        workers = RolloutWorkers.start(config, runtime, blueprint, work) if ranks.rank == 0 else None
        sampler = make_sampler(config, kind, work.needs)
        return SharedExperience(actor, ranks, rollouts, sampler, workers, followed)
    collecting = make_collector(config, kind, work, rollouts[0], runtime, ranks.rank, "training")
    return OwnExperience(build.build_policy(actor, blueprint, config.plan, runtime), collecting)
