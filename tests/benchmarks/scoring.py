"""Measure the cost of scoring during a run, with a scorer that takes a known time to answer.

Every variant runs in this process, one iteration of each in turn, so that other load of the machine affects all of
them. Two kinds of stages: those of the configured training run, and stages that sleep for a known time.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from embodied_rl.config.plugins import configure_plugin
from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.judge.reward.score_table import summarise_scores
from embodied_rl.judge.reward.scoring_writer import ScoringOptions, ScoringWriter
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.timeline import SIMULATE, Timeline
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import Plan, RewardNode, TrainConfig
from embodied_rl.training.metrics import add_counts
from embodied_rl.training.run_parts import assemble_parts
from embodied_rl.training.trainer import Trainer
from tests.benchmarks.settings import BenchmarkConfig
from tests.benchmarks.sleeping_stages import SleepingActor, SleepingConfig, SleepingSimulator

LATENCY = 0.3
"""Seconds until an answer."""
WAIT_SHARE = 0.2
"""Of the time between decisions, that "too slow, waits" waits."""
DECISIONS, ENVS = 40, 16
SIMULATING, UPDATING = 0.05, 0.4
"""Of the stages that sleep: decisions of a rollout, environments, seconds of a chunk and of an update."""
WARM = 2
"""Iterations that are left out."""
OFF = "off"


def make_variants() -> dict[str, RewardNode]:
    """Return the measured settings, by name; the first one has no scorer."""
    ample = {"judge": "constant", "latency": LATENCY, "slots": 512}
    slow = ample | {"slots": 2}
    nobody = {"url": "http://127.0.0.1:9/v1"}  # the port "discard", which has no listener
    return {
        OFF: RewardNode(),
        "late": RewardNode("scripted", in_flight=512, options=ample),
        "late, too slow": RewardNode("scripted", in_flight=2, options=slow),
        "too slow, waits": RewardNode("scripted", wait_share=WAIT_SHARE, in_flight=2, options=slow),
        "nobody there": RewardNode("vlm", options=nobody),
        "sync": RewardNode("scripted", mode="sync", in_flight=512, options=ample),
    }


@dataclass(frozen=True)
class IterationTime:
    """One iteration: its seconds, those of each simulated chunk, and the figures of its scorer."""

    seconds: float
    chunks: tuple[float, ...]
    figures: Mapping[str, float]


@dataclass(frozen=True)
class ScoringCost:
    """Iterations of one variant.

    Attributes:
        stages: stages of the iterations: a simulator's name, or "sleeping".
        variant: name of the settings.
        seconds: of the median iteration.
        ratio: median over iterations of the seconds over those without a scorer, in the same turn.
        waited: most seconds that a rollout waited for scores.
        valid, held: share of requests with a score in time; share of potentials that were held.
        slowest_chunk: seconds that 99 of 100 simulated chunks do not exceed.
        iterations: number of measured iterations.
    """

    stages: str
    variant: str
    seconds: float
    ratio: float
    waited: float
    valid: float
    held: float
    slowest_chunk: float
    iterations: int


Iterate = Callable[[], IterationTime]
"""Runs one iteration."""


def measure_scoring(config: TrainConfig, seconds: float) -> list[ScoringCost]:
    """Measure all variants on sleeping stages, then on those of the configured run, `seconds` for each."""
    variants, found = make_variants(), list[ScoringCost]()
    for stages, make in (("sleeping", make_sleeping), (config.sim.name, make_training)):
        with ExitStack() as opened:
            runs = {name: opened.enter_context(make(config, reward)) for name, reward in variants.items()}
            found += summarise_samples(stages, run_in_turn(runs, seconds * len(runs)))
    return found


def run_in_turn(runs: Mapping[str, Iterate], seconds: float) -> dict[str, list[IterationTime]]:
    """Run one iteration of each in turn for `seconds`, at least one measured turn; return the measurements."""
    for _ in range(WARM):
        for iterate in runs.values():
            iterate()
    found: dict[str, list[IterationTime]] = {name: [] for name in runs}
    until = time.monotonic() + seconds
    while not found[OFF] or time.monotonic() < until:
        for name, iterate in runs.items():
            found[name].append(iterate())
    return found


def summarise_samples(stages: str, samples: Mapping[str, Sequence[IterationTime]]) -> list[ScoringCost]:
    """Summarise the iterations of each variant, compared turn by turn with those of the variant "off"."""
    return [summarise_variant(stages, name, mine, samples[OFF]) for name, mine in samples.items()]


def summarise_variant(
    stages: str, name: str, mine: Sequence[IterationTime], off: Sequence[IterationTime]
) -> ScoringCost:
    """Summarise the iterations of one variant."""
    return ScoringCost(
        stages=stages,
        variant=name,
        seconds=statistics.median(each.seconds for each in mine),
        ratio=statistics.median(each.seconds / other.seconds for each, other in zip(mine, off, strict=True)),
        waited=max(each.figures.get("time/reward_wait", 0.0) for each in mine),
        valid=statistics.mean(each.figures.get("reward/valid", 0.0) for each in mine),
        held=statistics.mean(each.figures.get("reward/held", 0.0) for each in mine),
        slowest_chunk=float(np.quantile([chunk for each in mine for chunk in each.chunks], 0.99)),
        iterations=len(mine),
    )


def list_chunks(timeline: Timeline) -> tuple[float, ...]:
    """Return the seconds of each simulated chunk."""
    return tuple(span.seconds for span in timeline.spans if span.what == SIMULATE)


@contextmanager
def make_training(config: TrainConfig, reward: RewardNode) -> Iterator[Iterate]:
    """Make the configured run in this process, with other scores; it saves nothing."""
    config = replace(config, reward=reward, plan=Plan("colocated", 1))
    with tempfile.TemporaryDirectory() as root:
        parts = assemble_parts(config, RunFolder.create(root, "bench", config.seed), Ranks())
        trainer = Trainer(parts)

        def iterate() -> IterationTime:
            began = time.perf_counter()
            figures = trainer.step()
            return IterationTime(time.perf_counter() - began, list_chunks(trainer.timelines[0]), figures)

        try:
            yield iterate
        finally:
            parts.close()


@contextmanager
def make_sleeping(config: TrainConfig, reward: RewardNode) -> Iterator[Iterate]:
    """Make a collector with a sleeping simulator; learning is a sleep, too."""
    settings = SleepingConfig(SIMULATING)
    spec = SleepingSimulator.spec_of(settings)
    actor = SleepingActor(spec, 0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        writers = [] if reward.name is None else [ScoringWriter(make_options(reward, spec, folder), 0)]
        handles = [InlineHandle(lambda: SleepingSimulator(settings, ENVS))]
        rollout, sampler = Rollout.allocate(actor, DECISIONS, ENVS), EpisodeSampler(spec, 0)
        collector = Collector(handles, spec, ENVS, sampler, rollout, 0, writers=writers)

        def iterate() -> IterationTime:
            began = time.perf_counter()
            collector.collect(actor)
            time.sleep(UPDATING)
            passed = time.perf_counter() - began
            figures = summarise_scores(add_counts([writer.figures() for writer in writers]))
            return IterationTime(passed, list_chunks(collector.timeline), figures)

        try:
            yield iterate
        finally:
            for part in (*writers, *handles):
                part.close()


def make_options(reward: RewardNode, spec: Any, folder: str) -> ScoringOptions:
    """Return the options of a scoring writer of one collector, with a discount as in training."""
    scorer = configure_plugin("scorers", reward, "reward")
    return ScoringOptions(reward, scorer, spec, DECISIONS, Discount(0.99, "decision"), False, 1, folder)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure all variants on sleeping stages and on those of the configured run."""
    return {"scoring": [asdict(each) for each in measure_scoring(config, config.seconds)]}
