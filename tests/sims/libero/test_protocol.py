"""Episodes are those of LIBERO's package, to the bit: physics, rewards, success and pictures."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.support.libero import Run

CAMERAS = ("agentview", "robot0_eye_in_hand")
pytestmark = pytest.mark.sim
RUNS = ("fresh", "used", "shared")


Found = dict[str, Array]


@pytest.fixture(scope="module")
def found(run: Run, assets: Path) -> list[Found]:
    """Episodes, and a model before and after some."""
    given = {"assets": assets, "rendering": "light"}
    return run(
        ("own_loop", {**given, "suite": "libero_10", "task": 8, "count": 16, "again": True}),
        ("own_loop", {**given, "suite": "libero_spatial", "task": 0, "count": 4, "finished": True}),
        ("own_loop", {**given, "suite": "libero_object", "task": 2, "count": 2, "rendering": "official"}),
        ("model_after_episodes", {"assets": assets}),
    )


@pytest.fixture
def stove(found: list[Found]) -> Found:
    """A task that begins with a burning stove, whose samplers draw from the same generator as the fixtures' places."""
    return found[0]


@pytest.fixture
def placed(found: list[Found]) -> Found:
    """A bowl that falls onto its plate while the scene settles."""
    return found[1]


@pytest.fixture
def official(found: list[Found]) -> Found:
    """Pictures with shadows, reflections and smoothed edges; few, for they take long."""
    return found[2]


@pytest.mark.parametrize("name", RUNS)
def test_physics_are_the_package_s(stove: Found, name: str) -> None:
    assert np.array_equal(stove[f"{name}_physics"], stove["package_physics"])


@pytest.mark.parametrize("name", RUNS)
def test_fixtures_stand_where_the_package_draws_them(stove: Found, name: str) -> None:
    assert np.array_equal(stove[f"{name}_fixtures"], stove["package_fixtures"])


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("camera", CAMERAS)
def test_pictures_are_the_package_s(stove: Found, name: str, camera: str) -> None:
    pictures = stove[f"package_{camera}"]
    assert np.array_equal(stove[f"{name}_{camera}"], pictures[:, ::-1]), "robosuite's rows come bottom up"
    assert not np.array_equal(pictures[0], pictures[-1]), "nothing moved in this test"


@pytest.mark.parametrize("camera", CAMERAS)
def test_pictures_are_the_package_s_with_its_own_rendering(official: Found, camera: str) -> None:
    assert np.array_equal(official[f"fresh_{camera}"], official[f"package_{camera}"][:, ::-1])


def test_the_state_is_what_openpi_feeds(stove: Found) -> None:
    for name in RUNS:
        assert np.allclose(stove[f"{name}_state"], stove["package_state"], rtol=0, atol=1e-6)


def test_success_and_reward_are_the_package_s(placed: Found) -> None:
    assert placed["package_success"][1:].all(), "the bowl is not on its plate"
    assert np.array_equal(placed["fresh_success"], placed["package_success"])
    assert np.array_equal(placed["fresh_reward"], placed["package_reward"])


def test_success_ends_an_episode_where_it_should(placed: Found) -> None:
    assert placed["ends"].tolist() == [1, 1], "it ends at the first success"
    assert placed["goes_on"].tolist() == [0, 3], "it ends without success"
    assert placed["kept"].tolist() == [0, 3], "it ends although terminate_on_success is off"


def test_privileged_state_says_where_things_are(placed: Found, stove: Found) -> None:
    bowl, plate, goal, clock = np.split(placed["fresh_privileged"], [7, 14, 15], axis=1)
    assert (np.linalg.norm(bowl[:, :2] - plate[:, :2], axis=1) < 0.03).all(), "the bowl lies on the plate"
    assert (goal == 1).all() and np.allclose(clock[:, 0], np.arange(5) / 220)
    assert (stove["fresh_privileged"][:, -2] < 1).all()


def test_a_soft_reset_leaves_the_model_as_it_was_built(found: list[Found]) -> None:
    model = found[3]
    assert not np.array_equal(model["elsewhere_body_pos"], model["fresh_body_pos"]), "no fixture moved in this test"
    assert not np.array_equal(model["elsewhere_site_rgba"], model["fresh_site_rgba"]), "no flame in this test"
    names = [name.removeprefix("fresh_") for name in model if name.startswith("fresh_")]
    assert len(names) > 100
    for name in names:
        assert np.array_equal(model[f"fresh_{name}"], model[f"used_{name}"], equal_nan=True), name
