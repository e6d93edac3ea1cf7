"""Folders of lerobot's ACT and Diffusion Policy: there and back, and what is refused, by name."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection
from embodied_rl.commands import inspect
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode, SamplerNode
from tests.support import imitation_sizes as sizes
from tests.support import small_imitation as small
from tests.support.refusals import refuses
from tests.support.using_checkpoints import assert_same_tensors, small_files, stored, there_and_back

KINDS = ("act", "diffusion")
STATISTICS = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each policy; `folder` restores the small files that a test changes."""
    place = tmp_path_factory.mktemp("imitation")
    return {kind: small.folder(place, kind) for kind in KINDS}


@pytest.fixture
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Path]:
    made = folders[request.param]
    before = {file: file.read_bytes() for file in made.iterdir()}
    yield made
    for file, content in before.items():
        file.write_bytes(content)


def change(made: Path, **changes: Any) -> None:
    told = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(told | changes))


def refused(made: Path, *parts: str, spec: SimulatorSpec | None = None, **node: Any) -> None:
    with pytest.raises(ValueError) as caught:
        small.attach(made, made.name, spec, **node)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_policy_goes_back_as_it_came(kind: str, folders: dict[str, Path]) -> None:
    """Small files byte by byte; tensors with names, types and bits, the counters that nothing reads, too."""
    back = there_and_back(folders[kind], "lerobot", small.attach(folders[kind], kind), kind)
    assert small_files(back) == small_files(folders[kind])
    assert_same_tensors(stored(back / "model.safetensors"), stored(folders[kind] / "model.safetensors"))


@pytest.mark.parametrize("variant", ["act", "diffusion_other"])
def test_a_policy_without_lerobots_files_is_read_back(variant: str, tmp_path: Path) -> None:
    """New small files hold all that the old ones said."""
    kind = sizes.VARIANTS[variant][0]
    network, robot = small.attach(small.folder(tmp_path, variant), kind)
    network.source = None
    back = there_and_back(tmp_path / "again", "lerobot", (network, robot), kind)
    again, other = small.attach(back, kind)
    images = ("image_mean", "image_std")
    assert replace(again.config, **dict.fromkeys(images, ())) == replace(network.config, **dict.fromkeys(images, ()))
    for name in images:
        assert getattr(again.config, name) == pytest.approx(getattr(network.config, name))
    assert other.executed == robot.executed and other.action.scale == pytest.approx(robot.action.scale)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in again.state_dict().items())
    with refuses("format-does-not-support-policy", "openpi"):
        there_and_back(tmp_path / "third", "openpi", (network, robot), kind)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_the_command_that_imports_names_the_policy(folder: Path) -> None:
    with refuses("checkpoint-not-imported", f"policy={folder.name} policy.checkpoint={folder}"):
        build.resolve_policy_file(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    with refuses("checkpoint-not-imported", f"|pi0_fast|smolvla> policy.checkpoint={folder}"):
        build.resolve_policy_file(str(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_misses_nothing(kind: str, folders: dict[str, Path]) -> None:
    found = detection.read_checkpoint(folders[kind])
    assert list(inspect.list_missing(found, tensors=True)) == []
    assert ("tokenizer", "none: it reads no words") in list(inspect.describe_checkpoint(found))


@pytest.mark.parametrize(
    ("folder", "changes", "parts"),
    [
        ("act", {"temporal_ensemble_coeff": 0.01}, ["temporal_ensemble_coeff=0.01 is not supported"]),
        ("act", {"n_obs_steps": 2}, ["n_obs_steps=2 is not supported"]),
        ("act", {"vision_backbone": "resnet50"}, ["vision_backbone"]),
        ("act", {"replace_final_stride_with_dilation": True}, ["replace_final_stride_with_dilation"]),
        ("act", {"feedforward_activation": "glu"}, ["feedforward_activation"]),
        ("act", {"chunk_sizes": 6}, ["'chunk_sizes', which is not understood", "Did you mean 'chunk_size'"]),
        ("act", {"use_peft": True}, ["use_peft=true is not supported"]),
        ("act", {"dim_model": 18}, ["policy.width=18 must be a multiple of 4"]),
        ("act", {"chunk_size": 7}, ["decoder_pos_embed.weight is (6, 16), expected (7, 16)"]),
        ("diffusion", {"beta_schedule": "sigmoid"}, ['beta_schedule="sigmoid" is not supported']),
        ("diffusion", {"num_inference_steps": 30}, ["policy.denoise_steps=30 must be at most policy.steps=20"]),
        ("diffusion", {"horizon": 10}, ["chunks of 10 actions, which must be a multiple of 4"]),
        ("diffusion", {"crop_shape": [70, 40]}, ["policy.crop=(70, 40) exceeds images of (64, 96)"]),
        ("diffusion", {"noise_scheduler_type": "EDM"}, ["noise_scheduler_type"]),
        ("diffusion", {"n_groups": 5}, ["must be multiples of policy.groups=5"]),
        ("diffusion", {"use_group_norm": True}, ["unknown: diffusion.rgb_encoder.0.backbone.1.running_mean"]),
    ],
    indirect=["folder"],
)
def test_settings_that_are_not_understood_are_refused(folder: Path, changes: dict[str, Any], parts: list[str]) -> None:
    change(folder, **changes)
    refused(folder, *parts)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_images_without_statistics_are_refused(folder: Path) -> None:
    known = load_file(folder / STATISTICS)
    save_file({k: v for k, v in known.items() if k != "observation.images.wrist.std"}, folder / STATISTICS)
    refused(folder, STATISTICS, "mean and std of the red, green and blue of observation.images.wrist")
    (folder / STATISTICS).unlink()
    refused(folder, STATISTICS, "missing")


@pytest.mark.parametrize("folder", ["act"], indirect=True)
def test_other_features_and_normalisations_are_refused(folder: Path) -> None:
    told = json.loads((folder / "config.json").read_text())["input_features"]
    change(folder, input_features=told | {"observation.environment_state": {"type": "ENV", "shape": [4]}})
    refused(folder, "input_features has 'observation.environment_state' of type ENV")
    change(folder, input_features=told)
    before = json.loads((folder / "policy_preprocessor.json").read_text())
    before["steps"][3]["config"]["norm_map"]["VISUAL"] = "MIN_MAX"
    (folder / "policy_preprocessor.json").write_text(json.dumps(before))
    refused(folder, "normalises pictures by MIN_MAX")
    before["steps"].insert(3, {"registry_name": "tokenizer_processor", "config": {}})
    (folder / "policy_preprocessor.json").write_text(json.dumps(before))
    refused(folder, "'tokenizer_processor', which is not understood")


@pytest.mark.parametrize("kind", KINDS)
def test_a_simulator_that_does_not_fit_is_refused(kind: str, folders: dict[str, Path]) -> None:
    made, spec = folders[kind], small.simulator()
    refused(made, "made for image_size=(64, 96), and here it is (48, 96)", spec=small.simulator(size=(48, 96)))
    refused(made, "cameras=2, and here it is 1", cameras={"wrist": None})
    refused(made, "wrist", "Assign cameras", spec=small.simulator(("front", "side")))
    fewer = replace(spec, action_names=("dx", "dy"), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    refused(made, "statistics of 3 action entries, the simulator has 2", spec=fewer)
    more = replace(spec, state_names=(*spec.state_names, "extra"))
    refused(made, "6 state entries, the checkpoint's network at most 5", spec=more)


@pytest.mark.parametrize("folder", ["act"], indirect=True)
def test_damaged_weights_are_refused(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(folder, "model.safetensors", "damaged")
    (folder / "model.safetensors").unlink()
    (folder / "model.pt").write_bytes(b"pickled")
    try:
        refused(folder, "model.pt is a pickle")
    finally:
        (folder / "model.pt").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_rollouts_is_refused_before_anything_starts(kind: str, folders: dict[str, Path]) -> None:
    node = PolicyNode(kind, checkpoint=str(folders[kind]))
    with pytest.raises(ValueError, match=f"policy={kind}: .* no likelihood .*clone it with `embodied-rl sft`"):
        build.outline_actor(node, SamplerNode(), small.simulator())
