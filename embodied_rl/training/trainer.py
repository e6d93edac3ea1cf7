"""Everything a training run is made of, on one rank: build it, step it, evaluate it, save it, continue it."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from embodied_rl.assembly import build
from embodied_rl.checkpoints.native import load_actor, save_actor
from embodied_rl.config import plugins
from embodied_rl.config.schema import PolicyNode, TrainConfig
from embodied_rl.evaluate.protocol import EpisodeResult, enumerate_episodes, evaluate
from embodied_rl.evaluate.statistics import as_good
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.learning import checkpoint, sharded, shards
from embodied_rl.processes.base import Share
from embodied_rl.processes.memory import keep_freed_memory
from embodied_rl.processes.process import resident_bytes
from embodied_rl.ranks.collective import Ranks
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collect import Collector
from embodied_rl.rollout.episodes import EpisodeSampler, Purpose
from embodied_rl.rollout.staleness import mask_older, staleness
from embodied_rl.rollout.timeline import LEARN, RANK, Span, Timeline
from embodied_rl.rollout.timeline_file import keep_timelines
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime import select as runtimes
from embodied_rl.simulators.kind import SimulatorKind, make_handles
from embodied_rl.training import metrics as figures
from embodied_rl.training.sources import Experience, OwnExperience, SharedExperience, Sizes, Workers

EVALUATION_ENVS = 32
"""Environments of an evaluation on each rank, at most."""


class Trainer:
    """One rank of a run."""

    def __init__(self, config: TrainConfig, folder: RunFolder, ranks: Ranks) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        self.config, self.folder, self.ranks = config, folder, ranks
        self._runtime = runtimes.of(config)
        self.kind = SimulatorKind.of(config.sim)
        self.spec: SimulatorSpec = self.kind.spec
        algorithm, options = plugins.configure("algorithms", config.algo, "algo")
        self._resumed = self._checkpoint()
        node = self._policy()
        self.actor = build.actor(node, config.algo.sampler, self.spec, algorithm.needs_critic)
        self.sharding = sharded.spread(self.actor.backbone, config.plan.learner, ranks)
        self.algorithm = algorithm(options, self.actor, ranks, config.seed, config.train.iterations)
        self._episodes = self._sampler()
        self._segments = config.segments if config.mode == "stream" else 1
        self._bound = config.staleness if config.mode == "async" else 0
        envs = config.sim.num_envs // ranks.size
        self.kept = build.keep(self.actor, config.policy, self._decisions() * envs * self._segments)
        least = Share(cpus=0.0)  # they work while those of training rest
        self._evaluators = make_handles(
            self.kind, config.plan, self._evaluation_envs(), "evaluation", self._runtime, least
        )
        rollouts = Rollout.allocate(self.actor, self._decisions() * self._segments, envs).segments(self._segments)
        self._blueprint = build.Blueprint.of(self.actor, node, config.algo.sampler, self.spec)
        self._experience = self._shared(rollouts) if config.plan.rollout_workers else self._own(rollouts[0])
        self._offered = -1
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

    def _own(self, rollout: Rollout) -> OwnExperience:
        """This rank collects."""
        config = self.config
        handles = make_handles(self.kind, config.plan, rollout.num_envs, "training", self._runtime)
        collector = Collector(
            handles,
            self.spec,
            rollout.num_envs // config.plan.slices,
            self._episodes,
            rollout,
            config.seed,
            env_offset=self.ranks.rank * rollout.num_envs,
            env_total=config.sim.num_envs,
            fresh=self.algorithm.fresh_episodes,
            order=config.plan.order,
        )
        policy = build.policy(self.actor, self._blueprint, config.plan, self._runtime)
        return OwnExperience(policy, collector, self._episodes, handles)

    def _shared(self, rollouts: Sequence[Rollout]) -> SharedExperience:
        """Rollout workers collect."""
        workers, method = None, self.algorithm
        if self.ranks.rank == 0:
            sizes = Sizes(rollouts[0].decisions, method.group_size, method.fresh_episodes, len(rollouts))
            workers = Workers.start(self.config, self._runtime, self._blueprint, sizes)
        return SharedExperience(self.actor, self.ranks, rollouts, self._episodes, workers)

    def _decisions(self) -> int:
        """T of a segment; a method that needs whole episodes gets as many decisions as the longest takes."""
        if not self.algorithm.fresh_episodes:
            return self.config.train.decisions // self._segments
        return -(-self.spec.horizon // self.actor.embodiment.executed)

    def _evaluation_envs(self) -> int:
        """As many as train, at most: some simulators take hundreds of megabytes for each."""
        parts = self.config.plan.simulators
        most = min(EVALUATION_ENVS, self.config.sim.num_envs // self.ranks.size)
        return most // parts * parts or parts

    def step(self) -> dict[str, float]:
        """One iteration: collect, learn; returns figures for the log, the same on every rank but for times."""
        began = time.perf_counter()
        self._offer()
        turns = Turns(self._experience, time.perf_counter() - began)
        update = self._means(self.algorithm.update(self._rollouts(turns), self.iteration))
        turns.learned()
        self.actor.version += 1
        self.iteration += 1
        now = time.perf_counter()
        seconds = {"iteration": now - began, "rollout": turns.collecting, "update": now - began - turns.collecting}
        ages = {} if self.config.mode == "sync" else self._ages(turns.aged)
        figures = self._figures(seconds) | ages | {f"update/{name}": value for name, value in update.items()}
        if self.config.mode != "sync" and self.iteration < self.config.train.iterations:
            self._offer()  # at once: evaluations and checkpoints need not hold up those who collect
        return figures

    def _rollouts(self, turns: "Turns") -> Iterator[Rollout]:
        """What this version learns from, as it comes."""
        for _ in range(self._segments):
            rollout = turns.collect()
            if self.config.mode != "sync":
                masked = mask_older(rollout.version, rollout.valid, self.actor.version, self._bound)
                turns.aged.append((rollout.version, rollout.valid, masked))
            if self.config.train.time_limit == "terminal":
                rollout.end_at_time_limit()
            yield rollout

    def _offer(self) -> None:
        """Let the present version collect, once."""
        if self._offered < self.iteration:
            self.algorithm.prepare(self.iteration)
            self._experience.offer()
            self._offered = self.iteration

    def _ages(self, aged: Sequence[tuple[Tensor, Tensor, int]]) -> dict[str, float]:
        """How old the decisions were that the version before this one learned from, and how many were left out."""
        everybody = [part for parts in self.ranks.gather(aged) for part in parts]
        versions, valid, older = zip(*everybody, strict=True)
        versions, valid = (torch.cat([part.flatten() for part in parts]) for parts in (versions, valid))
        figures = staleness(versions, valid, self.actor.version - 1, self._bound)
        return figures | {"staleness/masked": sum(older)}

    def _means(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Over ranks, each of which has figures of its own rows."""
        values = torch.tensor([*figures.values()], dtype=torch.float64)
        self.ranks.sum_([values])
        return dict(zip(figures, (values / self.ranks.size).tolist(), strict=True))

    def _figures(self, seconds: Mapping[str, float]) -> dict[str, float]:
        experience = self._experience
        own = isinstance(experience, OwnExperience)
        own_part = (experience.timeline, experience.shares(), resident_bytes(os.getpid()))
        everybody = self.ranks.gather(own_part, Timeline, Span, figures.Share, EpisodeRecord)
        ranks, shares = [line for line, _, _ in everybody], [share for _, parts, _ in everybody for share in parts]
        resident = [] if own else [size for _, _, size in everybody]
        self.timelines = ranks if own else [*ranks, *(share.timeline for share in shares)]
        inline, finished = self.config.plan.allocation == "colocated", figures.finished(shares)
        drawn_by = self._episodes.figures()  # of this rollout; what it taught counts for the next
        experience.tell(finished)
        return {
            **figures.counts(shares, self.totals),
            **figures.times(shares, ranks, resident, seconds, self.totals, cores=self._cores, inline=inline),
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
        everything = [result for part in self.ranks.gather(results, EpisodeResult) for result in part]
        if purpose == "select":
            self.totals.seconds += time.perf_counter() - began
        return sorted(everything, key=lambda result: result.index)

    def save(self) -> None:
        """Write a checkpoint, with no slice in flight; the time it takes counts from the next one on."""
        began = time.perf_counter()
        state = {f"collector/{name}": torch.as_tensor(value) for name, value in self._experience.state().items()}
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
                keep_timelines(self.folder.path, self.iteration, self.timelines)
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
            raise UserError(
                f"{self.folder.path} was run on {metadata['ranks']} ranks and continues exactly only on as many: "
                f"set plan.ranks={metadata['ranks']}."
            )
        load_actor(self.folder.checkpoints / f"{self.iteration:08d}" / build.POLICY, self.actor)
        mine = _part(tensors, f"rank/{self.ranks.rank}/")
        self.algorithm.load(_part(mine, "algorithm/"))
        shards.read(self.folder.checkpoints / f"{self.iteration:08d}", self.sharding)
        self.actor.version = metadata["version"]
        self._experience.load({name: value.numpy() for name, value in _part(mine, "collector/").items()})
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
        self._experience.close()
        for handle in self._evaluators:
            handle.close()
        sharded.leave()


class Turns:
    """A rank's iteration: it waits for a rollout, learns from it, and so on; notes how long it does either.

    Attributes:
        collecting: seconds until what was asked for had come.
        aged: of each rollout the versions that decided, which rows are valid, and how many were too old to be.
    """

    def __init__(self, experience: Experience, collecting: float = 0.0) -> None:
        self.collecting = collecting
        self.aged: list[tuple[Tensor, Tensor, int]] = []
        self._experience, self._rows = experience, 0
        self._handed_over: float | None = None

    def collect(self) -> Rollout:
        """The next rollout; what happens until `learned`, or the next one, is learning from it."""
        self.learned()
        began = time.monotonic()
        rollout = self._experience.collect()
        self._handed_over, self._rows = time.monotonic(), int(rollout.valid.sum())
        self.collecting += self._handed_over - began
        return rollout

    def learned(self) -> None:
        """Learning from what came last is over."""
        if self._handed_over is not None:
            seconds = time.monotonic() - self._handed_over
            self._experience.timeline.add(RANK, LEARN, self._handed_over, seconds, self._rows)
        self._handed_over = None


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
