"""Numbered scenes of the put-on-plate tasks, against RL4VLA's own code, and the refusal of their missing scene."""

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.maniskill import ManiSkill, ManiSkillConfig
from embodied_rl_sims.maniskill.plate_scenes import (
    OBJECTS,
    PLATES,
    SPLITS,
    count_scenes,
    find_scene,
    list_places,
)  # fmt: skip

TASK = "PutOnPlateInScene25"
NUMBER = 123456789
OFFICIAL = {
    "Main-v3": (12, 0, 7, None, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "VisionImage-v1": (1, 0, 18, None, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "VisionTexture03-v1": (9, 0, 7, 13, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "VisionTexture05-v1": (9, 0, 7, 13, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "VisionWhole03-v1": (9, 0, 7, 13, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "VisionWhole05-v1": (9, 0, 7, 13, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "Carrot-v1": (19, 0, 7, None, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "Plate-v1": (9, 13, 7, None, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "Instruct-v1": (9, 0, 7, 13, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "MultiCarrot-v1": (22, 0, 13, 16, [-0.235, 0.075, -0.085, 0.075, -0.085, -0.015], 0.7854),
    "MultiPlate-v1": (2, 15, 11, 8, [-0.205, 0.045, -0.205, -0.075, -0.085, 0.075], 0.7854),
    "Position-v1": (15, 0, 10, None, [-0.055, -0.045, -0.115, -0.105], -1.1781),
    "EEPose-v1": (0, 0, 7, 2461, [-0.145, 0.045, -0.205, -0.075], 0.7854),
    "PositionChangeTo-v1": (4, 0, 13, None, [-0.235, 0.075, -0.085, 0.075, -0.085, -0.015], 0.7854),
}
"""What RL4VLA's put_on_in_scene_multi.py, run without its simulator, makes of this episode_id: object, plate, table,
further number, x and y of each place, rotation."""


@pytest.mark.parametrize("task", SPLITS)
def test_a_numbered_scene_is_the_official_one(task: str) -> None:
    thing, plate, table, extra, places, rotation = OFFICIAL[task.removeprefix(TASK)]
    found = find_scene(SPLITS[task], NUMBER)
    assert (found.object, found.plate, found.table, found.extra) == (thing, plate, table, extra)
    assert found.positions.flatten().tolist() == pytest.approx(places) and found.rotation == pytest.approx(
        rotation, abs=1e-4
    )


def test_numbers_of_places_and_scenes_are_the_official_ones() -> None:
    places = {name.removeprefix(TASK): len(list_places(split)) for name, split in SPLITS.items()}
    three = {"MultiCarrot-v1", "MultiPlate-v1", "PositionChangeTo-v1"}
    assert all(count == (2104 if name in three else 784) for name, count in places.items() if name != "Position-v1")
    assert places["Position-v1"] == 1412 - 784
    assert count_scenes(SPLITS[f"{TASK}Main-v3"]) == 16 * 16 * 784 * 4
    assert count_scenes(SPLITS[f"{TASK}EEPose-v1"]) == 16 * 14375 * 16 * 784 * 4


def test_every_scene_has_its_own_number_and_numbers_go_round() -> None:
    split = SPLITS[f"{TASK}Plate-v1"]
    count = count_scenes(split)
    first, again, last = (find_scene(split, number) for number in (0, count, count - 1))
    assert (first.object, first.plate, first.table) == (again.object, again.plate, again.table) == (0, 1, 0)
    assert (last.object, last.plate, last.table) == (15, 16, 15)
    assert last.instruction == "put BBQ sauce on notepad"
    assert np.linalg.norm(last.positions[0] - last.positions[1]) > 0.07


def test_what_is_held_out_does_not_occur_in_training() -> None:
    assert len(OBJECTS) == 25 and len(PLATES) == 17
    main = SPLITS[f"{TASK}Main-v3"]
    assert set(main.objects).isdisjoint(SPLITS[f"{TASK}Carrot-v1"].objects)
    assert set(main.plates).isdisjoint(SPLITS[f"{TASK}Plate-v1"].plates)
    assert set(main.tables).isdisjoint(SPLITS[f"{TASK}VisionImage-v1"].tables)
    inside, border = (
        {tuple(np.round(place, 6)) for pair in list_places(split) for place in pair}
        for split in (main, SPLITS[f"{TASK}Position-v1"])
    )
    assert len(inside) == 36 and len(border) == 28 and inside.isdisjoint(border)


def test_its_tasks_are_refused_with_the_way_to_their_assets() -> None:
    assets = r"RLinf/maniskill_assets --local-dir .*bridge_v2_real2sim.*widowx250s"
    with pytest.raises(Unavailable, match=rf"not built here yet.*{assets}"):
        ManiSkill.spec_of(ManiSkillConfig(task=f"{TASK}Main-v3"))
