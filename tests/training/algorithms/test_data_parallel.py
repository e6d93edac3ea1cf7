"""Data-parallel learning in processes: ranks with a share of the rows each learn what one with all of them learns."""

import pytest
import torch

from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.launch import launch_ranks
from tests.support import rank_learning
from tests.support.experience import make_actor, weights

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks"), pytest.mark.thorough]


@pytest.mark.parametrize(
    ("sampler", "critic", "stale", "micro_batch"),
    [("hybrid", "prefix", 0, None), ("hybrid", "prefix", 1, 3), ("noise", "privileged", 1, None)],
)
def test_two_ranks_arrive_where_one_arrives(sampler: str, critic: str, stale: int, micro_batch: int | None) -> None:
    """Four epochs of one minibatch each, so that the order of rows does not matter; they hold different numbers."""
    config = {"sampler": sampler, "critic": critic, "stale": stale, "micro_batch": None}
    expected = rank_learning.learn(config, Ranks())
    start = weights(make_actor(sampler, critic, freeze_perception=True))
    assert max(float((value - start[name]).abs().max()) for name, value in expected.items()) > 1e-3
    found = launch_ranks(rank_learning.learn, config | {"micro_batch": micro_batch}, 2, timeout=200, threads=1)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(("segments", "micro_batch"), [(1, None), (1, 5), (3, None)])
def test_two_ranks_take_the_gradient_that_one_takes(segments: int, micro_batch: int | None) -> None:
    """Of the policy, its entropy, an auxiliary loss and a critic on the network, from three rows on and from five.

    Only a human acted in the three. The ratios are 1, so that no rounding decides what is clipped.
    """
    expected = rank_learning.take_gradient({"segments": 1, "micro_batch": None}, Ranks())
    config = {"segments": segments, "micro_batch": micro_batch}
    found = launch_ranks(rank_learning.take_gradient, config, 2, timeout=200, threads=1)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * largest, msg=name)
