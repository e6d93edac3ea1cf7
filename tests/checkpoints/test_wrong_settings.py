"""Whatever is wrong with what lies beside a checkpoint's weights, or with how it is used, is said with the remedy."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection
from embodied_rl.interfaces.sim import Observation
from embodied_rl.schema import PolicyNode
from tests.support import building_checkpoints as building
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import lerobot, openpi, simulator
from tests.support.using_checkpoints import OPENPI, attach, exported, save
from tests.support.wrong_checkpoints import refused

BEFORE = "policy_preprocessor_step_6_normalizer_processor.safetensors"


# configuration


def test_a_truncated_configuration(folder: Path) -> None:
    file = folder / "config.json"
    whole = file.read_text()
    for kept in (1, 20, len(whole) // 2, len(whole) - 1):
        file.write_text(whole[:kept])
        refused(folder, str(file), "damaged")
    file.write_bytes(b'"input_features" \xff\xfe')
    refused(folder, str(file), "damaged")
    file.write_text('["input_features"]')
    refused(folder, str(file), "damaged")


def test_damaged_processors(folder: Path) -> None:
    file = folder / "policy_preprocessor.json"
    for damaged in ("{", '{"steps": 3}', '{"steps": ["normalizer_processor"]}', '{"steps": null}'):
        file.write_text(damaged)
        refused(folder, str(file), "damaged")


def test_another_policy(tmp_path: Path, folder: Path) -> None:
    refused(folder, "holds policy 'pi0', not 'pi05': set policy=pi0", family="pi05")
    other = openpi(tmp_path / "other", "pi05")
    refused(other, "holds policy 'pi05', not 'pi0': set policy=pi05", options=OPENPI)
    unknown = lerobot(tmp_path / "other_kind", "pi0", type="vqbet")
    refused(unknown, "lerobot's VQ-BeT, which is not supported")


def test_our_own_policy_is_not_lerobots(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"holds policy 'pi0', not 'pocket': set policy=pi0"):
        build.build_backbone(PolicyNode("pocket", checkpoint=str(folder)), simulator())


def test_sizes_that_contradict_the_checkpoint(folder: Path) -> None:
    refused(folder, "has policy.horizon=6, not 9: leave policy.horizon out", options={"horizon": 9})
    refused(folder, "has policy.width=40, not 64: leave policy.width out", options={"width": 64})


def test_sizes_that_nobody_says(tmp_path: Path) -> None:
    folder = openpi(tmp_path / "folder", "pi0")
    refused(folder, "does not say how many actions it predicts at once", "give policy.horizon=<number>")
    with pytest.raises(ValueError, match=r"how many attention heads .*give policy\.vision_heads=<number>"):
        build.build_backbone(PolicyNode("pi0", checkpoint=str(folder), options=OPENPI), simulator())


@pytest.mark.parametrize("entry", ["action", "state"])
def test_a_robot_with_more_entries_than_the_network(folder: Path, entry: str) -> None:
    names = tuple(f"joint_{index}" for index in range(9))
    limits = {"action_low": (-1.0,) * 9, "action_high": (1.0,) * 9} if entry == "action" else {}
    spec = replace(simulator(), **{f"{entry}_names": names}, **limits)
    refused(folder, f"The simulator has 9 {entry} entries, the checkpoint's network at most 8", spec=spec)


# statistics


def test_statistics_of_another_robot(folder: Path) -> None:
    spec = replace(simulator(), state_names=tuple("abcdefg"))
    refused(folder, BEFORE, "statistics of 6 state entries, the simulator has 7", "policy.statistics=", spec=spec)
    spec = replace(simulator(), action_names=("x", "y"), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    refused(folder, "statistics of 5 action entries, the simulator has 2", spec=spec)


@pytest.mark.parametrize("project", ["lerobot", "openpi"])
@pytest.mark.parametrize("family", ["pi0", "pi05"])
def test_a_statistic_that_is_needed_is_missing(tmp_path: Path, project: str, family: str) -> None:
    needed = "q99" if family == "pi05" else "std"
    known = {name: {k: v for k, v in values.items() if k != needed} for name, values in building.statistics().items()}
    told = {"stats": known} if project == "lerobot" else {"assets": {"tiny": known}}
    folder = getattr(building, project)(tmp_path / "folder", family, **told)
    file = "normalizer_processor.safetensors" if project == "lerobot" else "assets/tiny/norm_stats.json"
    message = refused(folder, file, f"has no '{needed}' of", family=family, options=OPENPI)
    assert "state" in message


@pytest.mark.parametrize("project", ["lerobot", "openpi"])
def test_no_statistics(tmp_path: Path, project: str) -> None:
    """What would act in wrong units is not guessed, whether files or entries are missing."""
    empty = {"stats": {}} if project == "lerobot" else {"assets": {}}
    folder = getattr(building, project)(tmp_path / "folder", "pi0", **empty)
    refused(folder, "has no statistics of the state", "policy.statistics=<LeRobotDataset folder", options=OPENPI)


def test_no_processors(folder: Path) -> None:
    for file in folder.glob("policy_*"):
        file.unlink()
    refused(folder, "policy_preprocessor.json has no statistics of the state")


def test_a_state_file_that_is_missing_or_damaged(folder: Path) -> None:
    (folder / BEFORE).write_bytes(b"PK\x03\x04")
    refused(folder, str(folder / BEFORE), "damaged, or not a safetensors file")
    (folder / BEFORE).unlink()
    refused(folder, f"names {BEFORE}, which is missing")


@pytest.mark.parametrize("project", ["lerobot", "openpi"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_statistics_that_are_no_numbers(tmp_path: Path, project: str, value: float) -> None:
    known = building.statistics()
    known["action"]["std"][2] = value
    told = {"stats": known} if project == "lerobot" else {"assets": {"tiny": known}}
    folder = getattr(building, project)(tmp_path / "folder", "pi0", **told)
    refused(folder, str(folder), "action", "must be finite", options=OPENPI)


def test_bounds_that_are_swapped(tmp_path: Path) -> None:
    known = building.statistics()
    known["state"]["q01"], known["state"]["q99"] = known["state"]["q99"], known["state"]["q01"]
    refused(lerobot(tmp_path / "folder", "pi05", stats=known), "every scale positive", family="pi05")


def test_a_mode_that_is_not_known(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0", modes={"STATE": "MEDIAN"})
    refused(folder, "normalisation 'MEDIAN' is not known; known: IDENTITY, MEAN_STD")


def test_statistics_that_are_not_there(tmp_path: Path, folder: Path) -> None:
    """A typing mistake never falls back on the checkpoint's own."""
    refused(folder, "policy.statistics=nowhere: there is no such file or folder", statistics="nowhere")
    robots = {"lab/one": building.statistics(), "two": building.statistics()}
    several = openpi(tmp_path / "several", "pi0", assets=robots)
    refused(
        several,
        "choose one of lab/one, two with policy.statistics=<asset>, or in inspect with embodiment=<asset>.",
        options=OPENPI,
    )
    refused(several, "policy.statistics=three: no such file", "lab/one, two", options=OPENPI, statistics="three")
    none = openpi(tmp_path / "none", "pi0", assets={})
    refused(none, "policy.statistics=any: no such file", options=OPENPI, statistics="any")
    refused(folder, "has no statistics; give a LeRobotDataset", statistics=str(tmp_path))


def test_a_damaged_norm_stats(tmp_path: Path) -> None:
    folder = openpi(tmp_path / "folder", "pi0")
    file = folder / "assets/tiny/norm_stats.json"
    whole = file.read_text()
    for damaged in (whole[: len(whole) // 2], "{}", '{"norm_stats": {"state": [1], "actions": {}}}'):
        file.write_text(damaged)
        refused(folder, str(file), options=OPENPI)


# tokenizer and prompts


def test_no_tokenizer(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0", tokenizer=False)
    refused(folder, "has no tokenizer.json: give policy.tokenizer=<file or folder>")
    refused(folder, "policy.tokenizer=nowhere: there is no nowhere", tokenizer="nowhere")
    refused(folder, f"there is no {tmp_path / 'tokenizer.json'}", tokenizer=str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer/tokenizer.json").write_text(text)
    refused(folder, "tokenizer")


@pytest.mark.parametrize("project", ["lerobot", "openpi"])
def test_a_tokenizer_that_is_no_text(tmp_path: Path, project: str) -> None:
    folder = getattr(building, project)(tmp_path / "folder", "pi0")
    file = folder / ("tokenizer/tokenizer.json" if project == "lerobot" else "tokenizer.json")
    file.write_bytes(b"\xff\xfe{}")
    refused(folder, f"{file} is damaged", options=OPENPI)
    given = tmp_path / "given.json"
    given.write_bytes(b"\xff\xfe{}")
    file.unlink()
    refused(folder, f"{given} is damaged", options=OPENPI, tokenizer=str(given))


def test_the_tokenizer_of_another_model(folder: Path) -> None:
    """One that gives ids which the network has no embedding for."""
    file = folder / "tokenizer/tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"] |= {f"word{index}": 100 + index for index in range(300)}
    file.write_text(json.dumps(data))
    refused(folder, "tokenizer", "400 tokens", "300", "policy.tokenizer=")


def observed(text: str) -> Observation:
    images = {name: np.zeros((1, 48, 64, 3), np.uint8) for name in ("front", "wrist")}
    return Observation(images, sizes.state()[:1], (text,))


@pytest.mark.thorough
def test_a_prompt_that_is_too_long_and_the_remedy(folder: Path) -> None:
    network, robot = attach(folder, "pi0")
    text = "a very long instruction indeed"
    with pytest.raises(
        ValueError, match=r"has 32 tokens; the policy reads at most 24\. .*policy\.token_length"
    ) as caught:
        robot.inputs(observed(text), network)
    assert text in str(caught.value)
    network, robot = attach(folder, "pi0", options={"token_length": 32})
    assert robot.inputs(observed(text), network).tokens.shape == (1, 32)
    again = save(folder.parent / "policy.safetensors", "pi0", network, robot)
    network, robot = build.build_backbone(PolicyNode("pi0", checkpoint=str(again)), simulator())
    assert robot.inputs(observed(text), network).tokens.shape == (1, 32)


# cameras


def test_cameras_that_do_not_match_and_the_remedy(folder: Path) -> None:
    """Typing what the message proposes works."""
    known = "The policy sees base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb; the simulator shows front, wrist."
    message = refused(folder, known, cameras={})
    found = re.search(r"policy\.cameras='\{(.*)\}'", message)
    assert found is not None
    proposed = dict(pair.split(": ") for pair in found.group(1).split(", "))
    assert proposed == {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist", "right_wrist_0_rgb": "null"}
    typed = {view: None if camera == "null" else camera for view, camera in proposed.items()}
    assert attach(folder, "pi0", cameras=typed)[1].cameras == ("front", "wrist")


@pytest.mark.parametrize(
    ("cameras", "message"),
    [
        ({"base": "front"}, "policy.cameras: the policy has no view 'base'. The policy sees base_0_rgb"),
        ({"base_0_rgb": "top"}, "policy.cameras.base_0_rgb=top: the simulator has no such camera"),
        (dict.fromkeys(sizes.CAMERAS), "policy.cameras leaves the policy without any view"),
        ({"base_0_rgb": "front"}, "Assign cameras"),
    ],
)
def test_views_and_cameras_that_are_not_there(folder: Path, cameras: dict[str, str | None], message: str) -> None:
    refused(folder, message, cameras=cameras)


def test_cameras_of_two_sizes(folder: Path) -> None:
    spec = simulator()
    spec = replace(spec, cameras=(spec.cameras[0], replace(spec.cameras[1], height=32)))
    refused(folder, "must share one size, here [(32, 64), (48, 64)]", spec=spec)


def test_relative_actions_of_a_robot_without_the_states(tmp_path: Path) -> None:
    known = building.statistics()
    known["state"] = {name: value[:3] for name, value in known["state"].items()}
    folder = lerobot(tmp_path / "folder", "pi0", stats=known, relative=True)
    spec = replace(simulator(), state_names=("a", "b", "c"))
    refused(folder, "relative", "3", spec=spec)


# the way back


def test_a_folder_that_is_not_empty(tmp_path: Path, folder: Path) -> None:
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(folder, "pi0"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for out in (folder, folder / "config.json"):
        with pytest.raises(ValueError, match=r"out=.* is there already and not empty; give another folder"):
            exported(file, "lerobot", out)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (tmp_path / "empty").mkdir()
    assert (exported(file, "lerobot", tmp_path / "empty") / "model.safetensors").is_file()


def test_a_policy_that_the_format_does_not_know(tmp_path: Path) -> None:
    spec = replace(simulator(("front",), (32, 32)))
    network, robot = build.build_backbone(PolicyNode("pocket"), spec)
    file = save(tmp_path / "policy.safetensors", "pocket", network, robot)
    for form in ("lerobot", "openpi"):
        with pytest.raises(ValueError, match=f"holds policy 'pocket', which {form} does not support"):
            exported(file, form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_project_is_attached_before_it_is_exported(folder: Path) -> None:
    with pytest.raises(ValueError, match="is a folder of lerobot"):
        exported(folder, "openpi", folder.parent / "out")


def test_what_is_no_checkpoint_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert detection.detect_format(tmp_path) is None and detection.detect_format(tmp_path / "nowhere") is None
    with pytest.raises(CheckpointError):
        attach(tmp_path, "pi0")
