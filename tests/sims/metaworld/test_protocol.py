"""Episodes are those of MetaWorld's package, to the bit: observations, rewards, success, experts and pictures."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.metaworld.tasks import SUITES, TASKS
from tests.support.environments import Call, run_inside

pytestmark = pytest.mark.sim
Found = dict[str, Array]

CALLS: list[Call] = [
    ("expert_episodes", {"tasks": list(TASKS), "seed": 7, "steps": 20, "numbered": False}),
    ("expert_episodes", {"tasks": ["push", "door-open", "reach"], "seed": 49, "steps": 200, "numbered": True}),
    ("suites", {}),
    ("hidden_goal", {}),
    ("pictures", {}),
    ("light_physics", {"tasks": ["push", "drawer-open", "hammer", "box-close"], "steps": 40}),
    ("settling", {}),
    ("rewards", {"task": "reach", "seed": 3, "steps": 60}),
    ("suite_goals", {"states": [0, 49]}),
    ("shared_renderers", {"tasks": ["push", "reach-wall", "box-close", "door-open", "hammer"]}),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All that this module needs of MetaWorld's environment, in one process, because importing it takes seconds."""
    out = tmp_path_factory.mktemp("inside") / "arrays.npz"
    return run_inside("metaworld", Path(__file__).with_name("inside.py"), out, CALLS)


@pytest.mark.parametrize("number", [0, 1])
def test_experts_episodes_are_the_package_s(found: list[Found], number: int) -> None:
    for task in CALLS[number][1]["tasks"]:
        ours, theirs = found[number][f"{task}/ours"], found[number][f"{task}/package"]
        assert np.array_equal(ours, theirs) and len(ours) > 39 * 10, task


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_whole_episodes_of_all_tasks_are_the_package_s(tmp_path: Path, seed: int) -> None:
    """Until 5 control steps after success, or all but the last of 500, with which our next episode begins."""
    call: Call = ("expert_episodes", {"tasks": list(TASKS), "seed": seed, "steps": 499, "numbered": False})
    (seen,) = run_inside("metaworld", Path(__file__).with_name("inside.py"), tmp_path / "arrays.npz", [call])
    assert not [task for task in TASKS if not np.array_equal(seen[f"{task}/ours"], seen[f"{task}/package"])]
    assert sum(bool(seen[f"{task}/success"]) for task in TASKS) >= 45, "the package's experts fail in few"


def test_experts_reach_their_goals(found: list[Found]) -> None:
    assert all(bool(found[1][f"{task}/success"]) for task in CALLS[1][1]["tasks"])


def test_progress_is_the_change_of_the_reward(found: list[Found]) -> None:
    for number in range(2):
        own, success, progress = (found[7][f"{kind}/{number}"] for kind in ("environment", "success", "progress"))
        assert np.array_equal(success[:, 0], own[:, 1]) and own[-1, 1], "the expert reaches the goal"
        expected = np.diff(own[:, 0], prepend=own[0, 0]) / 10 + own[:, 1]
        assert np.allclose(progress[:, 0], expected, atol=1e-6) and np.ptp(np.diff(own[:, 0])) > 0.1


def test_suites_are_the_package_s(found: list[Found]) -> None:
    assert {name: sorted(tasks.tolist()) for name, tasks in found[2].items()} == {
        name: sorted(tasks) for name, tasks in SUITES.items()
    }


def test_a_hidden_goal_is_zeros_and_the_expert_still_knows_it(found: list[Found]) -> None:
    seen = found[3]
    assert np.array_equal(seen["hidden"], seen["package"])
    assert np.array_equal(seen["hidden"][:-3], seen["visible"][:-3])
    for kind in ("hidden", "hidden_seed"):
        assert not seen[kind][-3:].any() and np.all(seen[kind.replace("hidden", "visible")][-2:] > 0)
    assert np.array_equal(seen["hidden_expert"], seen["visible_expert"])


def test_numbered_goals_of_an_ml_suite_are_those_of_the_package_s_class(found: list[Found]) -> None:
    ours = {key: array for key, array in found[8].items() if not key.endswith("package")}
    assert len(ours) == 2 * (5 + 2 + 2), "numbers of states; tasks of train, and of test with both goals"
    for key, array in ours.items():
        case, _, goal = key.rpartition("/")
        theirs = found[8][f"{case}/package"]
        assert np.array_equal(array[:-3], theirs[:-3]) and not theirs[-3:].any(), key
        assert array[-3:].any() == (goal == "visible"), key


@pytest.mark.parametrize("camera", ["corner2", "corner3"])
def test_official_pictures_are_the_package_s(found: list[Found], camera: str) -> None:
    seen = found[4]
    assert np.ptp(seen[f"package_{camera}"]) > 50, "something is to be seen"
    assert np.array_equal(seen[f"official_False_{camera}"], seen[f"package_{camera}"])


def test_the_closer_camera_is_lerobot_s(found: list[Found]) -> None:
    seen = found[4]
    assert np.array_equal(seen["official_True_corner2_later"], seen["moved_corner2"])
    assert np.array_equal(seen["official_True_corner3"], seen["official_False_corner3"]), "other cameras stay"


def test_light_pictures_show_the_same(found: list[Found]) -> None:
    light, official = (found[4][f"{kind}_True_corner2"].astype(float) for kind in ("light", "official"))
    assert 0 < np.abs(light - official).mean() < 12
    same, mirrored = (np.corrcoef(light.ravel(), each.ravel())[0, 1] for each in (official, official[:, ::-1]))
    assert same > 0.9 > mirrored


def test_a_renderer_draws_all_scenes_of_a_task(found: list[Found]) -> None:
    for task in CALLS[9][1]["tasks"]:
        assert np.array_equal(found[9][f"{task}_shared"], found[9][f"{task}_own"]), task
        assert np.ptp(found[9][f"{task}_own"]) > 50, "something is to be seen"


def test_light_rendering_changes_no_bit_of_physics(found: list[Found]) -> None:
    for task in CALLS[5][1]["tasks"]:
        assert np.array_equal(found[5][f"{task}_light"], found[5][f"{task}_official"]), task
        assert found[5][f"{task}_light_faces"] < 0.2 * found[5][f"{task}_official_faces"]


def test_settling_steps_are_no_part_of_the_episode(found: list[Found]) -> None:
    seen = found[6]
    assert np.array_equal(seen["ours"], seen["package"]) and seen["clock"] == 0
    assert seen["truncated"].all() and seen["steps"].tolist() == [2]
