"""Episodes are those of LIBERO's package, to the bit: physics, rewards, success and pictures."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.sims.libero.conftest import Run

CAMERAS = ("agentview", "robot0_eye_in_hand")
pytestmark = pytest.mark.sim
RUNS = ("fresh", "used", "shared")


@pytest.fixture(scope="module")
def stove(run: Run, assets: Path) -> dict[str, Array]:
    """A task that begins with a burning stove, whose samplers draw from the same generator as the fixtures' places."""
    return run("own_loop", assets=assets, suite="libero_10", task=8, rendering="light", count=16, again=True)


@pytest.fixture(scope="module")
def placed(run: Run, assets: Path) -> dict[str, Array]:
    """A bowl that falls onto its plate while the scene settles."""
    return run("own_loop", assets=assets, suite="libero_spatial", task=0, rendering="light", count=4, finished=True)


@pytest.fixture(scope="module")
def official(run: Run, assets: Path) -> dict[str, Array]:
    """Pictures with shadows, reflections and smoothed edges; few, for they take long."""
    return run("own_loop", assets=assets, suite="libero_object", task=2, rendering="official", count=2)


@pytest.mark.parametrize("name", RUNS)
def test_physics_are_the_package_s(stove: dict[str, Array], name: str) -> None:
    assert np.array_equal(stove[f"{name}_physics"], stove["package_physics"])


@pytest.mark.parametrize("name", RUNS)
def test_fixtures_stand_where_the_package_draws_them(stove: dict[str, Array], name: str) -> None:
    assert np.array_equal(stove[f"{name}_fixtures"], stove["package_fixtures"])


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("camera", CAMERAS)
def test_pictures_are_the_package_s(stove: dict[str, Array], name: str, camera: str) -> None:
    pictures = stove[f"package_{camera}"]
    assert np.array_equal(stove[f"{name}_{camera}"], pictures[:, ::-1]), "robosuite's rows come bottom up"
    assert not np.array_equal(pictures[0], pictures[-1]), "nothing moved in this test"


@pytest.mark.parametrize("camera", CAMERAS)
def test_pictures_are_the_package_s_with_its_own_rendering(official: dict[str, Array], camera: str) -> None:
    assert np.array_equal(official[f"fresh_{camera}"], official[f"package_{camera}"][:, ::-1])


def test_the_state_is_what_openpi_feeds(stove: dict[str, Array]) -> None:
    for name in RUNS:
        assert np.allclose(stove[f"{name}_state"], stove["package_state"], rtol=0, atol=1e-6)


def test_success_and_reward_are_the_package_s(placed: dict[str, Array]) -> None:
    assert placed["package_success"][1:].all(), "the bowl is not on its plate"
    assert np.array_equal(placed["fresh_success"], placed["package_success"])
    assert np.array_equal(placed["fresh_reward"], placed["package_reward"])


def test_success_ends_an_episode_where_it_should(placed: dict[str, Array]) -> None:
    assert placed["ends"].tolist() == [1, 1], "it ends at the first success"


def test_privileged_state_says_where_things_are(placed: dict[str, Array], stove: dict[str, Array]) -> None:
    bowl, plate, goal, clock = np.split(placed["fresh_privileged"], [7, 14, 15], axis=1)
    assert (np.linalg.norm(bowl[:, :2] - plate[:, :2], axis=1) < 0.03).all(), "the bowl lies on the plate"
    assert (goal == 1).all() and np.allclose(clock[:, 0], np.arange(5) / 220)
    assert (stove["fresh_privileged"][:, -2] < 1).all()


def test_a_soft_reset_leaves_the_model_as_it_was_built(run: Run, assets: Path) -> None:
    found = run("model_after_episodes", assets=assets)
    assert not np.array_equal(found["elsewhere_body_pos"], found["fresh_body_pos"]), "no fixture moved in this test"
    assert not np.array_equal(found["elsewhere_site_rgba"], found["fresh_site_rgba"]), "no flame in this test"
    names = [name.removeprefix("fresh_") for name in found if name.startswith("fresh_")]
    assert len(names) > 100
    for name in names:
        assert np.array_equal(found[f"fresh_{name}"], found[f"used_{name}"], equal_nan=True), name
