"""What needs no Gymnasium: settings, words, seeds, and the size of pictures."""

import numpy as np
import pytest

from embodied_rl.runtime.simulators.python_environments import read_recipe
from embodied_rl_sims.common import resize_picture
from embodied_rl_sims.gymnasium_env import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.environment import make_instruction
from embodied_rl_sims.gymnasium_env.settings import read_success
from embodied_rl_sims.gymnasium_env.simulator import PINS
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 0}, "sim.image_size=0"),
        ({"horizon": 0}, "sim.horizon=0"),
        ({"control_hz": 0.0}, "sim.control_hz"),
        ({"success": None, "reward": "success"}, "sim.reward=success needs sim.success"),
        ({"options": {"width": 64}}, "sim.options.width: set sim.image_size"),
        ({"options": {"render_mode": "human"}}, "set sim.observations"),
        ({"state_entries": (0, 0)}, "sim.state_entries"),
        ({"state_entries": (-1,)}, "sim.state_entries"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumConfig(**settings)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("FetchPickAndPlace-v4", "fetch pick and place"),
        ("HalfCheetah-v5", "half cheetah"),
        ("namespace/open_drawer-v0", "open drawer"),
        ("unversioned", "unversioned"),
    ],
)
def test_the_instruction_is_made_of_the_id(id, words) -> None:
    assert make_instruction(GymnasiumConfig(id=id)) == words
    assert make_instruction(GymnasiumConfig(id=id, instruction="do it")) == "do it"


def test_the_recipe_installs_what_the_diagnosis_expects() -> None:
    steps = [requirement for step in read_recipe("gymnasium").steps for requirement in step]
    assert steps == [f"{name}=={version}" for name, version in PINS.items()]


def test_a_smaller_picture_is_the_mean_of_what_it_covers() -> None:
    """2 × 3 pixels to 1 × 2: the middle column belongs to both by half."""
    picture = np.array([[0, 90, 30], [60, 30, 90]], np.uint8)[..., None].repeat(3, 2)
    left = (0 + 60 + 0.5 * (90 + 30)) / 3
    right = (30 + 90 + 0.5 * (90 + 30)) / 3
    assert resize_picture(picture, 1, 2)[0, :, 0].tolist() == [left, right]
    assert np.array_equal(resize_picture(picture, 4, 6), picture.repeat(2, 0).repeat(2, 1))
    assert resize_picture(picture, 2, 3) is picture


@pytest.mark.parametrize(("id", "info", "expected"), [
    ("FetchReach-v4", {"is_success": 1.0}, True),
    ("FetchReach-v4", {"is_success": 0.0}, False),
    ("AdroitHandDoor-v1", {"success": True}, True),
    ("AdroitHandHammerSparse-v1", {"success": False}, False),
    ("FrankaKitchen-v1", {"tasks_to_complete": ["kettle"]}, False),
    ("FrankaKitchen-v1", {"tasks_to_complete": []}, True),
])  # fmt: skip
def test_success_is_found_in_the_environments_of_gymnasium_robotics(id: str, info: dict, expected: bool) -> None:
    assert read_success(GymnasiumConfig(id=id), info) is expected


def test_a_named_entry_of_info_must_be_there() -> None:
    assert read_success(GymnasiumConfig(id="Custom-v0", success=None), {}) is False
    with refuses("success-entry-unknown", "sim.success=won", "Custom-v0", "lost"):
        read_success(GymnasiumConfig(id="Custom-v0", success="won"), {"lost": True})
