"""Rollout workers: newer weights between two decisions, transfer of rollouts to learners, and timeouts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.learning.weights import publish_weights
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.runtime.processes.board import SharedBoard
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import Plan
from embodied_rl.testing.fake_actor import RowwiseFakeActor
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.training import rollout_worker
from embodied_rl.training.rollout_worker import (
    REPORT,
    Collecting,
    CollectOrder,
    LatestWeightsPolicy,
    PublishedWeights,
    RolloutWorker,
    WorkerStart,
    fill_rollout,
    redistribute,
    to_arrays,
)
from embodied_rl.training.sources import SharedExperience
from embodied_rl.training.worker_pool import LEAST_TIMEOUT, worker_report_timeout
from tests.support.collecting import T, inline, make
from tests.support.refusals import refuses

SPEC = FakeSimulator.spec_of(FakeSimulator.Config())


class Learner:
    """An actor that learns, and a remote policy that loads its weights."""

    def __init__(self) -> None:
        self.actor, self.board = RowwiseFakeActor(SPEC, seed=0), SharedBoard()
        infers = RowwiseFakeActor(SPEC, seed=1)
        infers.version = -1
        self.policy = LatestWeightsPolicy(PolicyWorker(infers), self.board.reader())
        simulator = FakeSimulator(2, FakeSimulator.Config())
        episode: Any = None
        self.seen = simulator.reset([episode, episode])
        self.keys = NoiseKeys(0, np.arange(2), np.zeros(2, np.int64))

    def learn(self, version: int) -> None:
        with torch.no_grad():
            for parameter in self.actor.parameters():
                parameter += 0.1
        self.actor.version = version
        self.board.publish(version, PublishedWeights(publish_weights(self.actor, version), {}))


def test_each_decision_is_made_with_the_newest_weights() -> None:
    learner = Learner()
    for version in (0, 1, 5):
        learner.learn(version)
        found = learner.policy.act(learner.seen, learner.keys, explore=True)
        wanted = learner.actor.act(learner.seen, learner.keys, explore=True)
        np.testing.assert_array_equal(found.actions, wanted.actions)
        assert found.version.tolist() == [version, version]


def test_values_belong_to_the_weights_that_decided_last() -> None:
    learner = Learner()
    learner.learn(0)
    learner.policy.act(learner.seen, learner.keys, explore=True)
    before = learner.actor.value(learner.seen, learner.keys)
    learner.learn(1)
    assert torch.equal(learner.policy.value(learner.seen, learner.keys), before)


def test_waiting_for_promised_weights_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_worker, "WEIGHTS_TIMEOUT", 0.1)
    learner = Learner()
    learner.learn(2)
    learner.policy.wait_for(1)
    learner.policy.wait_for(2)
    with pytest.raises(TimeoutError, match=r"version 3 were not published within 0\.1 s"):
        learner.policy.wait_for(3)


class NoNewWeights:
    """A board without new weights."""

    def newest(self, above: int = -1) -> None:
        return None

    def close(self) -> None:
        """Nothing to release."""


def one_worker() -> tuple[RolloutWorker, CollectOrder]:
    """A rollout worker with the simulators and the actor of `tests.support.collecting`, and its first order."""
    collector, actor = make(inline(2))
    collecting = Collecting(collector, EpisodeSampler(SPEC, 0), [], [])
    worker = RolloutWorker(PolicyWorker(actor), NoNewWeights(), collecting)
    everything = PublishedWeights(publish_weights(actor, 0, everything=True), {})
    beginning = WorkerStart(everything.weights, PublishedWeights(publish_weights(actor, 0), {}))
    return worker, CollectOrder(0, 0, beginning=beginning)


def test_a_worker_that_reports_after_every_turn_collects_the_same_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, order = one_worker()
    monkeypatch.setattr(rollout_worker, "REPORT", 1e9)
    whole = worker.collect(order)
    monkeypatch.setattr(rollout_worker, "REPORT", 0.0)
    worker, order = one_worker()
    answers = [worker.collect(order)]
    while answers[-1] is None:
        answers.append(worker.proceed())
    assert len(answers) == 2 * T + 1, "after each turn of two slices"
    parted = answers[-1]
    assert whole is not None and parted is not None and whole.arrays.keys() == parted.arrays.keys()
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, parted.arrays[name])
    assert whole.report.finished == parted.report.finished and torch.is_grad_enabled()


def rollout(envs: int, seed: int, dtype: torch.dtype = torch.float32) -> Rollout:
    """Random numbers in every tensor."""
    made = Rollout.allocate(RowwiseFakeActor(SPEC), 3, envs)
    made.trace["kept"] = torch.zeros(3, envs, 4, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for tensor in made.tensors().values():
        tensor.copy_(torch.randint(0, 2, tensor.shape, generator=generator))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back(dtype: torch.dtype) -> None:
    sent, arrived = rollout(4, 0, dtype), rollout(4, 1, dtype)
    fill_rollout(arrived, to_arrays(sent))
    for name, tensor in sent.tensors().items():
        assert torch.equal(arrived.tensors()[name], tensor), name


@pytest.mark.parametrize(("makers", "learners"), [(1, 3), (3, 1), (2, 3), (3, 2), (2, 2)])
def test_environments_keep_their_order(makers: int, learners: int) -> None:
    whole = rollout(12, 0)
    arrays = to_arrays(whole)
    parts = [
        {name: np.split(array, makers, axis=int(name != "last_value"))[part] for name, array in arrays.items()}
        for part in range(makers)
    ]
    shares = redistribute(parts, learners)
    assert len(shares) == learners
    for name, array in arrays.items():
        axis = int(name != "last_value")
        assert all(share[name].shape[axis] == 12 // learners for share in shares)
        np.testing.assert_array_equal(np.concatenate([share[name] for share in shares], axis), array)


def test_other_sizes_are_refused() -> None:
    with refuses("rollout-shape-mismatch"):
        fill_rollout(rollout(4, 0), to_arrays(rollout(5, 0)))


class Listening(Ranks):
    """Rank 1 of two; the reports of rank 0 are given."""

    rank, size = 1, 2

    def __init__(self, words: list[Any]) -> None:
        self.words = words

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        return [self.words.pop(0), value]


class Telling(Ranks):
    """Rank 0 of two; its reports are recorded."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.told: list[Any] = []

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        self.told.append(value)
        return [value, True]


class Slow:
    """A dispatcher with a rollout that is complete at the third call of `wait`."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, float]] = []

    def wait(self, number: int, seconds: float) -> bool:
        self.looks.append((number, seconds))
        return len(self.looks) == 3


def experience(ranks: Ranks, workers: Any) -> SharedExperience:
    """Of version 5, which learns from two segments."""
    rollouts, actor, sampler = [None, None], SimpleNamespace(version=5), None
    return SharedExperience(actor, ranks, rollouts, sampler, workers)  # type: ignore[arg-type]


def test_rank_0_reports_while_it_waits() -> None:
    ranks, slow = Telling(), Slow()
    experience(ranks, SimpleNamespace(dispatcher=slow))._await_parts()
    assert ranks.told == [False, False, True]
    assert slow.looks == [(10, REPORT)] * 3


def test_other_ranks_listen_until_the_rollout_is_there() -> None:
    ranks = Listening([False, False, False, True, "not reached"])
    experience(ranks, None)._await_parts()
    assert ranks.words == ["not reached"]


@pytest.mark.parametrize(("start", "call"), [(300.0, 120.0), (1.0, 1.0), (86400.0, 86400.0)])
def test_a_worker_s_deadline_holds_a_replaced_simulator_and_no_whole_rollout(start: float, call: float) -> None:
    """One call to notice, the start, one more call, and the time until the next report."""
    plan = Plan(start_timeout=start, call_timeout=call)
    assert worker_report_timeout(plan) == call + start + call + REPORT


def test_ranks_wait_longer_than_rank_0_is_silent() -> None:
    assert 10 * REPORT < LEAST_TIMEOUT
