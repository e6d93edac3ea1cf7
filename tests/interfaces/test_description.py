"""What a policy is shown is checked before the network runs, and refused in words."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.interfaces.robot import Body
from tests.support.policy_serving import SPEC, make_observation
from tests.support.refusals import refuses


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
    ("changed", "code", "data"),
    [
        ({"images/front": None}, "observation-entry-missing", ["'images/front'"]),
        ({"state": None}, "observation-entry-missing", ["'state'"]),
        ({"prompt": None}, "observation-entry-missing", ["'prompt'"]),
        ({"images/top": np.zeros((4, 5, 3), np.uint8)}, "observation-entry-unknown", ["'images/top'"]),
        ({"images/front": np.zeros((5, 4, 3), np.uint8)}, "image-invalid", ["[5, 4, 3]", "[4, 5, 3]"]),
        ({"images/front": np.zeros((1, 4, 5, 3), np.uint8)}, "image-invalid", ["[1, 4, 5, 3]", "[4, 5, 3]"]),
        ({"images/front": np.zeros((3, 4, 5), np.uint8)}, "image-invalid", ["[3, 4, 5]", "RGB"]),
        ({"images/front": np.zeros((4, 5, 3), np.float32)}, "image-invalid", ["float32", "uint8"]),
        ({"images": [1]}, "observation-invalid", ["images"]),
        ({"state": np.zeros(4)}, "state-invalid", ["float64 [4]", "3 numbers: x, y, grip"]),
        ({"state": np.zeros((1, 2, 3))}, "state-invalid", ["[1, 2, 3]"]),
        ({"state": ["a", "b", "c"]}, "state-invalid", ["3 numbers"]),
        ({"state": np.array([True, False, True])}, "state-invalid", ["bool"]),
        ({"state": np.array([0, np.nan, 0])}, "state-not-finite", ["'y'"]),
        ({"state": {"x": 1, "y": 2, "z": 3}}, "state-invalid", ["x, y, z", "x, y, grip"]),
        ({"state_units": "degrees"}, "state-units-differ", ["'degrees'", "SI"]),
        ({"prompt": ""}, "prompt-invalid", ["prompt"]),
        ({"prompt": ["go left"]}, "prompt-invalid", ["prompt"]),
        ({"prompt": 3}, "prompt-invalid", ["prompt"]),
        ({"prompt": "go up"}, "prompt-word-unknown", ["'up'", "go, left, right"]),
        ({"prompt": "go left go left go"}, "prompt-too-long", ["5 words", "4"]),
        ({"state": [[1, 2], [3]]}, "observation-invalid", ["state"]),
        ({"state": {"x": [1.0], "y": [1.0, 2.0], "grip": [1.0]}}, "state-invalid", ["'y'", "float64 [2]"]),
        ({"state": {"x": [1, [2, 3]], "y": 0, "grip": 0}}, "observation-invalid", ["state 'x'"]),
        ({"state": {"x": "1", "y": "2", "grip": "3"}}, "state-invalid", ["'x'", "<U1"]),
        ({"state": torch.zeros(3, requires_grad=True)}, "observation-invalid", ["state", "detach"]),
        ({"state": [0.0, 1e300, 0.0]}, "state-not-finite", ["'y'"]),
        ({"state_units": np.array(["SI", "SI"])}, "state-units-differ", ["array"]),
        ({"state_units": np.zeros(0)}, "state-units-differ", ["array"]),
        ({"images/front": [[1, 2], [3]]}, "observation-invalid", ["images/front"]),
        ({"images": {"front": np.zeros((4, 5, 3), np.uint8)}}, "observation-entry-twice", ["'images/front'"]),
    ],
)
def test_wrong_observations_are_refused(changed: dict[str, Any], code: str, data: list[str]) -> None:
    given = {name: value for name, value in (make_observation() | changed).items() if value is not None}
    with refuses(code, *data) as caught:
        read_observation(given, SPEC)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "code", "data"),
    [
        ({"prompt": "go left"}, "prompt-invalid", "2 rows"),
        ({"prompt": ["go left"]}, "prompt-invalid", "2 rows"),
        ({"images/front": np.zeros((3, 4, 5, 3), np.uint8)}, "image-invalid", "[2, 4, 5, 3]"),
        ({"state": np.zeros((0, 3))}, "state-invalid", "3 numbers"),
    ],
)
def test_rows_that_differ_in_number_are_refused(changed: dict[str, Any], code: str, data: str) -> None:
    with refuses(code, data):
        read_observation(make_observation(rows=2) | changed, SPEC)


def test_any_memory_layout_is_accepted() -> None:
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


def test_descriptions_round_trip() -> None:
    assert PolicyDescription.from_dict(SPEC.to_dict() | {"more": 1}) == SPEC
    for name in SPEC.to_dict():
        with refuses("description-incomplete"):
            PolicyDescription.from_dict({key: value for key, value in SPEC.to_dict().items() if key != name})
        if name not in ("control_hz", "normalisation", "state_units"):
            with refuses("description-incomplete"):
                PolicyDescription.from_dict(SPEC.to_dict() | {name: None})


@pytest.mark.parametrize(
    ("changed", "data"),
    [
        ({"cameras": {"front": (4, 5)}}, ["camera 'wrist'"]),
        ({"cameras": {"front": (4, 5), "wrist": (5, 4)}}, ["camera 'wrist'"]),
        ({"state_names": ("y", "x", "grip")}, ["state_names"]),
        ({"action_high": (1.0, 2.0)}, ["action_high"]),
        ({"control_hz": 20.0}, ["10", "20"]),
    ],
)
def test_another_robot_is_refused(changed: dict[str, Any], data: list[str]) -> None:
    body = Body(SPEC.cameras, SPEC.state_names, SPEC.action_names, SPEC.action_low, SPEC.action_high, 10.0)
    SPEC.check_body(body, ("Go", "left"))
    with refuses("policy-does-not-fit", *data):
        SPEC.check_body(dataclasses.replace(body, **changed))
    with refuses("policy-does-not-fit", "up"):
        SPEC.check_body(body, ("go", "up"))
