"""Measure how far simulation and inference overlap with simulators in their own processes, relative to the bound.

Symbols: k slices; w simulator processes per slice; S seconds in which one process simulates a chunk; P seconds in which
the policy decides for a slice; h seconds of a message in one direction.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runs import provenance
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.simulators.kind import SimulatorKind, make_handles
from embodied_rl.schema import SamplerNode
from tests.benchmarks.settings import BenchmarkConfig

REPEATS = 3
DECISIONS = 24


@dataclass(frozen=True)
class Stages:
    """Seconds of one slice's chunk while nothing else runs: S, P and h."""

    simulating: float
    inferring: float
    message: float


@dataclass(frozen=True)
class Overlap:
    """One division of the environments into slices, and its median round: one chunk of every environment.

    Attributes:
        slices, workers: k and w. envs: environments of a slice. cores: number of cores of the machine.
        stages: stage times of a slice. round: seconds of a round, measured in the collector.
    """

    slices: int
    workers: int
    envs: int
    cores: int
    stages: Stages
    round: float

    @property
    def bound(self) -> float:
        """Return a lower bound of the round in seconds, which no schedule can beat."""
        return find_bound(self.stages, self.slices, self.workers, self.cores)

    @property
    def share(self) -> float:
        """Return the bound as a share of the measured round; 1 is perfect."""
        return self.bound / self.round

    @property
    def alone(self) -> float:
        """Return the seconds of a round in which nothing overlaps."""
        stages = self.stages
        return self.slices * (stages.simulating + stages.inferring + 2 * stages.message)

    def summary(self) -> dict[str, Any]:
        """Return the measurement as a dictionary for the report."""
        return asdict(self) | {"bound": self.bound, "share_of_bound": self.share, "without_overlap": self.alone}


def find_bound(stages: Stages, slices: int, workers: int, cores: int) -> float:
    """Compute a lower bound of a round in seconds, from the policy, from one slice, and from all work spread evenly."""
    simulating, inferring, message = stages.simulating, stages.inferring, stages.message
    spread = slices * (workers * simulating + inferring) / cores
    return max(slices * inferring, inferring + simulating + 2 * message, spread)


def measure_overlap(config: BenchmarkConfig, slices: int, cores: int) -> Overlap:
    """Time the stages one by one, then the collector; repeat, and return the repetition with the median share."""
    torch.set_num_threads(1)
    kind = SimulatorKind.find(config.sim)
    plan = replace(config.plan, allocation="split", ranks=1, slices=slices)
    actor = build.build_actor(config.policy, SamplerNode(), kind.spec, Needs(critic=True)).eval()
    per_slice = config.sim.num_envs // slices
    handles = make_handles(kind, plan, config.sim.num_envs, "benchmark")
    try:
        sampler = EpisodeSampler(kind.spec, config.seed)
        rollout = Rollout.allocate(actor, DECISIONS, config.sim.num_envs)
        collector = Collector(handles, kind.spec, per_slice, sampler, rollout, config.seed)
        collector.collect(actor)
        found = []
        for turn in range(REPEATS):
            groups = [handles[first : first + plan.workers] for first in range(0, len(handles), plan.workers)]
            stages = measure_stages(groups, actor, sampler, per_slice, config.seed + turn)
            collector = Collector(handles, kind.spec, per_slice, sampler, rollout, config.seed)
            collector.collect(actor)
            seconds = collector.timeline.total / DECISIONS
            found.append(Overlap(slices, plan.workers, per_slice, cores, stages, seconds))
    finally:
        for handle in handles:
            handle.close()
    return sorted(found, key=lambda item: item.share)[len(found) // 2]


@torch.no_grad()
def measure_stages(
    groups: Sequence[Sequence[Handle]], actor: Actor, sampler: EpisodeSampler, envs: int, seed: int
) -> Stages:
    """Measure mean stage times over `DECISIONS` rounds; each slice (a group of handles) waits for the previous one."""
    episodes = [sampler.episode(index) for index in range(len(groups) * envs)]
    in_hand: list[Observation] = []
    for number, group in enumerate(groups):
        mine = np.array_split(np.arange(envs) + number * envs, len(group))
        started = [h.submit("reset", [episodes[i] for i in rows]) for h, rows in zip(group, mine, strict=True)]
        in_hand.append(Observation.concatenate([future.result() for future in started]))
    simulating, inferring, message = list[float](), list[float](), list[float]()
    for decision in range(DECISIONS):
        for number, group in enumerate(groups):
            keys = NoiseKeys(seed, np.arange(envs) + number * envs, np.full(envs, decision))
            began = time.perf_counter()
            actions = actor.act(in_hand[number], keys, explore=True).actions
            decided = time.perf_counter()
            shares = zip(group, np.array_split(actions, len(group)), strict=True)
            futures = [h.submit("step", part, episodes[: len(part)]) for h, part in shares]
            results = [future.result() for future in futures]
            simulated = time.perf_counter() - decided
            in_hand[number] = Observation.concatenate([result.observation for result in results])
            inferring.append(decided - began)
            simulating.append(max(future.seconds for future in futures))
            message.append((simulated - simulating[-1]) / 2)
    return Stages(*(statistics.fmean(times) for times in (simulating, inferring, message)))


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure one slice and two, where the environments divide equally."""
    cores, envs = int(provenance.describe_hardware()["cores"]), config.sim.num_envs
    chosen = [slices for slices in (1, 2) if envs % (slices * config.plan.workers) == 0]
    return {"split": [measure_overlap(config, slices, cores).summary() for slices in chosen]}
