"""What the adapter says where Isaac Lab is not installed, and of settings that cannot be."""

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.runtime.simulators.python_environments import read_recipe
from embodied_rl_sims.isaaclab import IsaacLab, IsaacLabConfig
from embodied_rl_sims.isaaclab.launch import list_shapes
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


def node(**values: Any) -> Any:
    """Return a configuration of the kind that Isaac Lab has, of the given values."""
    return make_dataclass("Node", list(values))(**values)


def scene(file: str, **others: Any) -> Any:
    return node(robot=node(prim_path="/World", spawn=node(usd_path=f"https://a.server/Robots/{file}")), **others)


def test_shapes_replace_the_robot_and_the_ground_of_a_server() -> None:
    found = list_shapes(
        "Isaac-Cartpole", scene("cartpole.usd", ground=node(spawn=node(usd_path="https://a.server/ground.usd")))
    )
    file = found.pop("scene.robot.spawn.usd_path")
    assert found == {"scene.ground": None}
    assert list(list_shapes("Isaac-Cartpole", scene("cartpole.usd", ground=node(spawn=node(size=4))))) == [
        "scene.robot.spawn.usd_path"
    ], "a ground that is no file stays"
    text = Path(file).read_text()
    for joint in ('PhysicsPrismaticJoint "slider_to_cart"', 'PhysicsRevoluteJoint "cart_to_pole"'):
        assert text.startswith("#usda 1.0") and joint in text


def test_shapes_of_another_robot_are_refused() -> None:
    with refuses("shapes-missing", "Isaac-Reach-Franka", "only for cartpole.usd"):
        list_shapes("Isaac-Reach-Franka", scene("panda_instanceable.usd"))


def test_quaternions_are_xyzw() -> None:
    assert _names({"eef_quat": 4, "eef_pos": 3, "gripper": 2}) == (
        *(f"eef_quat_{axis}" for axis in "xyzw"), *(f"eef_pos_{axis}" for axis in "xyz"), "gripper_0", "gripper_1"
    )  # fmt: skip


def test_the_recipe_installs_what_the_diagnosis_expects() -> None:
    pins = {requirement.replace("[sim]", "") for step in read_recipe("isaaclab").steps for requirement in step}
    assert {f"{name}=={version}" for name, version in PINS.items()} <= pins
