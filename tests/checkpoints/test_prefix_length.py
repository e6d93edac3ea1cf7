"""How many committed actions a policy is trained to continue: files of ours keep it, and folders of others' do, too."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import foreign
from embodied_rl.checkpoints.policy_file import load_actor, load_network, outline_network, save_actor, save_backbone
from embodied_rl.checkpoints.policy_format import make_header, read_metadata
from embodied_rl.commands import inspect
from embodied_rl_policies.pocket import Pocket
from tests.support import building_checkpoints as building
from tests.support import pi_sizes
from tests.support.using_checkpoints import Attached, attach, attach_any, exported, save, smolvla_folder


def rewrite_header(file: Path, value: str) -> None:
    """Store another length in a policy file's header."""
    with safe_open(file, "pt") as opened:
        header = dict(opened.metadata())
    text = header["embodied_rl"].replace('"prefix_trained_to": 3', f'"prefix_trained_to": {value}')
    save_file(held := load_file(file), file, make_header(json.loads(text), held))


@pytest.mark.thorough
def test_policy_files_keep_it(tmp_path: Path, make_actor) -> None:
    first, second = make_actor(), make_actor(seed=1)
    first.backbone.prefix_trained_to = 3
    config = asdict(first.backbone.config)
    save_actor(tmp_path / "actor.safetensors", first, "pocket", config)
    load_actor(tmp_path / "actor.safetensors", second)
    save_backbone(tmp_path / "base.safetensors", first.backbone, first.embodiment, "pocket", config)
    found = [read_metadata(tmp_path / name).prefix_trained_to for name in ("actor.safetensors", "base.safetensors")]
    assert (second.prefix_trained_to, *found) == (3, 3, 3)
    assert dict(inspect.describe_policy_file(read_metadata(tmp_path / "base.safetensors")))["prefix_trained_to"] == "3"

    def make(metadata) -> Pocket:
        robot = metadata.embodiment
        sizes = (4, 2, robot.cameras, robot.image_size, len(robot.vocabulary), robot.token_length)
        return Pocket(Pocket.Config(**config), *sizes, metadata.auxiliary_names)

    for load in (load_network, outline_network):
        assert load(tmp_path / "base.safetensors", make)[0].prefix_trained_to == 3


def test_files_that_do_not_say_so_are_not_trained_on_prefixes(tmp_path: Path, make_actor) -> None:
    actor, file = make_actor(), tmp_path / "base.safetensors"
    actor.backbone.prefix_trained_to = 3
    save_backbone(file, actor.backbone, actor.embodiment, "pocket", asdict(actor.backbone.config))
    with safe_open(file, "pt") as opened:
        header = dict(opened.metadata())
    assert '"prefix_trained_to": 3, ' in header["embodied_rl"]
    text = header["embodied_rl"].replace('"prefix_trained_to": 3, ', "")
    save_file(held := load_file(file), file, make_header(json.loads(text), held))
    assert read_metadata(file).prefix_trained_to == 0


@pytest.mark.parametrize("value", ["-1", "true", '"4"', "1.5", "null", "[1]"])
def test_a_length_that_is_none_is_refused(tmp_path: Path, make_actor, value: str) -> None:
    actor, file = make_actor(), tmp_path / "base.safetensors"
    actor.backbone.prefix_trained_to = 3
    save_backbone(file, actor.backbone, actor.embodiment, "pocket", asdict(actor.backbone.config))
    rewrite_header(file, value)
    with pytest.raises(CheckpointError, match=r"base\.safetensors has a damaged .* header: prefix_trained_to"):
        read_metadata(file)


def make_folder(policy: str, form: str, place: Path) -> Path:
    """Another project's checkpoint, which knows nothing of prefixes."""
    if policy == "smolvla":
        return smolvla_folder(place)
    return (building.lerobot if form == "lerobot" else building.openpi)(place / "given", policy)


def read(folder: Path, policy: str, form: str) -> Attached:
    if form == "lerobot":
        return attach_any(folder, policy)
    tokenizer = building.tokenizer_files(folder.with_name(f"{folder.name}_tokenizer")) / "tokenizer.json"
    return attach(folder, policy, options={"horizon": pi_sizes.CHUNK}, tokenizer=str(tokenizer))


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "form"), [("pi0", "lerobot"), ("pi05", "openpi"), ("smolvla", "lerobot")])
def test_others_folders_keep_it(tmp_path: Path, policy: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There and back twice: a policy that is not trained on prefixes any more does not say that it is."""
    pytest.importorskip("transformers")
    network, robot = read(make_folder(policy, form, tmp_path), policy, form)
    assert network.prefix_trained_to == 0
    for turn, length in enumerate((2, 0)):
        network.prefix_trained_to = length
        folder = exported(save(tmp_path / f"{turn}.safetensors", policy, network, robot), form, tmp_path / str(turn))
        assert ("prefix_trained_to=2 (the weights' header keeps it" in capsys.readouterr().out) == bool(length)
        network, robot = read(folder, policy, form)
        assert network.prefix_trained_to == length


def test_a_damaged_header_of_others_is_refused() -> None:
    assert foreign.read_prefix_length({"format": "pt"}, "folder") == 0
    for text in ("-1", "two", "", "²", "9" * 10):
        with pytest.raises(CheckpointError, match="folder is damaged"):
            foreign.read_prefix_length({foreign.PREFIX_KEY: text}, "folder")
