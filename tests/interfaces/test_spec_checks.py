"""A spec that cannot be true is refused when it is made, by the name and the value of its field."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, Task
from embodied_rl.testing.fakes import FakeSimulator

SPEC = FakeSimulator(1).spec

WRONG = [
    ("horizon", 0, "0"),
    ("horizon", 2.5, r"2\.5"),
    ("horizon", None, "None"),
    ("control_hz", 0, "0"),
    ("control_hz", -10.0, r"-10\.0"),
    ("control_hz", float("nan"), "nan"),
    ("control_hz", "ten", "'ten'"),
    ("tasks", (), r"\(\)"),
    ("tasks", None, "None"),
    ("tasks", ("lift",), "'lift'"),
    ("tasks", (Task("lift", "a"), Task("lift", "b")), r"\['lift'\]"),
    ("tasks", (Task("lift", "a", initial_states=-1),), "-1"),
    ("cameras", (Camera("top", 8, 8), Camera("top", 4, 4)), r"\['top'\]"),
    ("cameras", (Camera("top", 0, 8),), "top"),
    ("cameras", (Camera("top", 8, 8, role="film"),), "film"),
    ("cameras", None, "None"),
    ("state_names", ("x", "x"), r"\['x'\]"),
    ("state_names", "xy", "'xy'"),
    ("privileged_names", None, "None"),
    ("words", ("go", 3), "3"),
    ("splits", ("train",), "train"),
    ("action_low", (-1.0,), r"-1\.0"),
    ("action_low", (-np.inf, -1.0), "-inf"),
    ("action_low", (1.0, -1.0), r"1\.0"),
    ("action_high", (np.nan, 1.0), "nan"),
    ("hold", (0.0,), r"0\.0"),
    ("hold", (0.0, np.nan), "nan"),
    ("hold", (0.0, 2.0), r"2\.0"),
    ("kept_while_holding", ("gripper",), "gripper"),
    ("instruction_length", -1, "-1"),
    ("final_observation", "later", "'later'"),
]


@pytest.mark.parametrize(("field", "value", "shown"), WRONG)
def test_a_wrong_field_is_refused_by_name_and_value(field: str, value: object, shown: str) -> None:
    with pytest.raises(UserError, match=rf"SimulatorSpec\.{field} must .*; it is .*{shown}"):
        replace(SPEC, **{field: value})


def test_numbers_of_numpy_and_a_body_without_actions_are_taken() -> None:
    numbers = replace(SPEC, horizon=np.int64(5), control_hz=np.float32(20), action_low=tuple(np.float32([-1, -1])))
    assert (numbers.horizon, numbers.control_hz) == (5, 20)
    assert replace(SPEC, action_names=(), action_low=(), action_high=(), hold=None).action_dim == 0
