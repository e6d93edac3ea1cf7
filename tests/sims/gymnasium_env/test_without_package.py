"""What needs no Gymnasium: settings, words, the size of pictures, entries of observations, and drawing."""

from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest

from embodied_rl.runtime.simulators.python_environments import read_recipe
from embodied_rl_sims.common import resize_picture
from embodied_rl_sims.gymnasium_env import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.environment import make_instruction, restore_after_drawing
from embodied_rl_sims.gymnasium_env.observation_layout import make_observation_layout
from embodied_rl_sims.gymnasium_env.settings import read_success
from embodied_rl_sims.gymnasium_env.simulator import PINS
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "os.path:Reach-v1"}, "sim.id=Reach-v1 sim.package=os.path"),
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


XML = """<mujoco><worldbody><geom type="plane" size="1 1 .1"/><site name="goal"/>
<body pos="0 0 .09"><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
FIELDS = ("qpos", "qvel", "xpos", "qacc_warmstart", "efc_force", "time")


@pytest.mark.parametrize("bound", [True, False], ids=["MuJoCo 3.4 and later", "MuJoCo before 3.4"])
def test_every_quantity_is_restored(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.4 the package has no `mj_copyData`."""
    if not bound:
        monkeypatch.delattr(mujoco, "mj_copyData", raising=False)
    elif not hasattr(mujoco, "mj_copyData"):
        pytest.skip("this MuJoCo is older")
    model = mujoco.MjModel.from_xml_string(XML)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 3)
    before = {name: np.copy(getattr(data, name)) for name in FIELDS}
    assert before["efc_force"].size
    with restore_after_drawing(SimpleNamespace(model=model, data=data)):
        data.qpos[2] += 1.0
        model.site_pos[:] = 5.0
        mujoco.mj_step(model, data, 2)
    for name in FIELDS:
        assert np.array_equal(getattr(data, name), before[name]), name
    assert (model.site_pos == 0).all()


def box(*shape: int, dtype: Any = np.float64) -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype)


def nested(**spaces: Any) -> SimpleNamespace:
    return SimpleNamespace(spaces=spaces, shape=None)


KITCHEN = nested(
    achieved_goal=nested(kettle=box(3), microwave=box(1)),
    desired_goal=nested(kettle=box(3), microwave=box(1)),
    observation=box(2),
)
SEEN = {
    "achieved_goal": {"kettle": [1, 2, 3], "microwave": [4]},
    "desired_goal": {"kettle": [5, 6, 7], "microwave": [8]},
    "observation": [9, 10],
}


def see(space: Any, observation: Any, **settings: Any) -> list[float]:
    layout = make_observation_layout(GymnasiumConfig(id="Kitchen-v1", **settings), space)
    flat = layout.flat(observation)
    assert len(layout.names) == len(flat) == len(set(layout.names))
    return flat[layout.chosen].tolist()


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"observations": "state"}, [5, 6, 7, 8, 9, 10]),
        ({"observations": "rgb"}, [9, 10]),
        ({"state_keys": ("observation", "desired_goal")}, [9, 10, 5, 6, 7, 8]),
        ({"state_keys": ("desired_goal.microwave", "observation")}, [8, 9, 10]),
        ({"state_keys": ("desired_goal",), "state_entries": (3, 0)}, [8, 5]),
        ({"state_keys": ("achieved_goal.kettle",)}, [1, 2, 3]),
    ],
)
def test_goals_within_goals_are_flattened_or_chosen(settings, state) -> None:
    assert see(KITCHEN, SEEN, **settings) == state


def test_names_lead_to_what_they_name() -> None:
    layout = make_observation_layout(GymnasiumConfig(id="Kitchen-v1", observations="state"), KITCHEN)
    assert layout.state_names[2:5] == ("desired_goal.kettle_2", "desired_goal.microwave_0", "observation_0")
    assert layout.flat(SEEN).tolist() == list(range(1, 11))


def test_what_is_no_number_stands_in_the_way_only_where_it_is_chosen() -> None:
    space = nested(eye=box(8, 8, 3, dtype=np.uint8), words=SimpleNamespace(shape=None), hand=nested(finger=box(2)))
    seen = {"eye": np.zeros((8, 8, 3)), "words": "go", "hand": {"finger": [1, 2]}}
    assert see(space, seen, state_keys=("hand",)) == [1, 2]
    for settings in ({"observations": "state"}, {"state_keys": ("hand", "eye")}):
        with pytest.raises(ValueError, match=r"its observation 'eye' is .* no list of numbers.*sim\.state_keys="):
            see(space, seen, **settings)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("desired",), "has achieved_goal.kettle, achieved_goal.microwave, desired_goal.kettle"),
        (("desired_goal.kettle.lid",), "sim.state_keys=.'desired_goal.kettle.lid'."),
        (("desired_goal", "desired_goal.kettle"), "desired_goal.kettle would occur twice"),
    ],
)
def test_keys_that_choose_nothing_or_twice_are_named(keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        see(KITCHEN, SEEN, state_keys=keys)


def test_one_array_has_no_keys() -> None:
    assert see(box(2, 2), np.arange(4).reshape(2, 2)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="none: its observation is one array"):
        see(box(2), [0, 1], state_keys=("a",))
