"""Rollouts are transferred from collectors to learners unchanged."""

import numpy as np
import pytest
import torch

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.testing.fake_actor import RowwiseFakeActor
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.training.rollout_worker import fill_rollout, redistribute, to_arrays
from tests.support.refusals import refuses

SPEC = FakeSimulator.spec_of(FakeSimulator.Config())


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
