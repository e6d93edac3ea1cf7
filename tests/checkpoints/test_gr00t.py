"""Folders of GR00T N1.7, NVIDIA's and lerobot's: what is read, written back, and refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection
from embodied_rl.commands import inspect
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import InspectConfig
from tests.support import gr00t_sizes as sizes
from tests.support import small_gr00t
from tests.support.building_checkpoints import POISON, shard
from tests.support.refusals import refuses
from tests.support.using_checkpoints import assert_same_tensors, exported, save, small_files, stored

FORMS: dict[str, Callable[..., Path]] = {"gr00t": small_gr00t.nvidia, "lerobot": small_gr00t.lerobot}
LM_HEAD = "backbone.model.lm_head.weight"


def change(file: Path, edit: Callable[[Any], Any]) -> None:
    """Edit the content of a JSON file; an edit that returns nothing changed it in place."""
    content = json.loads(file.read_text())
    changed = edit(content)
    file.write_text(json.dumps(content if changed is None else changed, indent=2))


def back(folder: Path, form: str, executed: int | None = None) -> Path:
    """A folder into a policy file, and from that into a folder again."""
    network, robot = small_gr00t.attach(folder, executed=executed)
    file = save(folder.with_name(f"{folder.name}.safetensors"), "gr00t", network, robot)
    return exported(file, form, folder.with_name(f"{folder.name}_again"))


@pytest.mark.parametrize("form", FORMS)
def test_what_was_not_trained_comes_back_to_the_byte(tmp_path: Path, form: str) -> None:
    """Names, types and bits of all tensors, also of the norm and the output layer that are not applied."""
    folder = FORMS[form](tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value.bfloat16() if "backbone" in name else value for name, value in tensors.items()}
    start = "_groot_model." if form == "lerobot" else ""
    tensors[start + LM_HEAD] = tensors[f"{start}backbone.model.model.language_model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    out = back(folder, form)
    assert_same_tensors(stored(out / "model.safetensors"), stored(folder / "model.safetensors"))
    assert small_files(out) == small_files(folder)


def test_the_processors_files_may_have_a_folder_of_their_own_and_weights_several_files(tmp_path: Path) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    (folder / "processor").mkdir()
    for name in ("processor_config.json", "statistics.json", "embodiment_id.json"):
        (folder / name).rename(folder / "processor" / name)
    whole = stored(folder / "model.safetensors")
    shard(folder)
    out = back(folder, "gr00t")
    assert_same_tensors(stored(out / "model.safetensors"), whole)
    names = small_files(folder).keys() - {"model.safetensors.index.json"}
    assert {name: small_files(out)[name] for name in names} == {name: small_files(folder)[name] for name in names}


def test_what_was_trained_is_written_in_its_place(tmp_path: Path) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    network, robot = small_gr00t.attach(folder)
    with torch.no_grad():
        network.action_head.state_encoder.layer1.W[network.config.robot] += 1
    out = exported(save(tmp_path / "p.safetensors", "gr00t", network, robot), "gr00t", tmp_path / "out")
    found, before = (load_file(place / "model.safetensors") for place in (out, folder))
    changed = "action_head.state_encoder.layer1.W"
    for name, value in before.items():
        assert torch.equal(found[name], value) == (name != changed), name
    rows = (found[changed] != before[changed]).any(dim=(1, 2))
    assert rows.tolist() == [robot_number == 2 for robot_number in range(sizes.MOST_ROBOTS)]


def test_other_statistics_are_written_for_this_robot_alone(tmp_path: Path) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    names = {"observation.state": 6, "action": 4}
    entries = {name: {"q01": [-2.0] * size, "q99": [4.0] * size} for name, size in names.items()}
    (tmp_path / "stats.json").write_text(json.dumps(entries))
    network, robot = small_gr00t.attach(folder, statistics=str(tmp_path / "stats.json"))
    assert robot.state.center == (1.0,) * 6 and robot.action.scale == (3.0,) * 4
    out = exported(save(tmp_path / "p.safetensors", "gr00t", network, robot), "gr00t", tmp_path / "out")
    before, after = (json.loads((place / "statistics.json").read_text()) for place in (folder, out))
    assert after[sizes.OTHER_TAG] == before[sizes.OTHER_TAG]
    assert after[sizes.TAG]["state"]["arm"]["q01"] == [-2.0, -2.0]
    assert after[sizes.TAG]["state"]["arm"]["min"] == before[sizes.TAG]["state"]["arm"]["min"]
    again = small_gr00t.attach(out)[1]
    assert (again.state, again.action) == (robot.state, robot.action)


def test_entries_without_spread_are_0_and_stay_where_they_are(tmp_path: Path) -> None:
    """As in Isaac-GR00T: such a state says nothing, and such an action has its only value."""
    folder = small_gr00t.nvidia(tmp_path / "folder")

    def flatten(known: dict[str, Any]) -> None:
        for kind, group in (("state", "y"), ("action", "x")):
            known[sizes.TAG][kind][group].update(q01=[0.25], q99=[0.25])

    change(folder / "statistics.json", flatten)
    network, robot = small_gr00t.attach(folder)
    assert robot.inputs(small_gr00t.observation(), network).state[:, 1].abs().max() <= 1e-6
    actions = robot.all_actions(small_gr00t.noise(), sizes.state())[..., 0]
    assert abs(actions - 0.25).max() <= 1.1e-5


def test_numbers_of_steps_and_of_actions_are_the_runs(tmp_path: Path) -> None:
    for form, key, value in (("gr00t", "num_inference_timesteps", 4), ("lerobot", "n_action_steps", 2)):
        folder = FORMS[form](tmp_path / form, **({"num_inference_timesteps": 10} if form == "gr00t" else {}))
        out = back(folder, form, executed=2)
        assert json.loads((out / "config.json").read_text())[key] == value


@pytest.mark.parametrize("native", [True, False])
def test_lerobots_folder_is_the_same_policy(tmp_path: Path, native: bool) -> None:
    """As the NVIDIA folder it was made from, whichever way its statistics are stored."""
    (ours, robot), (theirs, other) = (
        small_gr00t.attach(small_gr00t.nvidia(tmp_path / "nvidia")),
        small_gr00t.attach(small_gr00t.lerobot(tmp_path / "lerobot", native=native)),
    )
    pooled = [
        network.encode(body.inputs(small_gr00t.observation(), network)).pooled
        for network, body in ((ours, robot), (theirs, other))
    ]
    torch.testing.assert_close(*pooled, rtol=0, atol=1e-6)
    assert other.executed == 3 and other.gripper == ("one_zero" if native else "same")
    chunk = small_gr00t.noise()
    plain = torch.from_numpy(robot.all_actions(chunk, sizes.state()))
    found = torch.from_numpy(other.all_actions(chunk, sizes.state()))
    if native:  # lerobot decodes LIBERO's gripper, of which the simulator takes the sign
        plain[..., -1] = 1 - 2 * plain[..., -1]
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("native", "gripper", "noted"),
    [(True, "same", False), (True, "one_zero_binary", True), (False, "same", False), (False, "one_zero", True)],
)
def test_an_export_notes_a_gripper_that_the_kept_files_do_not_have(
    tmp_path: Path, native: bool, gripper: Any, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that lerobot decodes for LIBERO have its convention, and an import of the export finds it again."""
    folder = small_gr00t.lerobot(tmp_path / "folder", native=native)
    network, robot = small_gr00t.attach(folder, gripper=gripper)
    out = exported(save(tmp_path / "policy.safetensors", "gr00t", network, robot), "lerobot", tmp_path / "out")
    assert (f"policy.gripper={robot.gripper}" in capsys.readouterr().out) == noted
    assert (small_gr00t.attach(out)[1].gripper != robot.gripper) == noted


@pytest.mark.parametrize("form", FORMS)
def test_inspect_describes_a_folder(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FORMS[form](tmp_path / "folder")
    inspect.run(InspectConfig(checkpoint=str(folder)))
    said = " ".join(capsys.readouterr().out.split())
    assert "policy gr00t" in said and "does not say policy." in said and "the tokenizer; policy.tokenizer=" in said
    assert form == "lerobot" or "inspect: embodiment=<tag>, of libero_sim, new_embodiment" in said


@pytest.mark.parametrize("form", FORMS)
def test_inspect_takes_the_robot(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FORMS[form](tmp_path / "folder")
    inspect.run(InspectConfig(str(folder), embodiment="libero_sim"))
    said = " ".join(capsys.readouterr().out.split())
    assert "embodiment=<tag>" not in said and "statistics of the action" not in said and "executed" in said
    with refuses("embodiment-unknown", "elsewhere"):
        inspect.run(InspectConfig(str(folder), embodiment="elsewhere"))
    with refuses("key-unused", "embodiment"):
        inspect.run(InspectConfig(str(tmp_path / "policy.safetensors"), embodiment="libero_sim"))


def attach(folder: Path, options: dict[str, Any] | None = None, **node: Any) -> None:
    small_gr00t.attach(folder, options, **node)


def without_tag(folder: Path) -> None:
    told = {key: value for key, value in small_gr00t.TOLD.items() if key != "embodiment"}
    node = small_gr00t.node(folder)
    build.build_backbone(type(node)("gr00t", checkpoint=node.checkpoint, tokenizer=node.tokenizer, options=told),
                         small_gr00t.simulator())  # fmt: skip


def edit_robot(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    name = "processor_config.json"
    change(folder / name, lambda content: edit(content["processor_kwargs"]["modality_configs"][sizes.TAG]) and None)


def edit_processor(folder: Path, **changes: Any) -> None:
    change(folder / "processor_config.json", lambda content: content["processor_kwargs"].update(changes))


RELATIVE = {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
NEEDED = "interleave_self_attention"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no processor": (lambda f: (f / "processor_config.json").unlink(), "processor_config.json is missing"),
    "no statistics": (lambda f: (f / "statistics.json").unlink(), "no modality configuration with statistics"),
    "no group": (
        lambda f: change(f / "statistics.json", lambda all_: all_[sizes.TAG]["state"].pop("arm") and None),
        "state.arm has no numbers 'q01'",
    ),
    "not finite": (
        lambda f: change(f / "statistics.json", lambda all_: all_[sizes.TAG]["state"]["arm"].update(q01=[1, None])),
        "state.arm",
    ),
    "no number": (lambda f: (f / "embodiment_id.json").unlink(), "policy.robot"),
    "number too high": (
        lambda f: change(f / "embodiment_id.json", lambda all_: all_.update({sizes.TAG: 4})),
        "policy.robot=4 must be below",
    ),
    "cut off": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]),
        "is damaged",
    ),
    "pickle": (
        lambda f: [(f / "model.safetensors").unlink(), (f / "pytorch_model.bin").write_bytes(POISON)], "is a pickle",
    ),
    "damaged": (lambda f: (f / "processor_config.json").write_text("{"), "processor_config.json"),
    "no mapping": (
        lambda f: (f / "processor_config.json").write_text('{"processor_kwargs": []}'), "should be a mapping",
    ),
    "unknown key": (
        lambda f: change(f / "config.json", lambda all_: all_.update(wheels=4)), "has the key 'wheels'",
    ),
    "unknown processor key": (lambda f: edit_processor(f, wheels=4), "has the key 'wheels'"),
    "history": (
        lambda f: edit_robot(f, lambda robot: robot["video"].update(delta_indices=[-1, 0])), "video.delta_indices",
    ),
    "state history": (
        lambda f: change(f / "config.json", lambda all_: all_.update(state_history_length=2)),
        "state_history_length=2 changes the policy's actions",
    ),
    "relative": (
        lambda f: [edit_processor(f, use_relative_action=True),
                   edit_robot(f, lambda robot: robot["action"].update(action_configs=[RELATIVE] * 3))],
        "relative to the state",
    ),
    "tactile": (lambda f: edit_processor(f, use_tactile=True), "use_tactile=true changes"),
    "other layers": (
        lambda f: change(f / "config.json", lambda all_: all_["diffusion_model_cfg"].update(norm_type="layer_norm")),
        'norm_type="layer_norm"',
    ),
    "default of layers": (
        lambda f: change(f / "config.json", lambda all_: all_["diffusion_model_cfg"].pop(NEEDED) and None),
        "lacks 'interleave_self_attention'",
    ),
    "selected layer": (
        lambda f: change(f / "config.json", lambda all_: all_.update(select_layer=2)), "select_layer",
    ),
    "mixed means": (
        lambda f: edit_robot(f, lambda robot: robot["action"].update(mean_std_embedding_keys=["x"])), "by means",
    ),
    "pictures of no size": (
        lambda f: edit_processor(f, use_albumentations=False, image_target_size=None), "image_target_size",
    ),
    "version": (
        lambda f: change(f / "config.json", lambda all_: all_.update(model_type="Gr00tN1d6", architectures=None)),
        "holds GR00T N1.6, which is not supported yet",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_folder_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    spoil, said = BAD[fault]
    spoil(folder)
    with pytest.raises(UserError) as caught:
        attach(folder)
    assert said in str(caught.value), str(caught.value)


def edit_step(folder: Path, name: str, **changes: Any) -> None:
    def edit(content: dict[str, Any]) -> None:
        for step in content["steps"]:
            if step["registry_name"].startswith(name):
                step["config"].update(changes)

    for side in ("pre", "post"):
        change(folder / f"policy_{side}processor.json", edit)


STATISTICS = "policy_preprocessor_step_2_pack.safetensors"
OLD_STEP = {"registry_name": "groot_eagle_encode_v3", "config": {}}
BAD_LEROBOT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no steps": (lambda f: (f / "policy_preprocessor.json").unlink(), "policy_preprocessor.json is missing"),
    "no statistics": (
        lambda f: (f / STATISTICS).unlink(), "names no file of statistics",
    ),
    "no maximum": (
        lambda f: save_file({"observation.state.min": torch.zeros(6)}, f / STATISTICS),
        "has no 'observation.state.max'",
    ),
    "statistics cut off": (
        lambda f: (f / STATISTICS).write_bytes(b"1234"), "is damaged",
    ),
    "other robot": (lambda f: edit_step(f, "groot_n1_7_pack", embodiment_tag="xdof"), "is for 'xdof' alone"),
    "unknown step": (
        lambda f: change(f / "policy_preprocessor.json",
                         lambda all_: all_["steps"].insert(0, {"registry_name": "dream", "config": {}})),
        "the step 'dream'",
    ),
    "unknown setting": (lambda f: edit_step(f, "groot_n1_7_vlm", sharpen=True), "has the key 'sharpen'"),
    "relative": (lambda f: edit_step(f, "groot_n1_7_action", use_relative_action=True), "use_relative_action=true"),
    "wrong type": (lambda f: edit_step(f, "groot_n1_7_pack", action_horizon="7"), "whole number"),
    "N1.5": (
        lambda f: change(f / "policy_preprocessor.json",
                         lambda all_: all_["steps"].insert(2, OLD_STEP)),
        "holds lerobot's GR00T N1.5",
    ),
    "relative of lerobot": (
        lambda f: change(f / "config.json", lambda all_: all_.update(use_relative_actions=True)),
        "use_relative_actions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_LEROBOT)
def test_a_bad_folder_of_lerobots_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    folder = small_gr00t.lerobot(tmp_path / "folder")
    spoil, said = BAD_LEROBOT[fault]
    spoil(folder)
    with pytest.raises(UserError) as caught:
        attach(folder)
    assert said in str(caught.value), str(caught.value)


@pytest.mark.parametrize(("options", "node", "said"), [
    ({"embodiment": "libero"}, {}, "policy.embodiment=libero: "),
    ({"layers": 5}, {}, "has policy.layers=4, not 5"),
    ({"horizon": 9}, {}, "has policy.horizon=7, not 9"),
    ({"expert_heads": 7}, {}, "policy.expert_width=30 must be a multiple of policy.expert_heads=7"),
    ({"deepstack": [0]}, {}, "unknown: backbone.model.model.visual.deepstack_merger_list.1"),
    ({"picture_start": 6}, {}, "has 4 tokens for"),
    ({}, {"tokenizer": None}, "has no tokenizer.json"),
    ({}, {"cameras": {"image": "front"}}, "the simulator has no such camera"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], node: dict[str, Any], said: str
) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    with pytest.raises(UserError) as caught:
        attach(folder, options, **node)
    assert said in str(caught.value), str(caught.value)


def test_a_folder_of_several_robots_needs_a_choice(tmp_path: Path) -> None:
    folder = small_gr00t.nvidia(tmp_path / "folder")
    with pytest.raises(UserError, match=r"choose one with policy\.embodiment=<tag>, .*of libero_sim, new_embodiment"):
        without_tag(folder)
    change(folder / "statistics.json", lambda all_: all_.pop(sizes.OTHER_TAG) and None)
    without_tag(folder)


def test_no_more_actions_are_executed_than_the_data_had(tmp_path: Path) -> None:
    """The network predicts more, which nothing has trained."""
    folder = small_gr00t.nvidia(tmp_path / "folder")
    node = small_gr00t.node(folder, executed=sizes.TRAINED + 1)
    network, robot = build.build_backbone(node, small_gr00t.simulator())
    assert network.spec.horizon > sizes.TRAINED
    file = save(tmp_path / "p.safetensors", "gr00t", network, robot)
    from embodied_rl.assembly.policy_factory import load_deployed

    with pytest.raises(UserError, match=r"policy\.executed=6 exceeds the 5 actions"):
        load_deployed(str(file))


def test_the_other_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    network, robot = small_gr00t.attach(small_gr00t.nvidia(tmp_path / "folder"))
    file = save(tmp_path / "p.safetensors", "gr00t", network, robot)
    for form in ("lerobot", "openpi", "peft"):
        with refuses("format-does-not-support-policy", form):
            exported(file, form, tmp_path / form)


def test_detection_prefers_neither_openpi_nor_lerobot(tmp_path: Path) -> None:
    assert detection.detect_format(small_gr00t.nvidia(tmp_path / "nvidia")) == "gr00t"
    assert detection.detect_format(small_gr00t.lerobot(tmp_path / "lerobot")) == "lerobot"
