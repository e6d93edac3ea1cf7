"""lerobot's processor files: the steps that it writes are understood, and any other is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import PROMPT_STEP, lerobot, simulator, statistics
from tests.support.using_checkpoints import attach, attach_any, smolvla_folder, there_and_back

BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
CROP = {"registry_name": "image_crop_resize_processor", "config": {"crop_params_dict": {}, "resize_size": None}}
Steps = list[dict[str, Any]]


def change(folder: Path, name: str, edit: Callable[[Steps], None]) -> None:
    """Change the steps of a processor file."""
    file = folder / name
    content = json.loads(file.read_text())
    edit(content["steps"])
    file.write_text(json.dumps(content))


def named(steps: Steps, name: str) -> dict[str, Any]:
    return next(step for step in steps if step["registry_name"] == name)


def set_in(step: str, **settings: Any) -> Callable[[Steps], None]:
    return lambda steps: named(steps, step)["config"].update(settings)


def refused(folder: Path, family: str, *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        attach_any(folder, family)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("family", ["pi0", "pi05", "smolvla"])
@pytest.mark.parametrize("name", [BEFORE, AFTER])
def test_a_step_that_is_not_understood(tmp_path: Path, family: str, name: str) -> None:
    """Such as one that crops the pictures, or someone's own class."""
    folder = smolvla_folder(tmp_path) if family == "smolvla" else lerobot(tmp_path / "folder", family)
    change(folder, name, lambda steps: steps.insert(0, CROP))
    refused(folder, family, str(folder / name), "has the step 'image_crop_resize_processor', which is not understood")
    change(folder, name, lambda steps: steps.__setitem__(0, {"class": "mine.Clip", "config": {}}))
    refused(folder, family, str(folder / name), "has the step 'mine.Clip', which is not understood")


@pytest.mark.parametrize(
    ("name", "step", "setting", "value"),
    [
        (BEFORE, "device_processor", "float_dtype", "bfloat16"),
        (BEFORE, "tokenizer_processor", "padding_side", "left"),
        (BEFORE, "tokenizer_processor", "task_key", "subtask"),
        (BEFORE, "tokenizer_processor", "max_length", 0),
        (BEFORE, "tokenizer_processor", "add_eos", True),
        (BEFORE, "normalizer_processor", "normalize_observation_keys", ["observation.images.base_0_rgb"]),
        (BEFORE, "normalizer_processor", "eps", "x"),
        (BEFORE, "normalizer_processor", "norm_map", {"STATE": []}),
        (BEFORE, "normalizer_processor", "clip", 5.0),
        (BEFORE, "relative_actions_processor", "enabled", "yes"),
        (BEFORE, "relative_actions_processor", "exclude_joints", "gripper"),
        (BEFORE, "pi05_prepare_state_tokenizer_processor_step", "include_state_in_prompt", False),
        (BEFORE, "to_batch_processor", "size", 2),
        (AFTER, "unnormalizer_processor", "norm_map", ["ACTION"]),
        (AFTER, "device_processor", "float_dtype", "float16"),
    ],
)
def test_a_setting_of_a_step_that_is_not_supported(
    tmp_path: Path, name: str, step: str, setting: str, value: object
) -> None:
    folder = lerobot(tmp_path / "folder", "pi05")
    change(folder, name, set_in(step, **{setting: value}))
    refused(folder, "pi05", str(folder / name), step, setting)


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_normalised_pictures(tmp_path: Path, mode: str) -> None:
    """What the step says counts, and what the configuration says where there is no step."""
    folder = lerobot(tmp_path / "folder", "pi0", modes={"VISUAL": mode})
    refused(folder, "pi0", f"{folder / BEFORE} normalises pictures by {mode} (VISUAL); supported is IDENTITY alone")
    for file in folder.glob("policy_*"):
        file.unlink()
    refused(folder, "pi0", f"{folder / 'config.json'} normalises pictures by {mode} (VISUAL)")
    other = lerobot(tmp_path / "other", "pi0")
    config = json.loads((other / "config.json").read_text())
    config["normalization_mapping"]["VISUAL"] = mode
    (other / "config.json").write_text(json.dumps(config))
    attach(other, "pi0")


@pytest.mark.parametrize("family", ["pi0", "pi05"])
def test_a_prompt_that_nobody_writes(tmp_path: Path, family: str) -> None:
    """Without the step, lerobot would give the network another text."""
    folder = lerobot(tmp_path / "folder", family)
    for name in ("tokenizer_processor", PROMPT_STEP[family]):
        change(folder, BEFORE, lambda steps, name=name: steps.remove(named(steps, name)))
        refused(folder, family, str(folder / BEFORE), "has no step", name)
    change(folder, BEFORE, lambda steps: steps.append({"registry_name": "smolvla_new_line_processor", "config": {}}))
    refused(folder, family, "has the step 'smolvla_new_line_processor', which is not understood")


def test_a_step_twice(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0")
    change(folder, BEFORE, lambda steps: steps.append(named(steps, "device_processor")))
    attach(folder, "pi0")
    change(folder, BEFORE, lambda steps: steps.append(named(steps, "normalizer_processor")))
    refused(folder, "pi0", "has the step 'normalizer_processor', more than once")


def test_steps_in_an_order_that_changes_what_they_do(tmp_path: Path) -> None:
    """π0.5 writes the normalised state into its prompt, not the raw one."""
    folder = lerobot(tmp_path / "folder", "pi05")
    change(folder, BEFORE, lambda steps: steps.append(steps.pop(steps.index(named(steps, "normalizer_processor")))))
    refused(folder, "pi05", "pi05_prepare_state_tokenizer_processor_step comes before normalizer_processor")


@pytest.mark.parametrize("name", ["relative_actions_processor", "delta_actions_processor"])
def test_relative_actions_of_either_name(tmp_path: Path, name: str) -> None:
    """lerobot 0.5 called the step otherwise."""
    folder = lerobot(tmp_path / "folder", "pi0", relative=True, action_names=sizes.ACTION_NAMES)
    change(folder, BEFORE, lambda steps: named(steps, "relative_actions_processor").update(registry_name=name))
    assert attach(folder, "pi0")[1].relative == (0, 1, 2, 3, -1)


def test_relative_actions_that_are_never_made_absolute(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0", relative=True)
    change(folder, AFTER, set_in("absolute_actions_processor", enabled=False))
    refused(
        folder,
        "pi0",
        str(folder / AFTER),
        "relative_actions_processor is enabled, but its inverse absolute_actions_processor",
    )
    change(folder, AFTER, lambda steps: steps.clear())
    change(folder, BEFORE, set_in("relative_actions_processor", enabled=False))
    refused(folder, "pi0", "normalizer_processor is enabled, but its inverse unnormalizer_processor")


def test_actions_that_are_undone_by_other_statistics(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "folder", "pi0")
    file = folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    refused(folder, "pi0", str(folder / AFTER), "other statistics than policy_preprocessor.json")


def test_a_state_that_is_not_normalised(tmp_path: Path) -> None:
    """lerobot normalises the features that the step lists, by their type."""
    folder = lerobot(tmp_path / "folder", "pi0")
    features = {"observation.state": {"type": "ENV", "shape": [sizes.STATE_DIM]}}
    change(folder, BEFORE, set_in("normalizer_processor", features=features))
    refused(folder, "pi0", str(folder / BEFORE), "leaves observation.state out of what it normalises")


def test_the_length_of_prompts_is_that_of_the_step(tmp_path: Path) -> None:
    """lerobot cuts prompts there; its configuration may say otherwise after fine-tuning."""
    folder = lerobot(tmp_path / "folder", "pi0")
    change(folder, BEFORE, set_in("tokenizer_processor", max_length=31))
    network, robot = attach(folder, "pi0")
    assert robot.token_length == network.spec.token_length == 31


def test_statistics_from_elsewhere_are_read_in_the_mode_of_the_step(tmp_path: Path) -> None:
    """As lerobot does with a data set's, whatever the configuration says."""
    folder = lerobot(tmp_path / "folder", "pi0")
    modes = {"VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "QUANTILES"}
    change(folder, BEFORE, set_in("normalizer_processor", norm_map=modes))
    change(folder, AFTER, set_in("unnormalizer_processor", norm_map=modes))
    known = {name: {k: v.tolist() for k, v in values.items()} for name, values in statistics().items()}
    file = tmp_path / "stats.json"
    file.write_text(json.dumps({"observation.state": known["state"], "action": known["action"]}))
    _, robot = attach(folder, "pi0", statistics=str(file))
    assert (robot.state.kind, robot.action.kind) == ("min_max", "quantiles")


def test_tensors_of_steps_may_have_any_name(tmp_path: Path) -> None:
    """A pipeline's own name begins it in lerobot. An export has the file, and a link out of the folder is refused."""
    folder, files = lerobot(tmp_path / "folder", "pi0"), list[Path]()
    for name, step in ((BEFORE, "normalizer_processor"), (AFTER, "unnormalizer_processor")):
        files.append(folder / f"mine_{step}.safetensors")
        old = named(json.loads((folder / name).read_text())["steps"], step)["state_file"]
        change(folder, name, lambda steps: named(steps, step).update(state_file=files[-1].name))  # noqa: B023
        (folder / old).rename(files[-1])
    back = there_and_back(folder, "lerobot", attach(folder, "pi0"), "pi0")
    assert all((back / file.name).read_bytes() == file.read_bytes() for file in files)
    for file in files:
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    refused(folder, "pi0", str(files[0]), "outside")


def test_names_of_views_may_have_been_changed_before(tmp_path: Path) -> None:
    """The map from a data set's names; here `policy.cameras` does the same."""
    folder = lerobot(tmp_path / "folder", "pi0")
    names = {"observation.images.top": "observation.images.base_0_rgb"}
    change(folder, BEFORE, set_in("rename_observations_processor", rename_map=names))
    _, robot = attach(folder, "pi0")
    assert robot.cameras == tuple(camera.name for camera in simulator().cameras)
