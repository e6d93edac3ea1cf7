"""The benchmarks measure what they say: arithmetic by hand, and stages that take a known time."""

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from embodied_rl.training.planner.allocation import Allocation
from embodied_rl.training.planner.costs import Costs, LinearCost
from embodied_rl.training.planner.model import Prediction, Workload
from embodied_rl.training.planner.search import Candidate
from tests.benchmarks import pipeline, recovery, scoring
from tests.benchmarks.cpu_utilisation import read_queued_seconds
from tests.benchmarks.overlap import Stages, find_bound, measure_stages
from tests.benchmarks.peers import PEERS, Peer, measure_peer, measure_speed
from tests.benchmarks.pipeline import Overhead, PipelineCase, PipelineOutcome, measure_case, predict_case
from tests.benchmarks.plan_validation import PIPELINED, SYNC, LiveRun, make_remarks
from tests.benchmarks.policy_server import CLIENTS, measure_serving
from tests.benchmarks.scoring import OFF, IterationTime, make_sleeping, make_variants, summarise_samples
from tests.benchmarks.sleeping_stages import SleepingConfig, SleepingSimulator

pytestmark = pytest.mark.thorough


NOTHING = Overhead(0.0, LinearCost())
SIMULATE, INFER = (0.02, 0.0), (0.02, 0.0)


def test_the_sleeping_simulator_is_one() -> None:
    check_simulator(lambda num_envs: SleepingSimulator(SleepingConfig(image_size=4), num_envs))


def test_predictions_are_those_of_hand_drawn_timelines() -> None:
    """24 rounds: stages in turn; two slices, of which one infers while the other simulates, and a stage to drain."""
    assert predict_case(PipelineCase("", SIMULATE, INFER, 1), NOTHING) == pytest.approx(24 * 0.04)
    assert predict_case(PipelineCase("", SIMULATE, INFER, 2), NOTHING) == pytest.approx(24 * 0.04 + 0.02)
    sent = Overhead(0.01, LinearCost(0.005))
    assert predict_case(PipelineCase("", SIMULATE, INFER, 1), sent) == pytest.approx(24 * 0.055)


@pytest.mark.process
def test_two_slices_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Balanced stages: twice as fast but for what cannot overlap; the best of some times counts."""
    monkeypatch.setattr(pipeline, "DECISIONS", 8)
    shares: list[float] = []
    while len(shares) < 5 and not any(share < 0.8 for share in shares):
        one, two = (
            measure_case(PipelineCase("", (0.0, 0.05), (0.0, 0.05), slices, envs=4), seed=0) for slices in (1, 2)
        )
        assert one >= 8 * 0.4
        shares.append(two / one)
    assert min(shares) < 0.8


def test_the_remarks_are_ratios_of_what_was_measured() -> None:
    seconds = {"balanced, one slice": 4.0, "balanced, two slices": 2.2, "jitter 0.6, exact order": 3.0}
    outcomes = [PipelineOutcome(case, 1.0, seconds.get(case.name, 2.0)) for case in pipeline.CASES]
    gain, ready = pipeline.make_remarks(outcomes)
    assert "1.82 times" in gain and "1.50 times" in ready
    assert outcomes[0].error == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("stages", "slices", "workers", "cores", "expected"),
    [
        # One slice: nothing can overlap.
        (Stages(3.0, 2.0, 0.5), 1, 1, 2, 6.0),
        # Two slices, equal stages, a core for each: one infers while the other simulates, and no core idles.
        (Stages(2.0, 2.0, 0.0), 2, 1, 2, 4.0),
        # The policy is the slower one, and never waits.
        (Stages(1.0, 3.0, 0.0), 2, 1, 2, 6.0),
        # The simulators are slower, but run side by side: a slice's own chain is the limit.
        (Stages(3.0, 1.0, 0.25), 2, 1, 8, 4.5),
        # Two workers a slice on two cores: 2 · (2 · 3 + 1) / 2 core seconds have to fit.
        (Stages(3.0, 1.0, 0.0), 2, 2, 2, 7.0),
    ],
)
def test_no_schedule_beats_the_bound(stages, slices, workers, cores, expected) -> None:
    assert find_bound(stages, slices, workers, cores) == pytest.approx(expected)


def test_stages_are_told_apart() -> None:
    """Two slices of two simulators; a chunk of two steps takes 2 · 2 ms at least, a decision 6 ms at least."""
    config = FakeSimulator.Config(seconds=0.002)
    spec = FakeSimulator.spec_of(config)
    groups = [[InlineHandle(lambda: FakeSimulator(2, config)) for _ in range(2)] for _ in range(2)]
    actor = RowwiseFakeActor(spec, executed=2, seconds=0.006)
    stages = measure_stages(groups, actor, EpisodeSampler(spec, 0), 4, seed=0)
    assert stages.inferring >= 0.006
    assert stages.simulating >= 0.004
    assert stages.message >= 0.002  # in one process the second simulator starts after the first has answered
    for group in groups:
        for handle in group:
            handle.close()


COSTS = Costs(step=LinearCost(0, 0.5), inference=LinearCost(0, 1.0), update=LinearCost())


def run(plan: Allocation, *times: float) -> LiveRun:
    return LiveRun(Candidate(plan, 0.0, Prediction(2.0, 1.0, 1.0, {}, 0.0, 1.0, 2.0)), times)


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    """For 20 values the 6th to the 15th, for 10 the 2nd to the 9th; of four all there is."""
    for count, low, high in ((20, 6, 15), (10, 2, 9), (4, 1, 4)):
        assert run(SYNC, *map(float, range(1, count + 1))).interval == (low, high)


def test_the_choice_is_held_against_the_fastest() -> None:
    chosen = Allocation("colocated", 2)
    slow = [run(chosen, 2.0, 2.1, 2.2), run(SYNC, 3.0, 3.1, 3.2), run(PIPELINED, 1.0, 1.1, 1.2)]
    first, second = make_remarks(slow, COSTS, Workload(8, 4))
    assert "2.10 s [2.00, 2.20]" in first and "1.10 s [1.00, 1.20]" in first and "do not overlap" in first
    assert "2.82 times" in second and "1 + r = 1.50" in second
    assert "intervals overlap" in make_remarks([run(chosen, 1.15, 2.0), *slow[1:]], COSTS, Workload(8, 4))[0]
    assert run(chosen, 2.5).error == 0.25


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DECISIONS": 4, "ENVS": 2, "SIMULATING": 0.0, "UPDATING": 0.0, "LATENCY": 0.02}.items():
        monkeypatch.setattr(scoring, name, value)


def test_each_variant_asks_as_it_is_named(quick: None) -> None:
    with ExitStack() as opened:
        runs = {name: opened.enter_context(make_sleeping(None, each)) for name, each in make_variants().items()}
        found = {each.variant: each for each in summarise_samples("sleeping", scoring.run_in_turn(runs, 0.0))}
    assert found[OFF].ratio == 1.0 and found[OFF].valid == found[OFF].held == found[OFF].waited == 0.0
    assert found["sync"].valid == 1.0 and found["sync"].held == 0.0
    assert found["nobody there"].valid == 0.0 and found["nobody there"].held >= 0.75
    assert found["too slow, waits"].waited > 0.0
    assert all(each.iterations == 1 for each in found.values())


def test_variants_are_compared_in_the_same_turn() -> None:
    """What slows both down, here tenfold in the second turn, is in neither ratio."""
    off = [IterationTime(1.0, (0.1,), {}), IterationTime(10.0, (0.2,), {}), IterationTime(1.0, (0.1,), {})]
    late = [IterationTime(1.1, (0.1,) * 99 + (9.0,), {"reward/valid": 0.5, "time/reward_wait": 0.3})] * 3
    late[1] = IterationTime(11.0, (0.1,), {"reward/valid": 1.0, "time/reward_wait": 0.1})
    _, found = summarise_samples("x", {OFF: off, "late": late})
    assert found.ratio == pytest.approx(1.1) and found.waited == 0.3 and found.valid == pytest.approx(2 / 3)
    assert found.seconds == 1.1


@pytest.mark.process
def test_a_killed_process_is_missed_and_replaced() -> None:
    kind = SimulatorKind.find(SimNode("tabletop", options={"image_size": 16}))
    found = recovery.measure_recovery(kind, envs=2, kills=2)
    assert 0 < found.noticed < found.recovered and found.kills == 2


TOLD = Path("/proc/thread-self/schedstat").exists()
SPIN = """
import os
os.sched_setaffinity(0, {{{core}}})
print("spinning", flush=True)
while True:
    os.sched_yield()
"""
"""It gives way at once, so that it does not matter how long a system lets a program go on."""


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.skipif(not TOLD, reason="the system does not tell")
def test_programs_that_share_a_core_wait_for_each_other() -> None:
    """Three that always want the same core: each waits at least a third of the time."""
    waited: list[float] = []
    core = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", SPIN.format(core=core)]
    children = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(2)]

    def work() -> None:
        os.sched_setaffinity(0, {core})
        before, until = read_queued_seconds() or 0.0, time.monotonic() + 0.5
        while time.monotonic() < until:
            os.sched_yield()
        waited.append((read_queued_seconds() or 0.0) - before)

    try:
        assert [child.stdout.readline() for child in children] == [b"spinning\n"] * 2
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.communicate()
    assert waited[0] > 0.5 / 3


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Peer("somebody", "a-package", "a_module_nobody_has", lambda: None))
    result = measure_peer("absent", 1.0)
    assert result.control_steps_per_second is None
    assert result.why_not == "a-package is not installed"


def test_a_picture_follows_every_fifth_step() -> None:
    done: list[str] = []
    speed = measure_speed(lambda: done.append("step"), lambda: done.append("picture"), 0.01)
    assert speed > 0
    assert done == ([*["step"] * 5, "picture"] * (len(done) // 6))


@pytest.mark.slow
@pytest.mark.process
def test_a_served_policy_is_measured() -> None:
    found = measure_serving("asset:tabletop_base.safetensors", seconds=0.2)
    assert set(found.per_second) == set(CLIENTS) and all(rate > 0 for rate in found.per_second.values())
    assert found.alone_ms >= found.infer_ms > 0 and found.overhead_ms > 0
    assert found.first_s > 0 and found.first_cpu_s > 0.1, "Python started, and loaded a policy"
