"""For all slices, orders, delays, deaths and lengths of episodes: no decision is lost, doubled or in a wrong row."""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.environments import Order
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import ProcessHandle
from tests.support.echo_simulator import SPEC, EchoConfig
from tests.support.echoing import DECISIONS, Books, EchoActor, FlakyHandle

pytestmark = pytest.mark.thorough
ENOUGH = 10_000
FACTORY = "tests.support.echo_simulator:EchoSimulator"


@dataclass(frozen=True)
class Case:
    """How environments are cut up, and what goes wrong."""

    handles: int
    slices: int
    envs: int
    order: Order
    fresh: bool
    death: float
    seed: int

    @property
    def num_envs(self) -> int:
        return self.handles * self.envs


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    slices = draw(st.sampled_from([1, 2, 3]))
    handles = slices * draw(st.sampled_from([1, 2]))
    envs = draw(st.integers(-(-6 // handles), 12 // handles))
    order, fresh = draw(st.sampled_from(["exact", "ready"])), draw(st.booleans())
    return Case(handles, slices, envs, order, fresh, draw(st.sampled_from([0.0, 0.03, 0.3])), draw(st.integers(0, 999)))


def collect(case: Case, handles: list[Any], actor: EchoActor, rounds: int) -> int:
    """Collect again and again and check everything; returns the number of decisions."""
    rollout = Rollout.allocate(actor, DECISIONS if case.fresh else 2 * DECISIONS, case.num_envs)
    sampler = EpisodeSampler(SPEC, case.seed)
    per_slice = case.num_envs // case.slices
    options: dict[str, Any] = {"fresh": case.fresh, "order": case.order}
    collector = Collector(handles, SPEC, per_slice, sampler, rollout, case.seed, **options)
    books = Books(case.num_envs, case.fresh)
    for _ in range(rounds):
        rollout.trace["asked"].fill_(-1)
        collector.collect(actor)
        books.add(rollout)
    books.balance(collector, actor)
    assert (collector.restarts > 0) >= (collector.lost_episodes > 0)
    return len(actor.asked)


def test_books_balance_whatever_goes_wrong() -> None:
    """Simulators in this process that die and dawdle by a lottery: ten thousand decisions."""
    total = 0

    @settings(max_examples=45)
    @given(cases())
    def check(case: Case) -> None:
        nonlocal total
        lottery = random.Random(case.seed)
        handles = [FlakyHandle(case.envs, lottery, case.death, 1 + case.seed % 5) for _ in range(case.handles)]
        total += collect(case, handles, EchoActor(), 4 if case.fresh else 2)

    while total < ENOUGH:
        check()


@pytest.mark.process
@pytest.mark.parametrize("seed", range(8))
def test_books_balance_when_processes_are_killed(seed: int, closing: Callable) -> None:
    """In mid-chunk by themselves, and at any moment from outside, while they start included."""
    order: Order = "ready" if seed % 2 else "exact"
    case = Case(handles=4, slices=1 + seed // 2 % 2, envs=3, order=order, fresh=seed >= 6, death=0.02, seed=seed)
    handles = [worker(case, number) for number in range(case.handles)]
    closing(handles)
    lottery = random.Random(seed)

    def kill_somebody() -> None:
        if lottery.random() < 0.02:
            os.kill(lottery.choice(handles).pid, signal.SIGKILL)

    collect(case, handles, EchoActor(kill_somebody), rounds=8)


def worker(case: Case, number: int) -> ProcessHandle:
    config = EchoConfig(death=case.death, delay=0.004, seed=10 * case.seed + number)
    return ProcessHandle(
        FACTORY, {"num_envs": case.envs, "config": config}, name=f"simulator {number}", max_restarts=1000
    )
