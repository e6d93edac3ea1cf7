"""Everything a training run is made of, on one rank: build it, step it, evaluate it, save it, continue it."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from embodied_rl import build, figures, plugins, trace
from embodied_rl.actors.checkpoint import load_actor, save_actor
from embodied_rl.evaluate.protocol import EpisodeResult, enumerate_episodes, evaluate
from embodied_rl.evaluate.statistics import as_good
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.learning import checkpoint, sharded, shards
from embodied_rl.roles import RemotePolicy
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collect import Collector
from embodied_rl.rollout.episodes import EpisodeSampler, Purpose
from embodied_rl.rollout.timeline import LEARN, Timeline
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.collective import Ranks
from embodied_rl.runtime.memory import keep_freed_memory
from embodied_rl.schema import PolicyNode, TrainConfig
from embodied_rl.simulators.kind import SimulatorKind, make_handles

EVALUATION_ENVS = 32
"""Environments of an evaluation on each rank, at most."""


class Trainer:
    """One rank of a run."""

    def __init__(self, config: TrainConfig, folder: RunFolder, ranks: Ranks) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        self.config, self.folder, self.ranks = config, folder, ranks
        self.kind = SimulatorKind.of(config.sim)
        self.spec: SimulatorSpec = self.kind.spec
        algorithm, options = plugins.configure("algorithms", config.algo, "algo")
        self._resumed = self._checkpoint()
        parts = (self._policy(), config.algo.sampler, self.spec, algorithm.needs_critic)
        self.actor = build.actor(*parts)
        self.sharding = sharded.spread(self.actor.backbone, config.plan.learner, ranks)
        self.algorithm = algorithm(options, self.actor, ranks, config.seed, config.train.iterations)
        self._episodes = self._sampler()
        envs = config.sim.num_envs // ranks.size
        self.kept = build.keep(self.actor, config.policy, self._decisions() * envs)
        self.policy = build.policy(self.actor, config.plan, *parts)
        self._handles = make_handles(self.kind, config.plan, envs, "training")
        self._evaluators = make_handles(self.kind, config.plan, self._evaluation_envs(), "evaluation")
        self.collector = Collector(
            self._handles,
            self.spec,
            envs // config.plan.slices,
            self._episodes,
            Rollout.allocate(self.actor, self._decisions(), envs),
            config.seed,
            env_offset=ranks.rank * envs,
            env_total=config.sim.num_envs,
            fresh=self.algorithm.fresh_episodes,
            order=config.plan.order,
        )
        self._cores = int(provenance.hardware()["cores"])
        self.timelines: list[Timeline] = []
        self.totals = figures.Totals()
        self.iteration = 0

    def _checkpoint(self) -> checkpoint.Loaded | None:
        """The newest whole checkpoint of a run that continues, if it had come to one."""
        begun = self.config.resume is not None and checkpoint.steps(self.folder.checkpoints)
        return checkpoint.load_latest(self.folder.checkpoints) if begun else None

    def _policy(self) -> PolicyNode:
        """Where the network comes from: a run that continues has it, even where what it began from is gone."""
        if self._resumed is None:
            return self.config.policy
        file = self.folder.checkpoints / f"{self._resumed[0]:08d}" / build.POLICY
        return replace(self.config.policy, checkpoint=str(file))

    def _sampler(self) -> EpisodeSampler:
        curriculum, size = build.curriculum(self.config.episodes, self.spec), self.algorithm.group_size
        return EpisodeSampler(self.spec, self.config.seed, group_size=size, curriculum=curriculum)

    def _decisions(self) -> int:
        """T; a method that needs whole episodes gets as many decisions as the longest takes."""
        if not self.algorithm.fresh_episodes:
            return self.config.train.decisions
        return -(-self.spec.horizon // self.actor.embodiment.executed)

    def _evaluation_envs(self) -> int:
        """As many as train, at most: some simulators take hundreds of megabytes for each."""
        parts = self.config.plan.parts // self.ranks.size
        most = min(EVALUATION_ENVS, self.config.sim.num_envs // self.ranks.size)
        return most // parts * parts or parts

    def step(self) -> dict[str, float]:
        """One iteration: collect, learn; returns figures for the log, the same on every rank but for times."""
        began = time.perf_counter()
        self.algorithm.prepare(self.iteration)
        if isinstance(self.policy, RemotePolicy):
            self.policy.refresh()
        rollout = self.collector.collect(self.policy)
        if self.config.train.time_limit == "terminal":
            rollout.end_at_time_limit()
        collected = time.perf_counter()
        with self.collector.timeline.record(LEARN, int(rollout.valid.sum())):
            update = self._means(self.algorithm.update(rollout, self.iteration))
        self.actor.version += 1
        self.iteration += 1
        now = time.perf_counter()
        seconds = {"iteration": now - began, "rollout": collected - began, "update": now - collected}
        return self._figures(rollout, seconds) | {f"update/{name}": value for name, value in update.items()}

    def _means(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Over ranks, each of which has figures of its own rows."""
        values = torch.tensor([*figures.values()], dtype=torch.float64)
        self.ranks.sum_([values])
        return dict(zip(figures, (values / self.ranks.size).tolist(), strict=True))

    def _figures(self, rollout: Rollout, seconds: Mapping[str, float]) -> dict[str, float]:
        restarts = self.policy.restarts if isinstance(self.policy, RemotePolicy) else 0
        shares = self.ranks.gather(figures.Share.of(self.collector, rollout, restarts))
        self.timelines = [share.timeline for share in shares]
        inline, finished = self.config.plan.allocation == "colocated", figures.finished(shares)
        drawn_by = self._episodes.figures()  # of this rollout; what it taught counts for the next
        self._episodes.update(finished)
        return {
            **figures.counts(shares, self.totals),
            **figures.times(shares, seconds, self.totals, cores=self._cores, inline=inline),
            **drawn_by,
            **figures.outcomes(finished, self.spec),
        }

    def evaluate(self, episodes: int, purpose: Purpose) -> list[EpisodeResult]:
        """The deployed policy on enumerated episodes, shared among ranks; the whole list on every rank.

        Choosing a checkpoint is part of training, and of the time it takes.
        """
        began = time.perf_counter()
        listed = enumerate_episodes(self.spec, "eval", episodes, purpose=purpose)
        mine = listed[self.ranks.rank :: self.ranks.size]
        envs = self._evaluation_envs() // len(self._evaluators)
        executed = self.actor.embodiment.executed
        results = evaluate(self.actor, self._evaluators, self.spec, mine, 0, envs, executed)
        everything = [result for part in self.ranks.gather(results) for result in part]
        if purpose == "select":
            self.totals.seconds += time.perf_counter() - began
        return sorted(everything, key=lambda result: result.index)

    def save(self) -> None:
        """Write a checkpoint, with no slice in flight; the time it takes counts from the next one on."""
        began = time.perf_counter()
        state = {f"collector/{name}": torch.as_tensor(value) for name, value in self.collector.state().items()}
        state |= {f"algorithm/{name}": value for name, value in self.algorithm.state().items()}
        gathered = self.ranks.gather(state)
        spread = shards.write(self.folder.checkpoints, self.sharding, self.ranks)
        if self.ranks.rank == 0:
            tensors = {f"rank/{rank}/{name}": part[name] for rank, part in enumerate(gathered) for name in part}
            metadata = {"version": self.actor.version, "ranks": self.ranks.size, "totals": asdict(self.totals)}
            folder, keep = self.folder.checkpoints, self.config.checkpoint.keep
            checkpoint.save(folder, self.iteration, tensors, metadata, keep, {build.POLICY: self.export, **spread})
            self._point_at_best()
            if self.timelines:
                trace.keep(self.folder.path, self.iteration, self.timelines)
        self.ranks.barrier()
        self.totals.seconds += time.perf_counter() - began

    def note_evaluation(self, success: float, episodes: int) -> None:
        """Choose this iteration, unless an earlier one was better by more than luck; `save` marks its checkpoint."""
        self.totals.best = max(self.totals.best, success)
        if as_good(success, self.totals.best, episodes):
            self.totals.best_iteration = self.iteration

    def _point_at_best(self) -> None:
        if self.totals.best_iteration in checkpoint.steps(self.folder.checkpoints):
            checkpoint.mark_best(self.folder.checkpoints, self.totals.best_iteration)

    def restore(self) -> None:
        """Continue from the newest whole checkpoint, bit for bit."""
        assert self._resumed is not None, "only a run that continues has something to restore"
        (self.iteration, tensors, metadata), self._resumed = self._resumed, None
        if metadata["ranks"] != self.ranks.size:
            raise ValueError(
                f"{self.folder.path} was run on {metadata['ranks']} ranks and continues exactly only on as many: "
                f"set plan.ranks={metadata['ranks']}."
            )
        load_actor(self.folder.checkpoints / f"{self.iteration:08d}" / build.POLICY, self.actor)
        mine = _part(tensors, f"rank/{self.ranks.rank}/")
        self.algorithm.load(_part(mine, "algorithm/"))
        shards.read(self.folder.checkpoints / f"{self.iteration:08d}", self.sharding)
        self.collector.load({name: value.numpy() for name, value in _part(mine, "collector/").items()})
        self.actor.version = metadata["version"]
        self.totals = figures.Totals(**metadata["totals"])
        if self.ranks.rank == 0:
            self._point_at_best()  # a kill may have come between writing a checkpoint and marking it

    def load_best(self) -> None:
        """Take the weights of the best checkpoint, or stay as it is where none was evaluated."""
        if self.totals.best_iteration >= 0:
            load_actor(checkpoint.resolve(self.folder.checkpoints / "best") / build.POLICY, self.actor)

    def export(self, path: Path) -> None:
        """Write the policy alone, as it is deployed."""
        extra = build.policy_extra(self.config.sim, self.config.algo.sampler)
        save_actor(path, self.actor, self.config.policy.name, asdict(self.actor.backbone.config), extra=extra)

    def close(self) -> None:
        """End the simulators."""
        policy = [self.policy.handle] if isinstance(self.policy, RemotePolicy) else []
        for handle in (*self._handles, *self._evaluators, *policy):
            handle.close()
        sharded.leave()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
