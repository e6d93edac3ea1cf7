"""Which numbers of an observation are the state, for spaces of any shape. Gymnasium's members are stood in for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl_sims.gymnasium_env import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.observation_layout import make_observation_layout


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
