"""Rollout buffer: masks, batches, and reuse of its memory."""

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation, Source, StepResult
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

SPEC = FakeSimulator(1).spec
ACTOR = RowwiseFakeActor(SPEC, executed=3)


def result(rows: int) -> StepResult:
    """Poison wherever j ≥ steps."""
    steps = np.array([3, 1, 2, 3][:rows])
    used = np.arange(3) < steps[:, None]
    return StepResult(
        reward=np.where(used, 1.0, np.nan).astype(np.float32),
        success=~used,
        steps=steps,
        executed=np.zeros((rows, 3, 2), np.float32),
        source=np.where(used, Source.HUMAN, Source.POLICY).astype(np.uint8),
        terminated=np.array([False, True, True, False][:rows]),
        truncated=np.array([False, True, False, True][:rows]),
        observation=Observation({}, np.zeros((rows, 3)), ("",) * rows),
    )


def test_columns_have_the_types_of_the_contract() -> None:
    """Numbers of episodes beyond 2**24, which float32 cannot hold, come back as they were."""
    rollout = Rollout.allocate(ACTOR, 2, 4)
    kinds = {
        torch.int64: ("version", "decision", "steps", "episode", "group", "task"),
        torch.bool: ("success", "terminated", "truncated", "valid", "ignore_env_reward"),
        torch.uint8: ("source",),
        torch.float32: ("log_prob", "value", "reward", "shaping", "potential", "bonus", "final_value", "last_value"),
    }
    expected = {name: kind for kind, names in kinds.items() for name in names}
    assert {name: x.dtype for name, x in rollout.tensors().items() if not name.startswith("trace/")} == expected
    assert {name: x.dtype for name, x in rollout.trace.items()} == {n: k for n, (_, k) in ACTOR.trace_spec().items()}


def test_nothing_after_the_end_of_an_episode_is_kept_and_termination_wins() -> None:
    rollout = Rollout.allocate(ACTOR, 2, 4)
    rollout.clear()
    rollout.write_result(1, torch.arange(4), result(4), np.arange(4))
    assert rollout.reward[1].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert not rollout.success.any()
    assert rollout.source[1, 1].tolist() == [Source.HUMAN, Source.HOLD, Source.HOLD]
    assert rollout.terminated[1].tolist() == [False, True, True, False]
    assert rollout.truncated[1].tolist() == [False, False, False, True]
    assert rollout.valid.tolist() == [[False] * 4, [True] * 4]


def test_a_cleared_rollout_holds_nothing_of_an_earlier_round() -> None:
    rollout = Rollout.allocate(ACTOR, 2, 4)
    for tensor in rollout.tensors().values():
        tensor.fill_(1)
    rollout.clear()
    for name, tensor in rollout.tensors().items():
        assert name.startswith("trace/") or (tensor == (Source.HOLD if name == "source" else 0)).all(), name


def test_batch_rows_are_those_of_the_environments_in_order() -> None:
    """Row t·N + e of a batch is decision t of environment e, in the trace as elsewhere, without a copy."""
    simulator, rollout = FakeSimulator(3), Rollout.allocate(ACTOR, 2, 4)
    episodes = [Episode(10 + e, e % 2, seed=e, group=e // 2) for e in range(3)]
    observation = simulator.reset(episodes)
    keys = NoiseKeys(0, np.array([10, 11, 12]), np.zeros(3, np.int64))
    with torch.no_grad():
        decision = ACTOR.act(observation, keys, explore=True)
    columns = torch.tensor([3, 0, 1])
    rollout.write_decision(1, columns, decision, episodes, observation, keys)
    rollout.write_result(1, columns, result(3), np.arange(3))
    batch = rollout.batch()
    assert batch["valid"].nonzero()[:, 0].tolist() == [4, 5, 7]
    assert batch["episode"][batch["valid"]].tolist() == [11, 12, 10]
    assert batch["group"][batch["valid"]].tolist() == [0, 1, 0]
    assert torch.equal(batch["log_prob"][7], decision.log_prob[0])
    assert torch.equal(batch["trace/actions"][4], decision.trace["actions"][1])
    trace = {name: batch[f"trace/{name}"][batch["valid"]] for name in rollout.trace}
    torch.testing.assert_close(ACTOR.evaluate(trace).log_prob, batch["log_prob"][batch["valid"]])
    assert batch["value"].data_ptr() == rollout.value.data_ptr()


def test_a_lost_episode_takes_its_own_rows_along() -> None:
    rollout = Rollout.allocate(ACTOR, 3, 4)
    rollout.valid[:] = True
    rollout.lose_episodes(1, torch.tensor([3, 0]), np.array([1, 0]))
    rollout.lose_episodes(-1, torch.tensor([2]), np.array([0]))
    assert rollout.valid.T.int().tolist() == [[0, 0, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1]]


def test_clearing_keeps_the_memory_and_forgets_the_rows() -> None:
    rollout = Rollout.allocate(ACTOR, 2, 4)
    rollout.write_result(0, torch.arange(4), result(4), np.arange(4))
    before = rollout.reward.data_ptr()
    rollout.clear()
    assert rollout.reward.data_ptr() == before
    assert not rollout.valid.any() and not rollout.reward.any() and not rollout.finished
    assert (rollout.source == Source.HOLD).all()
    assert (rollout.decisions, rollout.num_envs, rollout.executed) == (2, 4, 3)


T, N, EXECUTED = 3, 2, 4


@pytest.fixture
def rollout() -> Rollout:
    made = Rollout.allocate(RowwiseFakeActor(FakeSimulator(N).spec, executed=EXECUTED), T, N)
    random = np.random.default_rng(0)
    made.reward[:] = torch.from_numpy(random.normal(size=(T, N, EXECUTED)))
    made.steps[:] = torch.from_numpy(random.integers(0, EXECUTED + 1, (T, N)))
    made.shaping[:] = torch.from_numpy(random.normal(size=(T, N)))
    made.bonus[:] = torch.from_numpy(random.normal(size=(T, N)))
    return made


@pytest.mark.parametrize("discount, gamma", [(Discount(0.9), 0.9), (Discount(0.9, per="decision"), 1.0), (None, 1.0)])
def test_columns_add_up(rollout: Rollout, discount: Discount | None, gamma: float) -> None:
    """A discount per control step counts within a chunk, one per decision does not."""
    before = rollout.reward.clone()
    found = compose_reward(rollout, discount)
    for t in range(T):
        for n in range(N):
            steps = int(rollout.steps[t, n])
            own = sum(gamma**j * float(rollout.reward[t, n, j]) for j in range(steps))
            wanted = own + float(rollout.shaping[t, n]) + float(rollout.bonus[t, n])
            assert float(found[t, n]) == pytest.approx(wanted, abs=1e-5)
    assert torch.equal(rollout.reward, before)
