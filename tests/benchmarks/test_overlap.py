"""The bound on a round against timelines drawn by hand, and stage times of simulators that take a known time."""

import pytest

from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.benchmarks.overlap import Stages, find_bound, measure_stages


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
