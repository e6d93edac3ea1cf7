"""Seeds that packages take: small ones as they are, and never the same for training and for evaluation."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.rollout.episode_sampler import derive_episode_seed
from embodied_rl_sims.gymnasium_env.environment import GymnasiumEnvironment
from embodied_rl_sims.isaac.simulator import IsaacLab
from embodied_rl_sims.maniskill.single import find_seed


def take_gymnasium(seed: int) -> int:
    """What `begin` hands to the environment, of an environment of which nothing else is there."""
    taken = list[int]()

    def reset(seed: int) -> Any:
        taken.append(seed)
        return None, None

    package = SimpleNamespace(reset=reset, unwrapped=SimpleNamespace())
    GymnasiumEnvironment.begin(cast("Any", SimpleNamespace(_environment=package)), Episode(0, 0, seed))
    return taken[0]


def take_maniskill(seed: int) -> int:
    return find_seed(Episode(0, 0, seed))


def take_isaac(seed: int) -> int:
    """What `reset` hands to Isaac Lab, of a simulator of which nothing else is there."""
    taken = list[int]()

    def reset(seed: int) -> Any:
        taken.append(seed)
        return None, None

    simulator: Any = SimpleNamespace(
        _environment=SimpleNamespace(reset=reset),
        _view_reader=SimpleNamespace(read=lambda observation: observation),
        _observe=lambda: None,
    )
    IsaacLab.reset(simulator, [None, Episode(0, 0, seed)])
    return taken[0]


PACKAGES = [(take_gymnasium, 31), (take_maniskill, 32), (take_isaac, 31)]


@pytest.mark.parametrize(("take", "bits"), PACKAGES)
def test_purposes_have_separate_seed_ranges(take, bits: int) -> None:
    """The smallest and the largest seed of a purpose bound all that it draws."""
    ranges = [(take(purpose << 61), take((purpose + 1 << 61) - 1)) for purpose in range(4)]
    assert [low for low, _ in ranges] == [purpose << bits - 2 for purpose in range(4)]
    assert all(before < low for (_, before), (low, _) in pairwise(ranges))
    assert ranges[-1][1] == 2**bits - 1


@pytest.mark.parametrize(("take", "bits"), PACKAGES)
def test_a_seed_of_training_that_equals_a_reported_one_in_its_other_bits_stays_apart(take, bits: int) -> None:
    for index in range(50):
        seed = derive_episode_seed("train", "train", 0, index)
        for purpose in (1, 2):
            others = {
                seed | purpose << 61,
                (seed | purpose << 61) ^ purpose << 29,
                (seed | purpose << 61) ^ purpose << 30,
            }
            assert take(seed) not in {take(other) for other in others}
            assert all(take(other) >> bits - 2 == purpose for other in others)


@pytest.mark.parametrize(("take", "bits"), PACKAGES)
def test_small_seeds_stay_what_they_are_and_drawn_ones_hardly_ever_meet(take, bits: int) -> None:
    assert [take(seed) for seed in (0, 7, 2 ** (bits - 2) - 1)] == [0, 7, 2 ** (bits - 2) - 1]
    found = [take(derive_episode_seed("train", "train", 0, index)) for index in range(2000)]
    assert len(set(found)) > 1990
