"""The adapter on Isaac Lab itself, in its own Python environment, on the CPU. Robots are shapes: see `scenes.py`."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.support.environments import CONTRACT, Call, run_inside

pytestmark = pytest.mark.sim
Found = dict[str, Array]
EXACT = {"checks": list(CONTRACT), "seeded": True, "horizon": 4, "image_size": 24}
CHEAP = list(CONTRACT[:4])

CALLS: list[Call] = [
    ("contract", {"task": "camera", **EXACT}),
    ("contract", {"task": "managed", "checks": CHEAP[:2], "horizon": 4}),
    ("contract", {"task": "arm", "checks": CHEAP[:1], "horizon": 2}),
    ("own_loop", {"task": "state", "seeds": [3, 4], "steps": 100, "seeded": True}),
    ("own_loop", {"task": "managed", "seeds": [3, 4], "steps": 100, "seeded": False}),
    ("own_loop", {"task": "arm", "seeds": [3, 4], "steps": 100, "seeded": False}),
    ("final", {"task": "camera", "horizon": 4, "seeded": True}),
    ("history", {}),
    ("success", {}),
    ("refusals", {}),
    ("facts", {}),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """All that this module needs of Isaac Lab's environment, in one process, which compiles kernels for a minute."""
    out = tmp_path_factory.mktemp("inside") / "arrays.npz"
    return run_inside("isaaclab", Path(__file__).with_name("inside.py"), out, CALLS)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_it_keeps_the_contract(found: list[Found], number: int) -> None:
    assert len(found[number]) == len(CALLS[number][1]["checks"])
    for name, problem in found[number].items():
        assert not str(problem), f"{name}: {problem}"


@pytest.mark.parametrize("number", [3, 4, 5])
def test_episodes_are_those_of_the_package_s_own_loop(found: list[Found], number: int) -> None:
    seen = found[number]
    assert np.array_equal(seen["ours_state"], seen["package_state"])
    assert np.array_equal(seen["ours_rest"], seen["package_rest"])
    assert np.ptp(seen["ours_state"], axis=0).max() > 0.1, "something moves"
    assert not np.array_equal(seen["ours_state"][:, 0], seen["ours_state"][:, 1]), "two seeds"


@pytest.mark.parametrize("part", ["truth", "tiled_camera"])
def test_a_final_observation_is_that_of_the_episode_s_last_step(found: list[Found], part: str) -> None:
    seen = found[6]
    assert seen["ended_truncated"].all() and not seen["going_truncated"].any()
    assert np.array_equal(seen[f"ended_{part}"], seen[f"going_{part}"])
    assert not np.array_equal(seen[f"ended_{part}"][0], seen[f"ended_{part}"][1])


def test_pictures_show_the_robot(found: list[Found]) -> None:
    picture = found[6]["ended_tiled_camera"]
    dark = (picture.max(axis=3) < 100).sum(axis=(1, 2))
    assert picture.shape == (2, 48, 48, 3) and picture.dtype == np.uint8
    assert np.all((dark > 10) & (dark < 200)), f"{dark} dark pixels, of a pole on a bright ground"


def test_a_reset_of_others_adds_nothing_to_a_history(found: list[Found]) -> None:
    """Three past observations are those of the last three control steps, whenever others are reset."""
    seen = found[7]
    assert seen["ending_ended"] >= 1 and seen["going_ended"] == 0
    assert np.array_equal(seen["ending"], seen["going"])
    fresh = seen["ending_fresh"].reshape(2, 3, 2)  # two terms, each with three entries of two joints
    assert (np.ptp(fresh, axis=1) == 0).all(), "a new episode has seen one state only"


def test_an_episode_that_lasts_can_count_as_a_success_and_stays_truncated(found: list[Found]) -> None:
    seen = found[8]
    assert seen["time_out_truncated"].all() and not seen["time_out_terminated"].any()
    assert seen["time_out_steps"].tolist() == [6, 6]
    assert seen["time_out_success"][:, 5].all() and seen["time_out_success"].sum() == 2


@pytest.mark.parametrize("kind", ["term", "extras"])
def test_success_ends_an_episode(found: list[Found], kind: str) -> None:
    """By a termination term, with which Isaac Lab resets; by an entry of `extras`, with which it runs on."""
    seen = found[8]
    steps = int(seen[f"{kind}_steps"][0])
    assert seen[f"{kind}_terminated"].tolist() == [True, False] and steps == found[8]["term_steps"][0] < 60
    assert seen[f"{kind}_success"][0].nonzero()[0].tolist() == [steps - 1]
    assert seen[f"{kind}_ended"].tolist() == [0] and seen[f"{kind}_final"][0, 0] > 1.2
    assert not seen[f"{kind}_reward"][0, steps:].any()
    if kind == "extras":
        assert seen["extras_reward"][0, steps - 1] == 1 and seen["extras_reward"].sum() == 1
    assert np.array_equal(seen[f"{kind}_state"][0], seen["time_out_state"][0]), "the next episode is that of its seed"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("id", ("UserError", "'Isaac-Cartpole-Direkt'. Did you mean Isaac-Cartpole-Direct")),
        ("camera", ("UserError", "no camera 'front'; it has tiled_camera")),
        ("option", ("UserError", "no 'scene.spacing'")),
        ("preset", ("UserError", "sim.physics=bullet", "newton_mjwarp")),
        ("terms", ("UserError", "sim.state_terms=['joints']", "joint_pos_rel")),
        ("seeded", ("UserError", "in mid-episode: command ee_pose", "sim.seeded=false")),
        ("asset", ("Unavailable", "scene.cartpole.spawn.usd_path", "absent.usda")),
        ("isaacsim", ("Unavailable", "Isaac Sim is not installed", "PhysX", "sim.physics=newton_mjwarp")),
        ("size", ("UserError", "only supports one image type")),
        ("second", ("UserError", "one scene in each process")),
        ("success", ("UserError", "sim.success=upright", "'time_out'")),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(found: list[Found], name: str, parts: tuple[str, ...]) -> None:
    message = str(found[9][name])
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_facts_of_the_package(found: list[Found]) -> None:
    seen = found[10]
    assert seen["identity"].tolist() == [0, 0, 0, 1], "quaternions are (x, y, z, w)"
    assert seen["state_names"].tolist() == [f"policy_{number}" for number in range(4)]
    assert not seen["camera_names"].size and seen["camera_truth"].tolist() == [f"critic_{n}" for n in range(4)]
    assert len(seen["arm_names"]) == 32 and "pose_command_6" in seen["arm_names"]
    for task, hz in (("state", 60), ("camera", 60), ("arm", 30)):
        assert seen[f"{task}_horizon"] == 7 and seen[f"{task}_hz"] == pytest.approx(hz)
