"""Policies without a network: the operator's moves go to the right rows, random ones to the right keys."""

import numpy as np
import pytest

from embodied_rl.actors.scripted import OperatorPolicy, RandomPolicy
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.testing.fakes import FakeSimulator

SIMULATOR = FakeSimulator(4)
OBSERVATION = SIMULATOR.reset([None] * 4)


def keys(episodes: list[int], decision: int = 0, seed: int = 0) -> NoiseKeys:
    return NoiseKeys(seed, np.array(episodes), np.full(len(episodes), decision))


def test_rows_of_the_operator_follow_their_episodes() -> None:
    """Episodes 9 and 6 run in environments 1 and 2 of four."""
    moves = np.arange(8, dtype=np.float32).reshape(4, 2)
    actor = OperatorPolicy(lambda: moves, lambda index: index % 4)
    np.testing.assert_array_equal(actor.infer(OBSERVATION.select([1, 2]), keys([9, 6])), [[[2, 3]], [[4, 5]]])


def test_random_actions_are_uniform_within_the_limits() -> None:
    actor = RandomPolicy(SIMULATOR.spec)
    drawn = actor.infer(OBSERVATION, keys(list(range(4000))))
    assert drawn.shape == (4000, 1, 2) and drawn.dtype == np.float32
    assert drawn.min() >= -1 and drawn.max() <= 1
    np.testing.assert_allclose(np.quantile(drawn, [0.1, 0.5, 0.9]), [-0.8, 0, 0.8], atol=0.05)


def test_random_actions_are_keyed_by_seed_episode_and_decision() -> None:
    actor = RandomPolicy(SIMULATOR.spec)
    first = actor.infer(OBSERVATION, keys([3, 5]))
    np.testing.assert_array_equal(first[::-1], actor.infer(OBSERVATION, keys([5, 3])))
    for other in (keys([4, 6]), keys([3, 5], decision=1), keys([3, 5], seed=1)):
        assert not np.array_equal(first, actor.infer(OBSERVATION, other))


def test_keys_that_are_not_one_for_each_row_are_refused() -> None:
    """Else rows without a decision would be left out, and the others moved up."""
    with pytest.raises(ValueError, match="shorter"):
        RandomPolicy(SIMULATOR.spec).infer(OBSERVATION, NoiseKeys(0, np.array([3, 5]), np.array([0])))
