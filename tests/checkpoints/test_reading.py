"""What a checkpoint of another project says, and the network and embodiment that come of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from embodied_rl.checkpoints import detection
from embodied_rl.interfaces.sim import Camera
from tests.support import building_checkpoints as building
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import (
    EMBEDDING,
    FAMILIES,
    HEAD,
    lerobot,
    openpi,
    prefixed,
    simulator,
    tensors,
)
from tests.support.refusals import refuses
from tests.support.using_checkpoints import OPENPI, attach, velocity


def expected_state(family: str, project: str, values: np.ndarray, name: str = "state") -> np.ndarray:
    """The formulas that the projects document, in double precision."""
    known = {key: value.astype(np.float64) for key, value in building.statistics()[name].items()}
    if family == "pi0":
        return (values - known["mean"]) / (known["std"] + (1e-8 if project == "lerobot" else 1e-6))
    span = known["q99"] - known["q01"]
    span = np.where(span == 0, 1e-8, span) if project == "lerobot" else span + 1e-6
    return 2 * (values - known["q01"]) / span - 1


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_lerobot_says_everything(tmp_path: Path, family: str) -> None:
    network, robot = attach(lerobot(tmp_path / "folder", family), family)
    config = network.config
    assert (config.width, config.layers, config.hidden, config.heads, config.head_dim) == (40, 3, 72, 8, 6)
    assert (config.expert_width, config.expert_hidden, config.vocabulary) == (24, 48, sizes.VOCABULARY)
    assert (config.vision_width, config.vision_layers, config.vision_hidden, config.vision_heads) == (32, 2, 48, 2)
    assert (config.patch, config.resolution) == (14, sizes.IMAGE_SIZE)
    assert (config.horizon, config.action_dim, config.state_dim) == (sizes.CHUNK, 8, 8)
    assert config.token_length == network.spec.token_length == robot.token_length == sizes.PROMPT_LENGTH[family]
    assert robot.cameras == ("front", "wrist") and robot.image_size == (48, 64)
    assert robot.views == robot.view_names == network.spec.cameras == ("base_0_rgb", "left_wrist_0_rgb")
    assert robot.executed == sizes.CHUNK - 1 and robot.relative == ()
    assert robot.state.kind == robot.action.kind == ("quantiles" if family == "pi05" else "mean_std")
    assert robot.tokenizer == (tmp_path / "folder/tokenizer/tokenizer.json").read_text()
    assert all(parameter.dtype == torch.float32 and not parameter.is_meta for parameter in network.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_openpi_says_what_it_can(tmp_path: Path, family: str) -> None:
    folder = openpi(tmp_path / "folder", family)
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    network, robot = attach(folder, family, options=OPENPI, tokenizer=tokenizer)
    assert network.config.horizon == sizes.CHUNK == robot.executed
    assert network.config.token_length == type(network).Config().token_length == {"pi0": 48, "pi05": 200}[family]
    assert robot.state.kind == robot.action.kind == ("quantiles" if family == "pi05" else "mean_std")
    named = attach(folder, family, options=OPENPI, tokenizer=f"{tokenizer}/tokenizer.json")[1]
    assert named == robot


def test_the_converters_configuration_says_the_horizon(tmp_path: Path) -> None:
    folder = openpi(tmp_path / "folder", "pi0", converted=True)
    network, _ = attach(folder, "pi0", tokenizer=str(building.tokenizer_files(tmp_path / "tokenizer")))
    assert network.config.horizon == sizes.CHUNK


@pytest.mark.parametrize("said", [{"history": 4}, {"pi05": True}, {"discrete_state_input": True}])
def test_what_openpis_configuration_says_is_understood_or_refused(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = openpi(tmp_path / "folder", "pi0", converted=True)
    file, (key,) = folder / "config.json", said
    usual = {"dtype": "bfloat16", "pi05": False, "discrete_state_input": None, "max_token_len": 48}
    file.write_text(json.dumps(json.loads(file.read_text()) | usual))
    assert detection.read_checkpoint(folder).policy == "pi0"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    with refuses("checkpoint-unsupported", file, key):
        detection.read_checkpoint(folder)


def test_a_single_file_of_weights_counts_beside_an_index(tmp_path: Path) -> None:
    """As in lerobot and transformers: shards that an earlier export left behind are not read."""
    folder = lerobot(tmp_path / "folder", "pi0")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    building.shard(folder)
    weights.write_bytes(whole)
    assert {entry.file for entry in detection.read_checkpoint(folder).tensors.values()} == {weights}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("project", ["lerobot", "openpi"])
def test_states_and_actions_are_scaled_by_the_formulas_of_the_project(
    tmp_path: Path, family: str, project: str
) -> None:
    """An entry that never moved is as well-defined there as the others, and is so here."""
    folder = getattr(building, project)(tmp_path / "folder", family)
    options, tokenizer = (OPENPI, str(building.tokenizer_files(tmp_path / "tokenizer")))
    _, robot = attach(folder, family, options=options, tokenizer=tokenizer)
    state = sizes.state()
    expected = expected_state(family, project, state)
    np.testing.assert_allclose(robot.state.normalise(torch.from_numpy(state)), expected, rtol=1e-6, atol=1e-6)
    numbers = np.linspace(-1.5, 1.5, 2 * 5 * sizes.PADDED_DIM).reshape(2, 5, -1).astype(np.float32)
    restored = robot.actions(torch.from_numpy(numbers), state[:2])
    back = expected_state(family, project, restored.astype(np.float64), "action")
    moving = slice(0, sizes.ACTION_DIM - 1)
    np.testing.assert_allclose(back[..., moving], numbers[..., moving], atol=2e-6)
    still = building.statistics()["action"]["mean"][-1]
    np.testing.assert_allclose(restored[..., -1], still, atol=2e-6)


@pytest.mark.parametrize("mode", ["MIN_MAX", "QUANTILES", "QUANTILE10", "MEAN_STD"])
def test_the_mode_of_normalisation_is_what_the_folder_says(tmp_path: Path, mode: str) -> None:
    _, robot = attach(lerobot(tmp_path / "folder", "pi0", modes={"STATE": mode}), "pi0")
    known = building.statistics()["state"]
    names = {"MIN_MAX": "min max", "QUANTILES": "q01 q99", "QUANTILE10": "q10 q90", "MEAN_STD": "mean std"}
    low, high = names[mode].split()
    rows = torch.from_numpy(np.stack([known[low], known[high] if mode != "MEAN_STD" else known["mean"] + known["std"]]))
    expected = (0.0, 1.0) if mode == "MEAN_STD" else (-1.0, 1.0)
    for row, value in zip(robot.state.normalise(rows), expected, strict=True):
        torch.testing.assert_close(row[:-1], torch.full((sizes.STATE_DIM - 1,), value))
    assert robot.action.kind == "mean_std"


def test_without_normalisation_no_statistics_are_needed(tmp_path: Path) -> None:
    known = {"action": building.statistics()["action"]}
    folder = lerobot(tmp_path / "folder", "pi0", modes={"STATE": "IDENTITY"}, stats=known)
    _, robot = attach(folder, "pi0")
    state = torch.from_numpy(sizes.state())
    assert torch.equal(robot.state.normalise(state), state)


def test_statistics_that_were_padded_are_cut(tmp_path: Path) -> None:
    """As older openpi checkpoints have them, with zeros up to the width of the network."""
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    for family in FAMILIES:
        short, padded = (
            attach(openpi(tmp_path / f"{family}{width}", family, width=width), family, options=OPENPI,
                   tokenizer=tokenizer)[1]
            for width in (None, 32)
        )  # fmt: skip
        assert padded == short


@pytest.mark.parametrize("family", FAMILIES)
def test_one_of_several_robots_is_chosen(tmp_path: Path, family: str) -> None:
    other = {name: {key: value + 1 for key, value in known.items()} for name, known in building.statistics().items()}
    folder = openpi(tmp_path / "folder", family, assets={"ours": building.statistics(), "lab/theirs": other})
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    robots = [
        attach(folder, family, options=OPENPI, tokenizer=tokenizer, statistics=asset)[1]
        for asset in ("ours", "lab/theirs")
    ]
    np.testing.assert_allclose(np.subtract(robots[1].state.center, robots[0].state.center), 1, atol=1e-6)


def test_statistics_of_a_file_replace_those_of_the_checkpoint(tmp_path: Path) -> None:
    """For both projects, and where a choice between several robots would be due."""
    other = {name: {key: value + 1 for key, value in known.items()} for name, known in building.statistics().items()}
    file = openpi(tmp_path / "elsewhere", "pi0", assets={"any": other}) / "assets/any/norm_stats.json"
    tokenizer = str(building.tokenizer_files(tmp_path / "tokenizer"))
    several = openpi(tmp_path / "several", "pi0", assets={"one": building.statistics(), "two": building.statistics()})
    for folder in (lerobot(tmp_path / "lerobot", "pi0"), several):
        _, robot = attach(folder, "pi0", options=OPENPI, tokenizer=tokenizer, statistics=str(file))
        np.testing.assert_allclose(robot.state.center, building.statistics()["state"]["mean"] + 1, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["lm_head", "embed_tokens", "plain names", "shards"])
def test_all_ways_of_storing_the_same_weights_give_one_network(tmp_path: Path, family: str, form: str) -> None:
    """Embeddings under either name or both; with and without `model.`; in one file or several."""
    whole = tensors(family)
    reference = velocity(attach(lerobot(tmp_path / "reference", family), family)[0])
    changed = {
        "lm_head": prefixed({name: value for name, value in whole.items() if name != EMBEDDING}),
        "embed_tokens": prefixed({name: value for name, value in whole.items() if name != HEAD}),
        "plain names": whole,
        "shards": prefixed(whole),
    }
    folder = lerobot(tmp_path / "folder", family, weights=changed[form])
    if form == "shards":
        building.shard(folder)
    assert torch.equal(velocity(attach(folder, family)[0]), reference)


def test_older_names_of_the_vision_tower_are_known(tmp_path: Path) -> None:
    """Before transformers 5.5 it was not nested."""
    reference = velocity(attach(lerobot(tmp_path / "reference", "pi0"), "pi0")[0])
    older = {name.replace("vision_tower.vision_model.", "vision_tower."): v for name, v in tensors("pi0").items()}
    found = velocity(attach(lerobot(tmp_path / "folder", "pi0", weights=prefixed(older)), "pi0")[0])
    assert torch.equal(found, reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embedding_counts_where_the_output_layer_differs(tmp_path: Path, family: str) -> None:
    """lerobot unties them, and its forward pass reads the embedding."""
    weights = tensors(family)
    reference = velocity(attach(lerobot(tmp_path / "reference", family), family)[0])
    weights[HEAD] = weights[HEAD] + 1
    found = velocity(attach(lerobot(tmp_path / "folder", family, weights=prefixed(weights)), family)[0])
    assert torch.equal(found, reference)


def test_without_names_lerobot_makes_every_action_relative(tmp_path: Path) -> None:
    """Its exclusions go by the names that its data set has; ours would be a guess."""
    _, robot = attach(lerobot(tmp_path / "folder", "pi0", relative=True), "pi0")
    assert robot.relative == (0, 1, 2, 3, 4)
    theirs = ["grip" + "per", "b", "c", "d", "e"]
    _, robot = attach(lerobot(tmp_path / "named", "pi0", relative=True, action_names=theirs), "pi0")
    assert robot.relative == (-1, 1, 2, 3, 4)


def test_an_exclusion_without_a_name_excludes_nothing(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0", relative=True, action_names=sizes.ACTION_NAMES)
    file = folder / "policy_preprocessor.json"
    file.write_text(file.read_text().replace('"gripper"\n', '""\n'))
    assert '""' in file.read_text()
    assert attach(folder, "pi0")[1].relative == (0, 1, 2, 3, 4)


def test_cameras_that_only_fill_up_are_no_views(tmp_path: Path) -> None:
    config = building.configuration("pi0", {})
    empty = {"observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 48, 64]}}
    changed = {"input_features": config["input_features"] | empty, "empty_cameras": 1}
    assert detection.read_checkpoint(lerobot(tmp_path / "folder", "pi0", **changed)).cameras == tuple(sizes.CAMERAS)


def test_views_follow_the_checkpoints_order_and_need_no_mapping_where_names_agree(tmp_path: Path) -> None:
    spec = simulator(tuple(reversed(tuple(sizes.CAMERAS))))
    spec = replace(spec, cameras=(*spec.cameras, Camera("nice", 480, 640, "video")))
    network, robot = attach(lerobot(tmp_path / "folder", "pi0"), "pi0", spec, cameras={})
    assert network.spec.cameras == robot.cameras == tuple(sizes.CAMERAS)


def test_a_safetensors_file_beside_the_weights_is_not_read(tmp_path: Path) -> None:
    """Whatever else lies there, such as an optimizer's state."""
    folder = lerobot(tmp_path / "folder", "pi0")
    save_file({"x": torch.zeros(1)}, folder / "optimizer_state.safetensors")
    (folder / "metadata.pt").write_bytes(building.POISON)
    attach(folder, "pi0")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", ["", "meta/stats.json"])
def test_statistics_of_a_data_set_replace_those_of_the_checkpoint(tmp_path: Path, family: str, place: str) -> None:
    """A LeRobotDataset's folder or its stats.json, by lerobot's formulas; what it says of pictures is passed over."""
    shifted = {name: {k: v + (k != "std") for k, v in values.items()} for name, values in building.statistics().items()}
    known = {name: {k: v.tolist() for k, v in values.items()} for name, values in shifted.items()}
    pictures = {"observation.images.top": {"mean": [[[0.1]], [[0.2]], [[0.3]]], "count": [7]}}
    file = tmp_path / "dataset/meta/stats.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"observation.state": known["state"], "action": known["action"], **pictures}))
    chosen = str(tmp_path / "dataset" / place)
    _, robot = attach(lerobot(tmp_path / "folder", family), family, statistics=chosen)
    state = sizes.state()
    expected = expected_state(family, "lerobot", state)
    moving = slice(0, -1)
    np.testing.assert_allclose(
        robot.state.normalise(torch.from_numpy(state + 1))[:, moving], expected[:, moving], rtol=1e-5, atol=1e-5
    )
