"""What was changed since another project's checkpoint was read is written when it goes back, and nothing else is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.actors.embodiment import Normalisation
from tests.support import building_checkpoints as building
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import EMBEDDING, FAMILIES, lerobot, mixed, openpi, prefixed, tensors
from tests.support.using_checkpoints import (
    OPENPI,
    SEEN,
    assert_same_tensors,
    attach,
    attach_any,
    exported,
    save,
    small_files,
    smolvla_folder,
    stored,
    there_and_back,
)

pytestmark = pytest.mark.thorough


def changed(known: Normalisation) -> Normalisation:
    return Normalisation(known.kind, tuple(c + 0.25 for c in known.center), tuple(2 * s + 0.5 for s in known.scale))


@pytest.mark.parametrize("family", FAMILIES)
def test_new_statistics_change_the_files_of_statistics_alone(tmp_path: Path, family: str) -> None:
    """lerobot's formulas with what was written give the new normalisation."""
    folder = lerobot(tmp_path / "folder", family)
    network, robot = attach(folder, family)
    robot = replace(robot, state=changed(robot.state), action=changed(robot.action))
    back = there_and_back(folder, "lerobot", (network, robot), family)
    old, new = small_files(folder), small_files(back)
    different = {name for name in old if old[name] != new.get(name)}
    assert new.keys() == old.keys() and different == {name for name in old if name.endswith(".safetensors")}
    for name in sorted(different):
        said = {key: value.double().numpy() for key, value in load_file(back / name).items()}
        for feature, known in (("observation.state", robot.state), ("action", robot.action)):
            low, high = (f"{feature}.q01", f"{feature}.q99") if family == "pi05" else ("", "")
            center = (said[low] + said[high]) / 2 if low else said[f"{feature}.mean"]
            scale = (said[high] - said[low]) / 2 if low else said[f"{feature}.std"] + 1e-8
            np.testing.assert_allclose(center, known.center, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(scale, known.scale, rtol=1e-6, atol=1e-6)
    again = attach(back, family)[1]
    np.testing.assert_allclose(again.state.center, robot.state.center, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(again.action.scale, robot.action.scale, rtol=1e-6, atol=1e-6)


def test_statistics_of_pictures_and_times_stay(tmp_path: Path) -> None:
    """A data set's statistics know more than state and action; of those two nothing stale remains."""
    known = building.statistics()
    folder = lerobot(tmp_path / "folder", "pi0", stats=known)
    for file in folder.glob("policy_*.safetensors"):
        save_file(load_file(file) | {"timestamp.mean": torch.ones(1)}, file)
    network, robot = attach(folder, "pi0")
    back = there_and_back(folder, "lerobot", (network, replace(robot, state=changed(robot.state))), "pi0")
    for file in back.glob("policy_*.safetensors"):
        parts = {"observation.state.mean", "observation.state.std", "action.mean", "action.std", "timestamp.mean"}
        assert set(load_file(file)) == parts


@pytest.mark.parametrize("mode", ["QUANTILES", "QUANTILE10", "MIN_MAX"])
def test_statistics_of_another_kind_are_said_in_the_words_of_the_folder(tmp_path: Path, mode: str) -> None:
    """Any of them is an affine map; the steps that apply it stay as they are."""
    folder = lerobot(tmp_path / "folder", "pi0", modes={"STATE": mode, "ACTION": mode})
    network, robot = attach(folder, "pi0")
    measured = robot.with_statistics(np.random.default_rng(0).normal(size=(50, sizes.STATE_DIM)), kind="mean_std")
    back = there_and_back(folder, "lerobot", (network, measured), "pi0")
    again = attach(back, "pi0")[1]
    assert again.state.kind == robot.state.kind
    np.testing.assert_allclose(again.state.center, measured.state.center, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.state.scale, measured.state.scale, rtol=1e-5, atol=1e-6)


def test_statistics_find_a_place_where_the_folder_has_none(tmp_path: Path) -> None:
    """Processors are written anew where they do not normalise, or are not there."""
    identity = lerobot(tmp_path / "identity", "pi0", modes={"STATE": "IDENTITY"})
    bare = lerobot(tmp_path / "bare", "pi0")
    for file in bare.glob("policy_*"):
        file.unlink()
    given = openpi(tmp_path / "openpi", "pi0") / "assets/tiny/norm_stats.json"
    for folder, node in ((identity, {}), (bare, {"statistics": str(given)})):
        network, robot = attach(folder, "pi0", **node)
        measured = robot.with_statistics(np.random.default_rng(0).normal(size=(50, sizes.STATE_DIM)))
        back = there_and_back(folder, "lerobot", (network, measured), "pi0")
        again = attach(back, "pi0", cameras=SEEN)[1]
        assert again.state.kind == "mean_std"
        np.testing.assert_allclose(again.state.scale, measured.state.scale, rtol=1e-6)
        np.testing.assert_allclose(again.action.center, robot.action.center, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_statistics_of_one_robot_leave_those_of_others(tmp_path: Path, family: str) -> None:
    """And openpi's formulas with what was written give the new normalisation."""
    folder = openpi(tmp_path / "folder", family, assets={"one": building.statistics(), "two": building.statistics()})
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    network, robot = attach(folder, family, options=OPENPI, tokenizer=tokenizer, statistics="two")
    robot = replace(robot, state=changed(robot.state), action=changed(robot.action))
    back = there_and_back(folder, "openpi", (network, robot), family)
    assert (back / "assets/one/norm_stats.json").read_bytes() == (folder / "assets/one/norm_stats.json").read_bytes()
    said = json.loads((back / "assets/two/norm_stats.json").read_text())["norm_stats"]
    for name, known in (("state", robot.state), ("actions", robot.action)):
        low, high = (np.asarray(said[name][key]) for key in (("q01", "q99") if family == "pi05" else ("mean", "std")))
        center, scale = ((low + high + 1e-6) / 2, (high - low + 1e-6) / 2) if family == "pi05" else (low, high + 1e-6)
        np.testing.assert_allclose(center, known.center, rtol=1e-9)
        np.testing.assert_allclose(scale, known.scale, rtol=1e-9)


def test_another_number_of_executed_actions_is_written(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0")
    back = there_and_back(folder, "lerobot", attach(folder, "pi0", executed=2), "pi0")
    old, new = (json.loads((each / "config.json").read_text()) for each in (folder, back))
    assert new == old | {"n_action_steps": 2}


@pytest.mark.parametrize("family", [*FAMILIES, "smolvla"])
@pytest.mark.parametrize("told", [True, False])
def test_the_exported_number_of_denoise_steps_is_the_runs(tmp_path: Path, family: str, told: bool) -> None:
    """Not the source's, whether its files say one or mean lerobot's ten; `save` writes a run with four."""
    folder = smolvla_folder(tmp_path) if family == "smolvla" else lerobot(tmp_path / "folder", family)
    key = "num_steps" if family == "smolvla" else "num_inference_steps"
    old = json.loads((folder / "config.json").read_text()) | {key: 7}
    (folder / "config.json").write_text(json.dumps(old if told else {k: v for k, v in old.items() if k != key}))
    back = there_and_back(folder, "lerobot", attach_any(folder, family), family)
    assert json.loads((back / "config.json").read_text()) == old | {key: 4}


@pytest.mark.parametrize(
    ("family", "key", "rounded", "kept"),
    [("pi0", "dtype", "bfloat16", "float32"), ("smolvla", "load_vlm_weights", True, False)],
)
def test_full_precision_is_said_in_the_configuration(
    tmp_path: Path, family: str, key: str, rounded: object, kept: object
) -> None:
    """Otherwise lerobot rounds to bfloat16 as it loads; and openpi, whose key is another."""
    folder = smolvla_folder(tmp_path) if family == "smolvla" else lerobot(tmp_path / "folder", family)
    config = json.loads((folder / "config.json").read_text()) | {key: rounded}
    (folder / "config.json").write_text(json.dumps(config))
    file = save(tmp_path / "policy.safetensors", family, *attach_any(folder, family))
    for dtype, expected in (("float32", kept), ("source", rounded)):
        back = exported(file, "lerobot", tmp_path / dtype, **({"dtype": dtype} if dtype == "float32" else {}))
        assert json.loads((back / "config.json").read_text()) == config | {key: expected}


def test_full_precision_is_said_to_openpi(tmp_path: Path) -> None:
    folder = openpi(tmp_path / "folder", "pi0", converted=True)
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(folder, "pi0", tokenizer=tokenizer))
    back = exported(file, "openpi", tmp_path / "back", dtype="float32")
    old, new = (json.loads((each / "config.json").read_text()) for each in (folder, back))
    assert old["precision"] == "bfloat16" and new == old | {"precision": "float32"}


def test_trained_weights_go_back_in_the_types_they_came_in(tmp_path: Path) -> None:
    weights = prefixed(mixed("pi05", "lerobot", tensors("pi05")))
    folder = lerobot(tmp_path / "folder", "pi05", weights=weights)
    network, robot = attach(folder, "pi05")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    found = stored(there_and_back(folder, "lerobot", (network, robot), "pi05") / "model.safetensors")
    carried = network.source.carried
    expected = {
        name: value if name in carried else (value.float() * 1.5).to(value.dtype) for name, value in weights.items()
    }
    assert_same_tensors(found, expected)


def test_half_precision_goes_back_in_full_where_asked(tmp_path: Path) -> None:
    """What was trained in float32 need not be rounded; what was stored in bfloat16 keeps its values."""
    weights = prefixed(mixed("pi0", "lerobot", tensors("pi0")))
    folder = lerobot(tmp_path / "folder", "pi0", weights=weights)
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(folder, "pi0"))
    for form in ("lerobot", "openpi"):
        found = stored(exported(file, form, tmp_path / form, dtype="float32") / "model.safetensors")
        by_core = {name.removeprefix("model."): value for name, value in found.items()}
        expected = {name.removeprefix("model."): value.float() for name, value in weights.items()}
        assert_same_tensors(by_core, {name: expected[name] for name in by_core})
        assert expected.keys() - by_core.keys() == ({EMBEDDING} if form == "openpi" else set())
