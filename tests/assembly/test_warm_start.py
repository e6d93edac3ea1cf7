"""Chunks longer than the checkpoint's: new rows, unchanged rows, and refused sizes."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.actors.kinds import deploy_actor
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly.build import build_backbone, find_sizes, load_backbone, outline_backbone
from embodied_rl.assembly.networks import make_backbone
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.schema import PolicyNode
from embodied_rl_policies.pocket import Pocket
from tests.support.pocket_actors import SMALL, embodiment, observe, simulator_spec

__all__ = ["embodiment", "observe", "simulator_spec"]


@pytest.fixture
def node(tmp_path, embodiment) -> PolicyNode:
    """A file with chunks of four actions, to be made seven."""
    torch.manual_seed(0)
    network, path = make_backbone(Pocket, SMALL, embodiment, ()), tmp_path / "small.safetensors"
    save_backbone(path, network, embodiment, "pocket", thaw_config(SMALL))
    return PolicyNode("pocket", checkpoint=str(path), options={"horizon": 7})


def test_only_action_positions_grow(node, simulator_spec, caplog) -> None:
    small, before = load_backbone(Path(node.checkpoint))
    with caplog.at_level(logging.WARNING):
        large, embodiment = build_backbone(node, simulator_spec)
    assert large.spec == replace(small.spec, horizon=7) and large.config == replace(SMALL, horizon=7)
    assert embodiment == before and find_sizes(node) == large.config
    old, new = small.state_dict(), large.state_dict()
    assert all(torch.equal(new[name], old[name]) for name in old if name != "action_positions")
    assert torch.equal(new["action_positions"][:4], old["action_positions"])
    added = new["action_positions"][4:] - old["action_positions"][3]
    assert added.shape == (3, 32) and 0.01 < added.std() < 0.03, "near the last one, and each elsewhere"
    assert "policy.horizon=7" in caplog.text and "made with 4" in caplog.text and "3 new entries" in caplog.text


def test_an_outline_grows_without_weights(node, simulator_spec) -> None:
    outline, _ = outline_backbone(node, simulator_spec)
    large, _ = build_backbone(node, simulator_spec)
    assert {name: value.shape for name, value in outline.state_dict().items()} == {
        name: value.shape for name, value in large.state_dict().items()
    }
    assert all(value.is_meta for value in outline.parameters())


def test_a_grown_network_acts(node, simulator_spec, observe) -> None:
    actor = deploy_actor(*build_backbone(replace(node, executed=7), simulator_spec), {"denoise_steps": 2})
    assert actor.infer(observe(2), NoiseKeys.none(2)).shape == (2, 7, 3)


@pytest.mark.parametrize(("options", "said"), [({"horizon": 3}, "horizon=4, not 3"), ({"width": 64}, "width=32")])
def test_other_sizes_are_refused(node, simulator_spec, options: dict[str, int], said: str) -> None:
    changed = replace(node, options=options)
    for read in (lambda: build_backbone(changed, simulator_spec), lambda: outline_backbone(changed, simulator_spec)):
        with pytest.raises(CheckpointError, match=said):
            read()
    with pytest.raises(CheckpointError, match=said):
        find_sizes(changed)


def test_same_length_changes_nothing(node, simulator_spec) -> None:
    same, _ = build_backbone(replace(node, options={"horizon": 4}), simulator_spec)
    small, _ = load_backbone(Path(node.checkpoint))
    assert all(torch.equal(value, small.state_dict()[name]) for name, value in same.state_dict().items())
