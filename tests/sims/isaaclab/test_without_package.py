"""What the adapter says where Isaac Lab is not installed, and of settings that cannot be."""

from typing import Any

import pytest

from embodied_rl.runtime.simulators.python_environments import read_recipe
from embodied_rl_sims.isaaclab import IsaacLab, IsaacLabConfig
from embodied_rl_sims.isaaclab.simulator import PINS, make_instruction
from embodied_rl_sims.isaaclab.views import _names
from tests.support.refusals import refuses


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="isaaclab"):
        IsaacLab(IsaacLabConfig(), 1)
    assert [line.status for line in IsaacLab.diagnose(IsaacLabConfig())][:3] == ["fail", "fail", "fail"]


@pytest.mark.parametrize(
    ("settings", "code", "parts"),
    [
        ({"id": "evil:Isaac-Cartpole"}, "package-in-id", ("sim.package=evil",)),
        ({"image_size": 0}, "value-out-of-range", ("sim.image_size=0",)),
        ({"horizon": 0}, "value-out-of-range", ("sim.horizon=0",)),
        ({"action_limit": 0.0}, "value-out-of-range", ("sim.action_limit",)),
        ({"reward": "success"}, "key-missing", ("sim.success",)),
        ({"cameras": ("front", "front")}, "camera-twice", ("front",)),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], code: str, parts: tuple[str, ...]) -> None:
    with refuses(code, *parts):
        IsaacLabConfig(**settings)


@pytest.mark.parametrize(
    ("id", "instruction"),
    [
        ("Isaac-Open-Drawer-Franka", "open drawer franka"),
        ("IsaacContrib-Stack-Cube-SO101-IK-Abs-v0", "stack cube so101 ik abs"),
    ],
)
def test_an_instruction_follows_from_the_id(id: str, instruction: str) -> None:
    assert make_instruction(IsaacLabConfig(id)) == instruction
    assert make_instruction(IsaacLabConfig(id, instruction="stack them")) == "stack them"


def test_quaternions_are_xyzw() -> None:
    assert _names({"eef_quat": 4, "eef_pos": 3, "gripper": 2}) == (
        *(f"eef_quat_{axis}" for axis in "xyzw"), *(f"eef_pos_{axis}" for axis in "xyz"), "gripper_0", "gripper_1"
    )  # fmt: skip


def test_the_recipe_installs_what_the_diagnosis_expects() -> None:
    pins = {requirement.replace("[sim]", "") for step in read_recipe("isaaclab").steps for requirement in step}
    assert {f"{name}=={version}" for name, version in PINS.items()} <= pins
