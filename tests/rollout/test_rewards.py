"""One place composes what algorithms learn from; the simulator's reward stays what it was."""

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

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


def test_columns_are_empty_at_the_start_of_a_rollout(rollout: Rollout) -> None:
    rollout.decision[:] = 5
    rollout.clear()
    assert not rollout.shaping.any() and not rollout.bonus.any() and not rollout.decision.any()
