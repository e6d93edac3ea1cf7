"""Seeds that packages take: small ones as they are, and never the same for training and for evaluation."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.rollout.episode_sampler import derive_episode_seed
from embodied_rl_sims.common import fold_seed
from embodied_rl_sims.isaaclab.simulator import IsaacLab
from embodied_rl_sims.maniskill.single import find_seed


@pytest.mark.parametrize("bits", [31, 32])
def test_purposes_have_separate_seed_ranges(bits: int) -> None:
    """The smallest and the largest seed of a purpose bound all that it draws."""
    ranges = [(fold_seed(purpose << 61, bits), fold_seed((purpose + 1 << 61) - 1, bits)) for purpose in range(4)]
    assert [low for low, _ in ranges] == [purpose << bits - 2 for purpose in range(4)]
    assert all(before < low for (_, before), (low, _) in pairwise(ranges))
    assert ranges[-1][1] == 2**bits - 1


@pytest.mark.parametrize("bits", [31, 32])
def test_small_seeds_stay_what_they_are_and_drawn_ones_hardly_ever_meet(bits: int) -> None:
    assert [fold_seed(seed, bits) for seed in (0, 7, 2 ** (bits - 2) - 1)] == [0, 7, 2 ** (bits - 2) - 1]
    found = [fold_seed(derive_episode_seed("train", "train", 0, index), bits) for index in range(2000)]
    assert len(set(found)) > 1990
    for purpose in range(4):
        drawn = (derive_episode_seed("train", "train", 0, index) | purpose << 61 for index in range(50))
        assert {fold_seed(seed, bits) >> bits - 2 for seed in drawn} == {purpose}, "whatever their other bits"


def test_adapters_fold_seeds() -> None:
    """Gymnasium's: `test_package.py`. Of Isaac Lab's simulator nothing but its `reset` is there."""
    seed, taken = (1 << 61) + 5, list[int]()
    simulator: Any = SimpleNamespace(
        _environment=SimpleNamespace(seed=taken.append), _begin=lambda episodes: None, _observe=lambda: None
    )
    IsaacLab.reset(simulator, [None, Episode(0, 0, seed)])
    assert taken == [fold_seed(seed, 31)] and find_seed(Episode(0, 0, seed)) == fold_seed(seed, 32)
