"""Collection: independence of slicing and timing, exact resume, whole episodes, and overlap."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import StepResult
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.collecting import (
    CONFIG,
    SEED,
    SPEC,
    N,
    T,
    assert_equal,
    copied,
    half_skilled,
    inline,
    make,
    reference,
    workers,
)
from tests.support.refusals import refuses


class Loop:
    """An independent, naive collector of one environment, without slices."""

    def __init__(self, env: int):
        self.sampler, self.actor = EpisodeSampler(SPEC, SEED), RowwiseFakeActor(SPEC)
        self.simulator, self.env, self.count, self.decision = FakeSimulator(1, CONFIG), env, 0, 0
        self.observation = self.simulator.reset([self.episode()])

    def episode(self, later: int = 0):
        return self.sampler.episode(self.env + (self.count + later) * N)

    def keys(self) -> NoiseKeys:
        return NoiseKeys(SEED, np.array([self.episode().index]), np.array([self.decision]))

    @torch.no_grad()
    def step(self) -> tuple[int, Decision, StepResult, float]:
        index, decision = self.episode().index, self.actor.act(self.observation, self.keys(), explore=True)
        result = self.simulator.step(decision.actions, [self.episode(1)])
        self.decision, final_value = self.decision + 1, 0.0
        if result.truncated[0]:
            final_value = float(self.actor.value(result.final_observation, self.keys()))
        if len(result.ended):
            self.count, self.decision = self.count + 1, 0
        self.observation = result.observation
        return index, decision, result, final_value


@pytest.mark.thorough
def test_a_rollout_equals_that_of_a_naive_loop() -> None:
    """Episodes carry over between two rollouts; final values are those of the episode that ended."""
    collector, actor = make(inline(2))
    loops = [Loop(env) for env in range(N)]
    for _ in range(2):
        rollout, truncations = collector.collect(actor), 0
        for t in range(T):
            for env, loop in enumerate(loops):
                index, decision, result, final_value = loop.step()
                assert rollout.episode[t, env] == index
                assert torch.equal(rollout.log_prob[t, env], decision.log_prob[0])
                assert torch.equal(rollout.value[t, env], decision.value[0])
                assert torch.equal(rollout.trace["actions"][t, env], decision.trace["actions"][0])
                image = rollout.trace["input/image/top"][t, env]
                assert torch.equal(image, decision.trace["input/image/top"][0])
                assert rollout.reward[t, env].tolist() == result.reward[0].tolist()
                assert rollout.steps[t, env] == result.steps[0]
                assert rollout.terminated[t, env] == result.terminated[0]
                assert rollout.truncated[t, env] == result.truncated[0]
                assert rollout.final_value[t, env] == final_value
                truncations += int(result.truncated[0])
        assert truncations > 0 and rollout.valid.all()
        for env, loop in enumerate(loops):
            assert rollout.last_value[env] == actor.value(loop.observation, loop.keys())


@pytest.mark.parametrize(("parts", "slices"), [(2, 2), (4, 4), (4, 2), (4, 1)])
def test_slices_and_handles_change_no_bit(parts: int, slices: int) -> None:
    collector, actor = make(inline(parts), slices=slices)
    for expected in reference():
        assert_equal(copied(collector.collect(actor)), expected)


@pytest.mark.thorough
@pytest.mark.process
def test_worker_processes_change_no_bit(closing: Callable) -> None:
    collector, actor = make(closing(workers(4)), slices=2)
    for expected in reference():
        assert_equal(copied(collector.collect(actor)), expected)
    main, theirs = collector.memory
    assert len(theirs) == 4 and min(theirs) > main / 100 > 0
    timing = collector.timeline
    assert timing.inference + timing.waiting <= timing.total and timing.simulating > 0


def test_ranks_collect_the_rollout_of_one_collector() -> None:
    """Two collectors of half the environments each, by their global numbers."""
    (expected,) = reference(1)
    for rank in range(2):
        actor = RowwiseFakeActor(SPEC)
        rollout = Rollout.allocate(actor, T, N // 2)
        handles = [InlineHandle(lambda: FakeSimulator(N // 2, CONFIG))]
        sampler = EpisodeSampler(SPEC, SEED)
        collector = Collector(handles, SPEC, N // 2, sampler, rollout, SEED, env_offset=rank * N // 2, env_total=N)
        collector.collect(actor)
        mine = slice(rank * N // 2, (rank + 1) * N // 2)
        for name, tensor in rollout.batch().items():
            assert torch.equal(tensor.unflatten(0, (T, -1)), expected[name].unflatten(0, (T, N))[:, mine]), name


def test_finished_episodes_are_counted_once_with_their_sums() -> None:
    collector, actor = make(inline(2), actor=half_skilled())
    rewards: dict[int, float] = {}
    steps: dict[int, int] = {}
    records = []
    for _ in range(3):
        rollout = collector.collect(actor)
        for index, reward, count in zip(
            rollout.episode.flatten().tolist(),
            rollout.reward.sum(-1).flatten().tolist(),
            rollout.steps.flatten().tolist(),
            strict=True,
        ):
            rewards[index] = rewards.get(index, 0) + reward
            steps[index] = steps.get(index, 0) + count
        records += rollout.finished
        assert len(rollout.finished) == int((rollout.terminated | rollout.truncated).sum())
    assert len({record.index for record in records}) == len(records)
    for record in records:
        assert record.reward == rewards[record.index] and record.steps == steps[record.index]
        assert record.success_once == record.success_at_end == (record.reward > 0)
        assert record.task == EpisodeSampler(SPEC, SEED).episode(record.index).task
    assert any(record.success_once for record in records) and not all(record.success_once for record in records)


@pytest.mark.thorough
@pytest.mark.parametrize("before", [0, 1])
def test_a_loaded_state_continues_to_the_bit_in_mid_episode(before: int) -> None:
    first, second, third = reference(3)
    collector, actor = make(inline(2))
    for _ in range(before):
        collector.collect(actor)
    state = collector.state()
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
    collector.collect(actor)  # going on must not change what was saved
    resumed, actor = make(inline(2))
    resumed.load(state)
    for expected in ([first, second], [second, third])[before]:
        assert_equal(copied(resumed.collect(actor)), expected)


def test_a_state_of_other_sizes_is_refused() -> None:
    collector, actor = make(inline(2))
    collector.collect(actor)
    state = collector.state()
    with refuses("checkpoint-state-mismatch", 2, 4):
        make(inline(4))[0].load(state)
    state = {name: array[:4] if name.startswith("environments/") else array for name, array in state.items()}
    with refuses("checkpoint-state-mismatch", 4, 8):
        make(inline(2))[0].load(state)


def test_without_snapshots_running_episodes_are_restarted(caplog) -> None:
    spec = replace(SPEC, can_snapshot=False)
    actor = RowwiseFakeActor(spec)

    def collector() -> Collector:
        return Collector(inline(2), spec, 4, EpisodeSampler(spec, SEED), Rollout.allocate(actor, T, N), SEED)

    first = collector()
    before = first.collect(actor).episode[-1].clone()
    over = first.rollout.terminated[-1] | first.rollout.truncated[-1]
    resumed = collector()
    resumed.load(first.state())
    assert "running are restarted" in caplog.text
    rollout = resumed.collect(actor)
    assert torch.equal(rollout.episode[0], before + N * over)
    started = [EpisodeSampler(spec, SEED).episode(int(index)) for index in rollout.episode[0]]
    observation = FakeSimulator(N, CONFIG).reset(started)
    assert torch.equal(rollout.trace["input/image/top"][0], torch.from_numpy(observation.images["top"]))


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_fresh_rollouts_hold_whole_episodes_and_park_ended_environments(parts: int) -> None:
    collector, actor = make(inline(parts), decisions=3, fresh=True, group_size=2, actor=half_skilled())
    results = []
    for count in range(3):
        rollout = collector.collect(actor)
        results.append(copied(rollout))
        assert sorted(record.index for record in rollout.finished) == list(range(count * N, (count + 1) * N))
        assert (rollout.steps.sum(0) <= SPEC.horizon).all() and not rollout.last_value.any()
        over = (rollout.terminated | rollout.truncated).cumsum(0)
        assert torch.equal(rollout.valid[1:], over[:-1] == 0) and (over[-1] == 1).all()
        assert (rollout.trace["input/image/top"][0, 0::2] == rollout.trace["input/image/top"][0, 1::2]).all()
        assert torch.equal(rollout.group[0], rollout.episode[0] // 2)
    assert not all(result["valid"].all() for result in results)
    collector, actor = make(inline(1), decisions=3, fresh=True, group_size=2, actor=half_skilled())
    collector.collect(actor)
    state = collector.state()
    resumed, _ = make(inline(parts), decisions=3, fresh=True, group_size=2, actor=half_skilled())
    resumed.load(state)
    for expected in results[1:]:
        assert_equal(copied(resumed.collect(actor)), expected)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with refuses("envs-not-divisible", 8, 3):
        make([InlineHandle(lambda: FakeSimulator(2))] * 3, slices=1)
    with refuses("envs-not-divisible", "plan.slices", 2, 8, 4):
        make(inline(2), slices=4)
    with refuses("envs-not-divisible", 8, 3):
        make(inline(2), group_size=3)
    with refuses("rollout-too-short", 10, "≥ 3"):
        make(inline(2), decisions=2, fresh=True)


class WatchedHandle(InlineHandle):
    """Records whether a chunk is being executed: submitted and not collected yet."""

    busy = False

    def submit(self, method, *args):
        future = super().submit(method, *args)
        self.busy = method == "step"
        return WatchedFuture(self, future)


class WatchedFuture:
    began = seconds = 0.0

    def __init__(self, handle: WatchedHandle, future):
        self.handle, self.future = handle, future

    def result(self, timeout=None):
        self.handle.busy = False
        return self.future.result(timeout)


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_while_one_slice_is_inferred_all_others_simulate(slices: int) -> None:
    """At every decision after the first round, whatever the timing; and nothing is left in flight at the end."""
    handles = [WatchedHandle(lambda: FakeSimulator(N // slices, CONFIG)) for _ in range(slices)]
    seen: list[list[bool]] = []

    class Watching(RowwiseFakeActor):
        def act(self, observation, keys, explore):
            seen.append([handle.busy for handle in handles])
            return super().act(observation, keys, explore)

    collector, actor = make(handles, actor=Watching(SPEC))
    collector.collect(actor)
    assert len(seen) == T * slices
    for call, busy in enumerate(seen):
        expected = [other != call % slices for other in range(slices)]
        if call < slices:
            expected = [other < call for other in range(slices)]
        assert busy == expected
    assert not any(handle.busy for handle in handles)
