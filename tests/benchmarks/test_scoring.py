"""What a scorer costs: the variants ask as they are named, and are compared turn by turn."""

from contextlib import ExitStack

import pytest

from tests.benchmarks import scoring
from tests.benchmarks.scoring import OFF, IterationTime, make_sleeping, make_variants, summarise_samples


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
