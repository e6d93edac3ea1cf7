"""Numbered scenes of the put-on-plate tasks, against RL4VLA's own code; the rule of success; missing files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.maniskill import ManiSkillConfig
from embodied_rl_sims.maniskill.plate_parts import Files
from embodied_rl_sims.maniskill.plate_scenes import (
    OBJECTS,
    PLATES,
    ROBOTS,
    SPLITS,
    count_scenes,
    find_scene,
    is_on_plate,
    list_instructions,
    list_joints,
    list_places,
)
from embodied_rl_sims.maniskill.settings import PLATE_CONTROL
from tests.support.refusals import refuses

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


FACTS = {"bbox": {"min": [0, 0, 0], "max": [0.04, 0.03, 0.02]}}


def make_folder(folder: Path) -> None:
    """Files of the layout of RLinf/maniskill_assets, without content, for the tasks with one plate."""
    names = {
        "carrot": [f"{number:03} thing" for number in range(25)],
        "plate": [f"{number:03} plate" for number in range(17)],
        "table": [],
    }
    names["table"] = [f"{number:03}.png" for number in range(21)]
    for kind, listed in names.items():
        (folder / "carrot" / f"more_{kind}").mkdir(parents=True)
        (folder / "carrot" / f"more_{kind}" / "model_db.json").write_text(json.dumps(dict.fromkeys(listed, FACTS)))
        for name in listed if kind != "table" else ():
            (folder / "carrot" / f"more_{kind}" / name).mkdir()
            for file in ("collision.obj", "textured.glb"):
                (folder / "carrot" / f"more_{kind}" / name / file).touch()
    (folder / "carrot" / "more_table" / "imgs").mkdir()
    for name in names["table"]:
        (folder / "carrot" / "more_table" / "imgs" / name).touch()


@pytest.mark.parametrize(
    "missing", ["more_plate/model_db.json", "more_carrot/003 thing/collision.obj", "more_table/imgs/015.png"]
)
def test_a_missing_file_is_named_with_the_way_to_it(tmp_path: Path, missing: str) -> None:
    make_folder(tmp_path)
    split = SPLITS[f"{TASK}Main-v3"]
    Files(str(tmp_path)).check(split)
    (tmp_path / "carrot" / missing).unlink()
    with pytest.raises(
        Unavailable, match=rf"{missing},.*RLinf/maniskill_assets --local-dir {tmp_path}\. .*shapes=true"
    ):
        Files(str(tmp_path)).check(split)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{", "file-damaged"),
        ("[]", "file-damaged"),
        ("{}", "file-damaged"),
        (json.dumps({"000 plate": {}}), "file-damaged"),
        (json.dumps({"000 plate": {"bbox": {"min": 0, "max": 1}}}), "file-damaged"),
        *[
            (json.dumps(dict.fromkeys(map(str, range(17)), FACTS | damage)), "file-damaged")
            for damage in (
                {"density": "heavy"},
                {"density": -1},
                {"scales": [0]},
                {"scales": [float("nan")]},
                {"bbox": {"min": [0, 0, 0], "max": [0.1, -0.1, 0.1]}},
            )
        ],
        (json.dumps({"../plate": FACTS}), "path-outside-folder"),
    ],
)
def test_a_damaged_list_is_refused_by_its_name(tmp_path: Path, content: str, code: str) -> None:
    make_folder(tmp_path)
    (tmp_path / "carrot" / "more_plate" / "model_db.json").write_text(content)
    with refuses(code, "more_plate/model_db.json"):
        Files(str(tmp_path))


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({}, "file-damaged"),
        ({"texture": "a.png", "mix": 7}, "file-damaged"),
        ({"texture": "../a.png", "mix": 0.5}, "path-outside-folder"),
    ],
)
def test_a_texture_that_is_missing_or_strange_is_refused(tmp_path: Path, facts: dict[str, Any], code: str) -> None:
    make_folder(tmp_path)
    listed = {f"{number:03}.png": facts for number in range(21)}
    (tmp_path / "carrot" / "more_table" / "model_db.json").write_text(json.dumps(listed))
    with refuses(code, "more_table/model_db.json"):
        Files(str(tmp_path)).check(SPLITS[f"{TASK}VisionWhole03-v1"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "PickCube-v1", "shapes": True}, "no shapes for PickCube-v1"),
        ({"task": f"{TASK}Main-v3"}, "sim=maniskill_plate"),
        ({"task": "PickCube-v1", "control_mode": PLATE_CONTROL}, "take sim=maniskill,"),
        ({"task": f"{TASK}Main-v3", "control_mode": PLATE_CONTROL, "robot": "panda"}, "one robot"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ManiSkillConfig(**keys)


def test_every_instruction_is_listed() -> None:
    """Those of RL4VLA: the words of training, or 16 others."""
    split = SPLITS[f"{TASK}Instruct-v1"]
    assert len(list_instructions(SPLITS[f"{TASK}Plate-v1"])) == 16 * 16 and len(list_instructions(split)) == 16 * 16
    assert find_scene(split, NUMBER).instruction == "Move toy bear so it\u2019s on plate."
    assert find_scene(split, NUMBER).instruction in list_instructions(split)
    assert find_scene(SPLITS[f"{TASK}Plate-v1"], NUMBER).instruction == "put toy bear on chess board"


def test_initial_joints_are_all_but_those_that_bend_shoulder_and_elbow_alike() -> None:
    joints = list_joints()
    assert joints.shape == (1 + ROBOTS, 6) and not joints[0].any()
    assert np.abs(joints[:, 1] + joints[:, 2]).max() == pytest.approx(0.23)
    assert joints[1].tolist() == [-0.15, -0.15, -0.08, -0.15, -0.15, -0.6]


def test_an_object_lies_on_its_plate_by_place_height_and_force() -> None:
    """Sizes 0.04 and 0.01 high, 0.1 and 0.2 wide; the rim is 0.11 from the centre, the height at rest 0.025."""
    cases = [
        ((0.0, 0.0, 0.025, 1.0), True),
        ((0.109, 0.0, 0.025, 1.0), True),
        ((0.08, 0.08, 0.025, 1.0), False),  # 0.113 from the centre
        ((0.0, 0.0, 0.074, 1.0), True),
        ((0.0, 0.0, 0.076, 1.0), False),
        ((0.0, 0.0, -0.001, 1.0), False),
        ((0.0, 0.0, 0.025, 0.02), False),  # does not touch it
    ]
    given = torch.tensor([case for case, _ in cases])
    sizes = torch.tensor([0.1, 0.03, 0.04]).expand(7, 3), torch.tensor([0.2, 0.1, 0.01]).expand(7, 3)
    assert is_on_plate(given[:, :3], *sizes, given[:, 3]).tolist() == [expected for _, expected in cases]
