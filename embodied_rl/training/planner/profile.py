"""Measure the stage costs on this machine: every core does a rank's work at the same time, at several sizes.

All cores work, as in a good allocation, because stages are slower in parallel than alone. A probe keeps only its
measurements.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from embodied_rl.assembly import build
from embodied_rl.interfaces.sim import Episode, Observation, StepResult, Timed
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.experience import Replay, list_stored
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runs import provenance
from embodied_rl.runtime.processes.local import ProcessHandle, wrap_simulator
from embodied_rl.runtime.processes.process import read_resident_bytes
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.launch import launch_ranks
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import TrainConfig
from embodied_rl.training.planner.costs import CostFile, Costs, LinearCost

DECISIONS = 6
"""Decisions of a probe's rollout."""

REPEATS = 2
"""Measurements at each size."""

DEADLINE = 900.0
"""Timeout of a probe, in seconds."""

_CHUNKS = 12
"""Chunks to measure the jitter of a simulator process."""


@dataclass
class StageSamples:
    """Measurements of the stages: pairs of a size and a value, by the name of the cost."""

    found: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, name: str, size: int, value: float) -> None:
        self.found.setdefault(name, []).append((size, value))

    def merge(self, others: list["StageSamples"]) -> "StageSamples":
        """Return the merged samples of all ranks, `others`."""
        names = {name for each in others for name in each.found}
        return StageSamples(
            {name: [pair for each in others for pair in each.found.get(name, [])] for name in sorted(names)}
        )

    def line(self, name: str) -> LinearCost:
        """Fit a line through the medians at each size; proportional with one size, zero without samples."""
        sizes = sorted({size for size, _ in self.found.get(name, [])})
        middles = [statistics.median(value for size, value in self.found[name] if size == at) for at in sizes]
        if len(sizes) < 2:
            return LinearCost(0.0, middles[0] / sizes[0]) if sizes else LinearCost()
        return LinearCost.fit(sizes, [max(value, 1e-9) for value in middles])

    def spread(self, name: str) -> float:
        """Return the relative spread at the largest size: the range of its measurements over their median."""
        largest = max(size for size, _ in self.found[name])
        values = [value for size, value in self.found[name] if size == largest]
        return (max(values) - min(values)) / statistics.median(values)


def measure_stages(config: TrainConfig, cores: int) -> CostFile:
    """Measure the stages of a training run; it takes about twenty seconds for the tabletop.

    Args:
        config: the run's configuration; its plan is ignored.
        cores: most cores that work at the same time.

    Raises:
        UserError: there are more cores than environments.
    """
    groups = config.sim.num_envs // build.find_method(config.algo).needs.group_size
    ranks = max(count for count in range(1, cores + 1) if groups % count == 0)
    began = time.perf_counter()
    samples, jitter = launch_ranks(probe_rank, config, ranks)
    about = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - began, 1),
        "cores_at_once": ranks,
        **provenance.describe_hardware(),
    }
    costs = Costs(
        step=samples.line("step"),
        inference=samples.line("inference"),
        update=samples.line("update"),
        render=samples.line("render"),
        transfer=samples.line("transfer"),
        jitter=jitter,
        simulator_memory=samples.line("simulator_memory"),
        policy_memory=samples.line("policy_memory"),
    )
    return CostFile(costs, about, {name: round(samples.spread(name), 3) for name in samples.found})


def measure_stages_apart(config: TrainConfig, cores: int) -> CostFile:
    """Measure as `measure_stages` does, in a separate process, so that the memory of this process stays unchanged.

    Raises:
        WorkerDied: the process was killed, or took longer than `DEADLINE`; the message holds its last output.
        WorkerError: the process raised an exception.
    """
    probe = ProcessHandle(f"{__name__}:{Profiler.__name__}", {}, name="probe", call_timeout=DEADLINE)
    with probe:
        return probe.submit("measure", config, cores).result()


class Profiler:
    """The role of the measuring process."""

    def measure(self, config: TrainConfig, cores: int) -> CostFile:
        """Measure the stages; see `measure_stages`."""
        return measure_stages(config, cores)

    def close(self) -> None:
        """Do nothing, as there is nothing to close."""


def probe_rank(config: TrainConfig, ranks: Ranks) -> tuple[StageSamples, float]:
    """Measure on one rank; return, on every rank alike, the samples of all ranks and the jitter σ of a simulator."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    bench = _Bench(config, ranks)
    samples = StageSamples()
    for envs in choose_sizes(config.sim.num_envs, bench.group_size):
        bench.rollouts(envs, samples)
    bench.updates(samples)
    jitter = bench.workers(samples) if ranks.rank == 0 else 0.0
    ranks.barrier()
    return samples.merge(ranks.gather(samples, StageSamples)), max(ranks.gather(jitter))


def choose_sizes(num_envs: int, group_size: int = 1) -> list[int]:
    """Return the numbers of environments to measure at: an eighth, a quarter, half and all, in whole groups."""
    shares = {max(1, num_envs // part // group_size) * group_size for part in (8, 4, 2, 1)}
    return sorted(size for size in shares if size <= num_envs)


class _Bench:
    """A probe that measures one rank: the run's actor and algorithm, with simulators of any size."""

    def __init__(self, config: TrainConfig, ranks: Ranks):
        self.config, self.ranks = config, ranks
        self.kind = SimulatorKind.find(config.sim)
        method = build.find_method(config.algo)
        self.needs, self.group_size = method.needs, method.needs.group_size
        self.actor = build.build_actor(config.policy, config.algo.sampler, self.kind.spec, method.needs)
        self.algorithm = method.build(self.actor, ranks, config.seed, config.train.iterations)
        rows = self.decisions(config.train.decisions) * config.sim.num_envs // ranks.size
        self.actor.keep_within(rows, config.policy.cache_gigabytes * 1e9)
        self.learning: int = method.needs.warmup
        """Iteration whose update is like all later ones."""

    def decisions(self, most: int) -> int:
        """Return T: `most` at most, or the length of the longest episode if rollouts hold whole episodes."""
        if not self.needs.fresh_episodes:
            return min(most, self.config.train.decisions)
        return -(-self.kind.spec.horizon // self.actor.embodiment.executed)

    @contextmanager
    def collector(self, envs: int, decisions: int) -> Iterator[tuple[Collector, Any]]:
        """Yield a collector with one simulator in this process, and the simulator; close it at the end."""
        simulator = self.kind.build(envs)
        handle = wrap_simulator(simulator, "probe")
        spec = self.kind.spec
        task, seed = self.config.train.task, self.config.seed + self.ranks.rank
        sampler = EpisodeSampler(spec, seed, group_size=self.group_size, task=task)
        rollout = Rollout.allocate(self.actor, decisions, envs)
        options: dict[str, Any] = {"fresh": self.needs.fresh_episodes, "explore": self.needs.explores_with(self.actor)}
        try:
            yield (
                Collector([handle], spec, envs, sampler, rollout, self.config.seed, **options),
                simulator,
            )
        finally:
            handle.close()

    def rollouts(self, envs: int, samples: StageSamples) -> None:
        """Measure simulation, pictures and inference of a chunk; all other work of the rank counts as inference."""
        decisions = self.decisions(DECISIONS)
        with self.collector(envs, decisions) as (collector, simulator):
            collector.collect(self.actor)
            for _ in range(REPEATS):
                self.ranks.barrier()
                before = _rendered(simulator)
                collector.collect(self.actor)
                timing, pictures = collector.timeline, _rendered(simulator) - before
                samples.add("step", envs, (timing.simulating - pictures) / decisions)
                if isinstance(simulator, Timed):
                    samples.add("render", envs, pictures / decisions)
                rest = timing.total - timing.simulating - timing.ends
                samples.add("inference", envs, rest / decisions)

    def updates(self, samples: StageSamples) -> None:
        """Measure updates from a rank's share of a rollout and from half of it, including the final values."""
        share = self.config.sim.num_envs // self.ranks.size
        halves = sorted({max(1, share // 2 // self.group_size) * self.group_size, share})
        decisions = self.decisions(self.config.train.decisions)
        for envs in (halves[0], *halves):  # the first is for warming up
            with self.collector(envs, decisions) as (collector, _):
                rollout = collector.collect(self.actor)
                experience: Any = [rollout] if self.needs.learns_from == "rollouts" else self.successes()
                self.algorithm.prepare(self.learning)
                self.ranks.barrier()
                began = time.perf_counter()
                self.algorithm.update(experience, self.learning)
                seconds = time.perf_counter() - began + collector.timeline.ends
                samples.add("update", envs * decisions, seconds)
                samples.add("policy_memory", envs * decisions, read_resident_bytes(os.getpid()))
        samples.found["update"] = samples.found["update"][1:]

    def successes(self) -> Replay:
        """Return a replay of one successful episode without content, so that an update has something to learn from."""
        spec, executed = self.kind.spec, self.actor.embodiment.executed
        extra = list_stored(self.actor, self.needs.stores)
        storage = ReplayStorage(ReplayFormat.of_simulator(spec, 1, DECISIONS + 2, executed, extra=extra))
        images = {c.name: np.zeros((DECISIONS, c.height, c.width, 3), np.uint8) for c in spec.cameras}
        state = np.zeros((DECISIONS, len(spec.state_names)), np.float32)
        privileged = np.zeros((DECISIONS, len(spec.privileged_names)), np.float32)
        seen = Observation(images, state, ("",) * DECISIONS, privileged)
        actions, each = np.zeros((DECISIONS, executed, spec.action_dim), np.float32), np.ones((DECISIONS, executed))
        last = np.arange(DECISIONS) == DECISIONS - 1
        came = StepResult(
            reward=each.astype(np.float32), success=each.astype(bool), steps=np.full(DECISIONS, executed),
            executed=actions, source=np.zeros(each.shape, np.uint8), terminated=last, truncated=~last & last,
            observation=seen,
        )  # fmt: skip
        storage.write_episode(0, Episode(0, 0, 0), seen, actions, came)
        return Replay(storage)

    def workers(self, samples: StageSamples) -> float:
        """Measure messages to simulator processes and their memory; return the jitter of a chunk's seconds."""
        spread = 0.0
        for envs in choose_sizes(self.config.sim.num_envs, self.group_size)[::2]:
            handle = self.kind.worker(envs, f"probe of {envs} environments", self.config.plan)
            try:
                task = self.config.train.task
                sampler = EpisodeSampler(handle.spec, self.config.seed, group_size=self.group_size, task=task)
                episodes = [sampler.episode(index) for index in range(envs)]
                handle.submit("reset", episodes).result()
                embodiment = self.actor.embodiment
                still = np.zeros((envs, embodiment.executed, len(embodiment.action_names)), np.float32)
                seconds: list[float] = []
                for _ in range(_CHUNKS):
                    began = time.perf_counter()
                    future = handle.submit("step", still, episodes)
                    future.result()
                    seconds.append(future.seconds)
                    samples.add("transfer", envs, time.perf_counter() - began - future.seconds)
                samples.add("simulator_memory", envs, handle.memory())
            finally:
                handle.close()
            spread = float(np.std(np.log(seconds)))
        return spread


def _rendered(simulator: Any) -> float:
    return simulator.render_seconds if isinstance(simulator, Timed) else 0.0
