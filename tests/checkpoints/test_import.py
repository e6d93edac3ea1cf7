"""`embodied-rl import`: where the policy file goes, and the sizes of a network that its tensors do not tell."""

from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import check_config
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.commands.import_checkpoint import check_import
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import ImportConfig, PolicyNode, SimNode
from embodied_rl.schema.checks import validate_config
from tests.support.building_checkpoints import CAMERAS, lerobot, simulator
from tests.support.using_checkpoints import attach, save


def importing(folder: Path, out: object) -> ImportConfig:
    return ImportConfig(SimNode("tabletop"), PolicyNode("pi0", checkpoint=str(folder)), out=str(out))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("there.safetensors", r"there\.safetensors is there already; give another file, such as out=.*pi0_tabletop\.s"),
        ("folder.safetensors", r"folder\.safetensors is there already"),
        ("folder", r"out=.*folder should be the name of a policy file: its name ends in \.safetensors"),
    ],
)
def test_an_import_overwrites_nothing_and_says_what_to_give(tmp_path: Path, out: str, message: str) -> None:
    folder = lerobot(tmp_path / "pi0", "pi0")
    (tmp_path / "there.safetensors").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    config = importing(folder, tmp_path / out)
    validate_config(config)  # its message would be about folders
    with pytest.raises(UserError, match=message):
        check_import(config)


def test_a_delay_is_of_training(tmp_path: Path) -> None:
    config = importing(lerobot(tmp_path / "pi0", "pi0"), tmp_path / "new.safetensors")
    with pytest.raises(UserError, match=r"policy\.delay=2.*eval delay=2"):
        check_import(replace(config, policy=replace(config.policy, delay=2)))


@pytest.mark.parametrize("heads", [1, 2, 4, 32])
def test_vision_heads_are_checked_against_the_checkpoints_own_width(tmp_path: Path, heads: int) -> None:
    """Which is 32 here; 1152, the published one, is no multiple of 5."""
    folder = lerobot(tmp_path / "pi0", "pi0")
    node = PolicyNode("pi0", checkpoint=str(folder), options={"vision_heads": heads}, cameras=CAMERAS)
    network, _ = build.build_backbone(node, simulator())
    assert network.config.vision_heads == build.find_sizes(node).vision_heads == heads


@pytest.mark.parametrize(
    ("heads", "message"),
    [(5, "policy.vision_width=32 must be a multiple of policy.vision_heads=5"), ("many", "policy.vision_heads")],
)
def test_vision_heads_that_do_not_fit_are_refused(tmp_path: Path, heads: object, message: str) -> None:
    folder = lerobot(tmp_path / "pi0", "pi0")
    node = PolicyNode("pi0", checkpoint=str(folder), options={"vision_heads": heads}, cameras=CAMERAS)
    for build_from in (lambda: build.build_backbone(node, simulator()), lambda: build.find_sizes(node)):
        with pytest.raises(UserError) as caught:
            build_from()
        assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_key_that_a_policy_does_not_have_is_unknown_beside_a_checkpoint(tmp_path: Path, kind: str) -> None:
    folder = lerobot(tmp_path / "pi0", "pi0")
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(folder, "pi0"))
    node = PolicyNode("pi0", checkpoint=str(folder if kind == "folder" else file), options={"vision_head": 2})
    for build_from in (lambda: build.build_backbone(node, simulator()), lambda: build.find_sizes(node)):
        with pytest.raises(UserError, match=r"unknown key 'policy\.vision_head'.*policy\.vision_heads"):
            build_from()


@pytest.mark.parametrize(
    ("policy", "advice"),
    [("pi05", "set policy=pi05"), ("somebodys", "install the package of that policy")],
)
def test_a_policy_file_of_another_policy_says_what_works(tmp_path: Path, policy: str, advice: str) -> None:
    file = save(tmp_path / "policy.safetensors", "pi0", *attach(lerobot(tmp_path / "pi0", "pi0"), "pi0"))
    with pytest.raises(CheckpointError, match=rf"holds policy '{policy}', not 'pi0': {advice}"):
        check_config(file, replace(read_metadata(file), policy=policy), "pi0", {})
