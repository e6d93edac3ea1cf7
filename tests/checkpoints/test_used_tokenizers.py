"""Tokenizers that were saved after use, as lerobot stores them, with padding and truncation inside."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.actors import tokenizer
from embodied_rl.interfaces.policy import FlowBackbone, PolicyInput
from embodied_rl.interfaces.sim import Observation
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import lerobot, use_tokenizer
from tests.support.tiny_tokenizer import tiny_tokenizer
from tests.support.using_checkpoints import attach_any, smolvla_folder

PADS = {"pi0": 0, "pi05": 0, "smolvla": 2}
"""The id that lerobot pads each policy's prompts with."""


def folder_of(family: str, place: Path) -> Path:
    return smolvla_folder(place) if family == "smolvla" else lerobot(place / "folder", family)


def observed(text: str) -> Observation:
    images = {name: np.full((1, 48, 64, 3), 90, np.uint8) for name in ("front", "wrist")}
    return Observation(images, sizes.state()[:1], (text,))


@torch.no_grad()
def velocity(network: FlowBackbone, inputs: PolicyInput) -> Tensor:
    spec = network.spec
    x = torch.linspace(-1, 1, spec.horizon * spec.action_dim).reshape(1, spec.horizon, spec.action_dim)
    return network.velocity(x, torch.tensor([0.6]), network.encode(inputs))[0]


@pytest.mark.parametrize("family", PADS)
def test_a_tokenizer_that_was_used_gives_the_same_actions(family: str, tmp_path: Path) -> None:
    """Pads are no words: neither the tokens nor what the network makes of them change."""
    folder = folder_of(family, tmp_path)
    network, robot = attach_any(folder, family)
    expected = robot.inputs(observed("pick up"), network)
    use_tokenizer(folder / "tokenizer/tokenizer.json", length=robot.token_length, pad=PADS[family])
    network, robot = attach_any(folder, family)
    inputs = robot.inputs(observed("pick up"), network)
    assert torch.equal(inputs.tokens, expected.tokens)
    assert torch.equal(velocity(network, inputs), velocity(network, expected))


def test_a_prompt_is_never_cut_by_its_tokenizer(tmp_path: Path) -> None:
    """Where the tokenizer was cut to eight tokens, all 14 of the prompt are there, and too many are still an error."""
    file = tmp_path / "tokenizer.json"
    file.write_text(tiny_tokenizer().to_str())
    use_tokenizer(file, length=8, pad=2)
    ids = tokenizer.tokenize_pieces(["a b c d e f g"], file.read_text(), 14)
    assert ids.tolist() == tokenizer.tokenize_pieces(["a b c d e f g"], tiny_tokenizer().to_str(), 14).tolist()
    assert np.count_nonzero(ids) == 14
    with pytest.raises(ValueError, match="has 14 tokens; the policy reads at most 12"):
        tokenizer.tokenize_pieces(["a b c d e f g"], file.read_text(), 12)
