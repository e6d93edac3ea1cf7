"""Stages that sleep: what is timed is what was told, overlap is real, predictions are those of the model."""

import pytest

from embodied_rl.testing.contract import check_simulator
from embodied_rl.training.planner.costs import LinearCost
from tests.benchmarks import pipeline
from tests.benchmarks.pipeline import Overhead, PipelineCase, PipelineOutcome, measure_case, predict_case
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
