"""Where episodes start, when pictures are drawn, and which way round they are."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.support.libero import Run

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def found(run: Run, assets: Path) -> list[dict[str, Array]]:
    given = {"assets": assets}
    return run(("starts", given), ("chunks", given), ("operated", {**given, "task": 3}))


@pytest.fixture
def starts(found: list[dict[str, Array]]) -> dict[str, Array]:
    return found[0]


@pytest.fixture
def chunks(found: list[dict[str, Array]]) -> dict[str, Array]:
    return found[1]


@pytest.fixture
def operated(found: list[dict[str, Array]]) -> dict[str, Array]:
    return found[2]


def test_a_numbered_initial_state_is_the_official_one(starts: dict[str, Array]) -> None:
    last = len(starts["official"]) - 1
    assert last == 49
    for number in (0, 7, last):
        assert np.array_equal(starts[f"number{number}"], starts["official"][number])


def test_without_a_number_it_is_one_of_them(starts: dict[str, Array]) -> None:
    assert (starts["official"] == starts["seed"]).all(axis=1).any()


def test_unknown_cameras_are_refused(starts: dict[str, Array]) -> None:
    assert "sim.cameras: LIBERO's scenes have no overhead, but " in str(starts["refusal"])
    assert "agentview" in str(starts["refusal"])


def test_left_and_right_are_swapped_as_openpi_feeds_them(starts: dict[str, Array]) -> None:
    assert np.array_equal(starts["mirrored"], starts["plain"][:, ::-1])
    assert not np.array_equal(starts["mirrored"], starts["plain"])


def test_a_plain_picture_is_as_the_camera_sees(starts: dict[str, Array]) -> None:
    """The basket is the widest thing beside the middle of this scene; rows are darker where the far wall is not."""
    picture = starts["plain"].astype(int)
    columns = np.abs(np.diff(picture, axis=0)).sum(axis=(0, 2))
    right, left = columns[16:].sum(), columns[:16].sum()
    assert (right > left) == (starts["basket_side"] > 0)


def test_a_video_has_the_size_asked_for(starts: dict[str, Array]) -> None:
    assert starts["video"].shape == (24, 40, 3)


def test_a_chunk_is_its_control_steps(chunks: dict[str, Array]) -> None:
    assert np.array_equal(chunks["reward"], chunks["rewards"])
    for name in ("agentview", "robot0_eye_in_hand", "state", "privileged"):
        assert np.array_equal(chunks[f"at_once_{name}"], chunks[f"singly_{name}"]), name


def test_privileged_places_are_seen_from_the_gripper(chunks: dict[str, Array]) -> None:
    for slot, place in enumerate(chunks["places"]):
        seen = chunks["at_once_privileged"][7 * slot : 7 * slot + 3]
        assert np.allclose(seen, place - chunks["gripper"], rtol=0, atol=1e-6)
    assert np.allclose(chunks["at_once_state"][:3], chunks["gripper"], rtol=0, atol=0.01), (
        "another point of the gripper"
    )


def test_pictures_are_drawn_once_a_chunk(chunks: dict[str, Array]) -> None:
    assert chunks["drawn"].tolist() == ["agentview", "robot0_eye_in_hand"]


def test_an_episode_leaves_numpy_s_global_generator_alone(chunks: dict[str, Array]) -> None:
    assert chunks["generator"]


def test_the_operator_succeeds_when_the_package_says_so(operated: dict[str, Array]) -> None:
    assert operated["ours"][-1] and not operated["ours"][:-1].any(), "the operator fails"
    assert np.array_equal(operated["ours"], operated["theirs"])


def test_without_cameras_only_a_video_is_drawn(operated: dict[str, Array]) -> None:
    assert not len(operated["images"])
    assert operated["video"].shape == (12, 16, 3) and operated["video"].std() > 0
