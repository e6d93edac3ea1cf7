"""What a policy is shown is checked before the network runs, and refused in words."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.given_observation import read_observation
from embodied_rl.interfaces.robot import Body
from tests.support.policy_serving import SPEC, make_observation


def test_one_observation_and_rows_are_told_apart() -> None:
    one, single = read_observation(make_observation(), SPEC)
    assert single and one.images["front"].shape == (1, 4, 5, 3) and one.state.shape == (1, 3) and len(one) == 1
    several, single = read_observation(make_observation(rows=2), SPEC)
    assert not single and several.images["wrist"].shape == (2, 4, 5, 3) and len(several.instruction) == 2


def test_images_may_be_a_mapping_and_the_state_may_be_named() -> None:
    given = make_observation()
    named = dict(zip(("grip", "x", "y"), given["state"][[2, 0, 1]], strict=True))
    other = {
        "images": {"wrist": given["images/wrist"], "front": given["images/front"]},
        "state": named,
        "prompt": given["prompt"],
        "state_units": "SI",
    }
    plain, _ = read_observation(given, SPEC)
    found, _ = read_observation(other, SPEC)
    assert (found.state == plain.state).all() and all((found.images[c] == plain.images[c]).all() for c in plain.images)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"images/front": None}, "lacks 'images/front'"),
        ({"state": None}, "lacks 'state'"),
        ({"prompt": None}, "lacks 'prompt'"),
        ({"images/top": np.zeros((4, 5, 3), np.uint8)}, "'images/top', which the policy does not take"),
        ({"images/front": np.zeros((5, 4, 3), np.uint8)}, r"is \[5, 4, 3\]; the policy takes \[4, 5, 3\]"),
        ({"images/front": np.zeros((1, 4, 5, 3), np.uint8)}, r"takes \[4, 5, 3\]"),
        ({"images/front": np.zeros((3, 4, 5), np.uint8)}, "RGB"),
        ({"images/front": np.zeros((4, 5, 3), np.float32)}, "float32: the policy takes uint8"),
        ({"images": [1]}, "images is a mapping"),
        ({"state": np.zeros(4)}, r"state is float64 \[4\]; the policy takes 3 numbers: x, y, grip"),
        ({"state": np.zeros((1, 2, 3))}, "takes 3 numbers"),
        ({"state": ["a", "b", "c"]}, "takes 3 numbers"),
        ({"state": np.array([True, False, True])}, "takes 3 numbers"),
        ({"state": np.array([0, np.nan, 0])}, "NaN or infinity in 'y'"),
        ({"state": {"x": 1, "y": 2, "z": 3}}, "state has the entries x, y, z; the policy takes x, y, grip"),
        ({"state_units": "degrees"}, "in 'degrees': convert it, the policy takes SI"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": ["go left"]}, "prompt is one text"),
        ({"prompt": 3}, "prompt is one text"),
        ({"prompt": "go up"}, "does not know the word 'up'; it knows go, left, right"),
        ({"prompt": "go left go left go"}, "5 words; the policy reads at most 4"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], said: str) -> None:
    given = {name: value for name, value in (make_observation() | changed).items() if value is not None}
    with pytest.raises(UserError, match=said) as caught:
        read_observation(given, SPEC)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": "go left"}, "one text for each of 2 rows"),
        ({"prompt": ["go left"]}, "one text for each of 2 rows"),
        ({"images/front": np.zeros((3, 4, 5, 3), np.uint8)}, r"takes \[2, 4, 5, 3\]"),
        ({"state": np.zeros((0, 3))}, "takes 3 numbers"),
    ],
)
def test_rows_that_differ_in_number_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_observation(make_observation(rows=2) | changed, SPEC)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"state": [[1, 2], [3]]}, "state is no array"),
        ({"state": {"x": [1.0], "y": [1.0, 2.0], "grip": [1.0]}}, r"state 'y' is float64 \[2\]"),
        ({"state": {"x": [1, [2, 3]], "y": 0, "grip": 0}}, "state 'x' is no array"),
        ({"state": {"x": "1", "y": "2", "grip": "3"}}, "state 'x' is <U1"),
        ({"state": torch.zeros(3, requires_grad=True)}, "state is no array: .*detach"),
        ({"state": [0.0, 1e300, 0.0]}, "NaN or infinity in 'y'"),
        ({"state_units": np.array(["SI", "SI"])}, "state is in array"),
        ({"state_units": np.zeros(0)}, "state is in array"),
        ({"images/front": [[1, 2], [3]]}, "images/front is no array"),
        ({"images": {"front": np.zeros((4, 5, 3), np.uint8)}}, "'images/front' twice"),
    ],
)
def test_what_is_no_array_or_no_float32_is_refused_in_words(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read_observation({**make_observation(), **changed}, SPEC)
    assert "\n" not in str(caught.value)


def test_arrays_may_lie_in_any_way_in_memory() -> None:
    given = make_observation()
    plain, _ = read_observation(given, SPEC)
    kept = bytes(given["images/front"].tobytes() + given["state"].tobytes())
    views: dict[str, Any] = {name: value for name, value in given.items() if name != "prompt"}
    for lay in (np.asfortranarray, lambda array: np.flip(np.flip(array).copy()), lambda array: array):
        laid = {name: lay(value) for name, value in views.items()}
        for value in laid.values():
            value.flags.writeable = False
        found, _ = read_observation({**given, **laid}, SPEC)
        for array, wanted in [(found.state, plain.state), *((found.images[c], plain.images[c]) for c in SPEC.cameras)]:
            assert (array == wanted).all() and array.flags.c_contiguous and array.flags.writeable
    assert given["images/front"].tobytes() + given["state"].tobytes() == kept


def test_a_description_survives_a_message() -> None:
    assert PolicyDescription.from_dict(SPEC.to_dict() | {"more": 1}) == SPEC
    for name in SPEC.to_dict():
        with pytest.raises(UserError, match="incomplete"):
            PolicyDescription.from_dict({key: value for key, value in SPEC.to_dict().items() if key != name})
        if name not in ("control_hz", "normalisation", "state_units"):
            with pytest.raises(UserError, match="incomplete"):
                PolicyDescription.from_dict(SPEC.to_dict() | {name: None})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cameras": {"front": (4, 5)}}, "camera 'wrist'"),
        ({"cameras": {"front": (4, 5), "wrist": (5, 4)}}, "camera 'wrist'"),
        ({"state_names": ("y", "x", "grip")}, "another robot: its state_names"),
        ({"action_high": (1.0, 2.0)}, "another robot: its action_high"),
        ({"control_hz": 20.0}, "acts 10 times a second, the robot 20"),
    ],
)
def test_another_robot_is_refused(changed: dict[str, Any], said: str) -> None:
    body = Body(SPEC.cameras, SPEC.state_names, SPEC.action_names, SPEC.action_low, SPEC.action_high, 10.0)
    SPEC.check_body(body, ("Go", "left"))
    with pytest.raises(UserError, match=said):
        SPEC.check_body(dataclasses.replace(body, **changed))
    with pytest.raises(UserError, match="without the words up"):
        SPEC.check_body(body, ("go", "up"))
