"""What needs neither the package nor its environment."""

import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.maniskill import ManiSkillConfig
from embodied_rl_sims.maniskill.settings import make_instruction
from embodied_rl_sims.maniskill.single import find_seed


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"backend": "tpu"}, "sim.backend=tpu: give one of cpu, gpu"),
        ({"observations": "depth"}, "sim.observations=depth"),
        ({"reward": "shaped"}, "sim.reward=shaped"),
        ({"horizon": 0}, "sim.horizon=0"),
        ({"image_size": 0}, "sim.image_size=0"),
        ({"reconfiguration_freq": 5}, "the episodes before it"),
        ({"backend": "gpu", "reconfiguration_freq": 1}, "leave out"),
    ],
)
def test_wrong_settings_are_refused_by_key(keys, message):
    with pytest.raises(ValueError, match=message):
        ManiSkillConfig(**keys)


def test_small_seeds_and_numbered_states_are_the_packages_own():
    assert find_seed(Episode(0, 0, 2**30 - 1)) == 2**30 - 1
    assert find_seed(Episode(0, 0, 5, initial_state=9)) == 9


def test_large_seeds_fit_the_package_and_purposes_stay_apart():
    seeds = {find_seed(Episode(0, 0, (number << 61) + 5)) for number in range(4)}
    assert len(seeds) == 4 and all(0 <= seed < 2**32 for seed in seeds)


def test_every_task_has_words():
    assert make_instruction("PickCube-v1").startswith("pick up the red cube")
    assert make_instruction("MS-HumanoidRun-v1") == "humanoid run"
    assert make_instruction("RotateValveLevel0-v1") == "rotate valve level 0"
