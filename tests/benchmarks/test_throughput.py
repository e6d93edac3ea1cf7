"""Arithmetic of the speed measurement, and that both sides are given the same work."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.benchmarks.throughput import CHUNK, MIN_ROUNDS, Throughput, measure_throughput
from embodied_rl.interfaces.sim import Array, Episode, StepResult
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.processes.remote import RemoteSimulator
from embodied_rl.testing.fakes import FakeSimulator

pytestmark = pytest.mark.thorough


class Counting(FakeSimulator):
    """Counts what is asked of it."""

    def __init__(self, num_envs: int, config: FakeSimulator.Config | None = None):
        super().__init__(num_envs, config)
        self.asked: list[Array] = []
        self.ended = self.bare_calls = self.resets = 0

    def reset(self, episodes):
        self.resets += 1
        return super().reset(episodes)

    def step(self, actions: Array, next_episodes: list[Episode | None]) -> StepResult:
        self.asked.append(actions)
        result = super().step(actions, next_episodes)
        self.ended += int(result.truncated.sum())
        return result


class Yardstick(Counting):
    """Offers a bare loop."""

    def bare_loop(self, actions: Array) -> Callable[[], None]:
        self.given = actions

        def run() -> None:
            self.bare_calls += 1

        return run


def test_the_ratio_is_the_median_of_rounds_not_of_speeds() -> None:
    """Rounds of 100, 10 and 1 steps/s at ratios of 0.5, 2 and 1: a slow moment slows both sides of its round."""
    found = Throughput(4, 2, simulator=(100.0, 10.0, 1.0), bare=(200.0, 5.0, 1.0))
    assert found.ratio == pytest.approx(1.0)
    assert found.summary()["control_steps_per_second"] == 10.0
    assert found.summary()["bare_control_steps_per_second"] == 5.0


def test_a_simulator_without_a_bare_loop_is_measured_alone() -> None:
    found = measure_throughput(Counting(3), 3, seconds=0.0, seed=0)
    assert found.bare == () and found.ratio is None
    assert found.summary()["bare_control_steps_per_second"] is None


def test_both_sides_run_the_same_rounds() -> None:
    simulator = Yardstick(3, FakeSimulator.Config(horizon=17, success_after=99))
    found = measure_throughput(simulator, 3, seconds=0.0, seed=5)
    assert found.chunks == 3
    assert len(found.simulator) == len(found.bare) == MIN_ROUNDS
    assert simulator.bare_calls == MIN_ROUNDS + 1
    rounds = np.stack(simulator.asked).reshape(MIN_ROUNDS + 1, 3, 3, CHUNK, 2)
    assert (rounds == simulator.given).all()
    assert simulator.resets == MIN_ROUNDS + 2 and simulator.ended == 0


def test_steps_are_counted_over_environments_and_chunks(monkeypatch) -> None:
    """With a clock that gives every piece of work two seconds: 6 environments · 3 chunks · 5 steps / 2 s."""
    from embodied_rl.benchmarks import throughput

    monkeypatch.setattr(throughput, "_timed", lambda work: work() or 2.0)
    found = measure_throughput(Counting(6, FakeSimulator.Config(horizon=16)), 6, seconds=0.0, seed=0)
    assert set(found.simulator) == {6 * 3 * CHUNK / 2.0}


@pytest.mark.process
def test_transport_is_what_the_simulator_was_not_busy_with(closing) -> None:
    """A simulator that sleeps for a known time a step, in a process of its own."""
    config = FakeSimulator.Config(seconds=0.002)
    factory = "embodied_rl.testing.fake_simulator:FakeSimulator"
    (handle,) = closing([ProcessHandle(factory, {"num_envs": 2, "config": config})])
    remote = RemoteSimulator(handle, 2, FakeSimulator)
    found = measure_throughput(remote, 2, 0.1, seed=0)
    assert found.transport is not None and 0 < found.transport < 1
    assert found.transport == pytest.approx(1 - remote.busy / remote.waited)
    steps = (len(found.simulator) + 1) * found.chunks * CHUNK
    assert remote.busy > 0.002 * steps
    assert measure_throughput(FakeSimulator(2, config), 2, 0.1, seed=0).transport is None
