"""A simulated robot and its peer in one process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.tabletop_robot import Bench


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Makes benches, and closes them."""
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(**settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def steps(make_bench: Callable[..., Bench]) -> Bench:
    """One in lockstep, in an episode that was asked for."""
    bench = make_bench(lockstep=True)
    bench.peer.ask(seed=3)
    bench.exchange()
    return bench


@pytest.fixture
def live(make_bench: Callable[..., Bench]) -> Bench:
    """One in real time, in an episode that was asked for."""
    bench = make_bench(lockstep=False)
    bench.peer.ask(seed=3)
    bench.run(0.016)
    return bench
