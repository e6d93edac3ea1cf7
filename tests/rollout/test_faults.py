"""Collection when something goes wrong: lost workers cost their own episodes alone, bad numbers are named."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.runtime.processes.handle import RestartLimitReached, WorkerError
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.collecting import (
    CONFIG,
    KillingActor,
    N,
    T,
    assert_equal,
    copied,
    fast_and_slow,
    inline,
    make,
    reference,
    workers,
)
from tests.support.refusals import refuses


@pytest.mark.process
def test_a_killed_worker_costs_its_own_episodes_alone(closing: Callable) -> None:
    """Killed while simulating row 4, which its episodes began before: they are invalid, everything else bit-equal."""
    handles = closing(fast_and_slow())
    killing = KillingActor(handles[1], call=11, holds=True)  # slice 0 in row 5: slice 1 is in row 4
    collector, actor = make(handles, actor=killing)
    rollout = collector.collect(actor)
    expected, after = reference()
    for name, tensor in rollout.batch().items():
        left, right = tensor.unflatten(0, (T, N)), expected[name].unflatten(0, (T, N))
        assert torch.equal(left[:, : N // 2], right[:, : N // 2]), f"{name} of the other worker"
        if name != "valid":
            assert torch.equal(left[:4, N // 2 :], right[:4, N // 2 :]), f"{name} before the death"
    for env in range(N // 2, N):
        lost = rollout.episode[4, env]
        assert (rollout.episode[:, env] == lost).tolist() == [False, False, False, True, True, False, False]
        assert torch.equal(rollout.valid[:, env], rollout.episode[:, env] != lost)
        assert rollout.episode[5, env] == lost + N
    assert (collector.restarts, collector.lost_episodes) == (1, N // 2)
    (note,) = collector.pop_warnings()
    assert "was killed by SIGKILL" in note and "a new worker takes over" in note
    assert collector.pop_warnings() == (), "each is told once"
    lost = set(rollout.episode[4, N // 2 :].tolist())
    assert not lost & {record.index for record in rollout.finished}
    second = copied(collector.collect(actor))
    assert second["valid"].all()
    for name in after:
        if isinstance(after[name], torch.Tensor) and name != "last_value":
            left, right = second[name].unflatten(0, (T, N)), after[name].unflatten(0, (T, N))
            assert torch.equal(left[:, : N // 2], right[:, : N // 2]), name


@pytest.mark.thorough
@pytest.mark.process
def test_a_worker_killed_between_rollouts_is_replaced_at_a_checkpoint(closing: Callable) -> None:
    handles = closing(workers(2))
    collector, actor = make(handles)
    collector.collect(actor)
    os.kill(handles[0].pid, signal.SIGKILL)
    state = collector.state()
    assert collector.rollout.valid.all()  # what was collected before stays
    assert (collector.restarts, collector.lost_episodes) == (1, N // 2)
    resumed, _ = make(inline(2))
    resumed.load(state)
    expected = copied(collector.collect(actor))
    assert_equal(copied(resumed.collect(actor)), expected)
    assert (expected["episode"][: N // 2] >= N).all()
    assert resumed.restarts == 1


@pytest.mark.parametrize(
    ("fault", "what", "decision"),
    [("nan reward", "the simulator's reward", 1), ("nan state", "the simulator's state", 2)],
)
def test_nan_of_the_simulator_is_named(fault: str, what: str, decision: int) -> None:
    """In the second chunk of environment 3: its reward, or the observation for the third decision."""
    collector, actor = make(inline(1, replace(CONFIG, fault=fault, fault_call=1, fault_row=3)))
    where = f"environment 3, decision {decision} of episode 3 "
    with pytest.raises(FloatingPointError, match=f"{what}: {where}"):
        collector.collect(actor)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("apart", [False, True])
def test_physics_that_breaks_is_named_by_the_environment_of_all(apart: bool, closing: Callable) -> None:
    """The second simulator knows its row; which environment, episode and decision that is, only the engine knows."""
    broken = replace(CONFIG, fault="physics", fault_call=1, fault_row=1)
    make_handles = workers if apart else inline
    handles = closing([make_handles(2)[0], make_handles(2, broken)[1]])
    collector, actor = make(handles)
    with pytest.raises(FloatingPointError, match=r"came to nothing: environment 5, decision 1 of episode 5 "):
        collector.collect(actor)


@pytest.mark.thorough
@pytest.mark.process
def test_a_worker_that_dies_while_it_continues_costs_its_episodes(closing: Callable) -> None:
    collector, actor = make(inline(2))
    collector.collect(actor)
    state = collector.state()
    handles = closing(workers(2))
    resumed, _ = make(handles)
    _ = [handle.spec for handle in handles]
    os.kill(handles[1].pid, signal.SIGKILL)
    resumed.load(state)
    assert (resumed.restarts, resumed.lost_episodes) == (1, N // 2)
    left, right = copied(resumed.collect(actor)), copied(collector.collect(actor))
    half = {
        name: tensor.unflatten(0, (T, N))[:, : N // 2] for name, tensor in left.items() if name in ("episode", "value")
    }
    for name, tensor in half.items():
        assert torch.equal(tensor, right[name].unflatten(0, (T, N))[:, : N // 2])
    assert left["valid"].all()


def test_nan_of_the_policy_is_named() -> None:
    collector, actor = make(inline(2))
    with torch.no_grad():
        actor.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"the policy's actions: environment 0, decision 0 of episode 0"):
        collector.collect(actor)


class NoEndsReported(FakeSimulator):
    """Does not report which episodes ended."""

    def step(self, actions, next_episodes):
        return replace(super().step(actions, next_episodes), ended=np.zeros(0, np.int64))


def test_a_simulator_that_contradicts_itself_is_refused() -> None:
    collector, actor = make(inline(1, kind=NoEndsReported))
    with refuses("simulator-output-invalid", "check_simulator"):
        collector.collect(actor)


@pytest.mark.thorough
@pytest.mark.process
def test_a_worker_lost_in_a_fresh_rollout_is_parked_until_the_next(closing: Callable) -> None:
    handles = closing(fast_and_slow())
    collector, actor = make(handles, decisions=3, fresh=True, actor=KillingActor(handles[1], call=3, holds=True))
    rollout = collector.collect(actor)
    assert not rollout.valid[:, N // 2 :].any() and rollout.valid[0, : N // 2].all()
    assert collector.lost_episodes == N // 2
    assert collector.collect(actor).valid[0].all()


@pytest.mark.thorough
@pytest.mark.process
def test_a_worker_that_keeps_dying_ends_the_run(closing: Callable) -> None:
    collector, actor = make(closing(workers(1, replace(CONFIG, fault="crash"), max_restarts=1)))
    with pytest.raises(RestartLimitReached, match="simulator 0 was restarted 1 times within an hour"):
        collector.collect(actor)


@pytest.mark.thorough
@pytest.mark.process
def test_an_exception_in_a_worker_is_raised_and_no_new_one_takes_over(closing: Callable) -> None:
    collector, actor = make(closing(workers(2, replace(CONFIG, fault="raise", fault_row=2))))
    with pytest.raises(WorkerError, match="simulator 0: 'step' raised RuntimeError"):
        collector.collect(actor)
    assert collector.restarts == 0
