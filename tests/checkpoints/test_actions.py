"""From a folder through everything to a robot's actions: what lerobot's own policy and processors gave."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.flow_kind import make_sampler
from embodied_rl.assembly import build
from embodied_rl.checkpoints import fitting
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow import sampler
from embodied_rl.schema import PolicyNode, SamplerNode
from embodied_rl_policies.pi import network
from embodied_rl_policies.vlm import prepare_images
from tests.support import pi_inputs
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import FAMILIES, GOLDEN, OPTIONS, lerobot, simulator

ROWS = {"pi0": [2], "pi05": [0, 1, 2]}
"""openpi, which the prompts follow, writes underscores as spaces and strips; for π0, lerobot does neither."""


def observation(rows: list[int]) -> Observation:
    """Rows of lerobot's; a picture says in its colours of which camera and row it is, since sizes may not differ."""
    images = {}
    for index, camera in enumerate(sizes.CAMERAS):
        images[camera] = np.zeros((len(rows), 8, 8, 3), np.uint8)
        images[camera][..., 0], images[camera][..., 1] = index, np.array(rows)[:, None, None]
    return Observation(images, sizes.state()[rows], tuple(sizes.TASKS[row] for row in rows))


def taken(images: Tensor, size: int, centred: bool) -> Tensor:
    """What was recorded with, prepared as ever."""
    camera = list(sizes.CAMERAS)[int(images[0, 0, 0, 0])]
    return prepare_images(
        torch.from_numpy(sizes.taken_images(camera)[images[:, 0, 0, 1].numpy()]), size, centred=centred
    )


@pytest.mark.parametrize(("relative", "by_key"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("family", FAMILIES)
def test_actions_are_those_of_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, relative: bool, by_key: bool
) -> None:
    """Prompt, tokens, normalisation, network, four Euler steps, and the way back into the robot's units."""
    rows = ROWS[family]
    monkeypatch.setattr(network, "prepare_images", taken)
    monkeypatch.setattr(sampler, "as_normal", lambda words: pi_inputs.chunk("noise")[rows].flatten(1))
    told: dict[str, Any] = {"relative": relative, "action_names": sizes.ACTION_NAMES} if relative and not by_key else {}
    folder = lerobot(tmp_path / "folder", family, n_action_steps=sizes.CHUNK, **told)
    spec = simulator(tuple(sizes.CAMERAS), (8, 8))
    node = PolicyNode(family, checkpoint=str(folder), options=OPTIONS)
    node = replace(node, relative=spec.action_names[:4]) if by_key else node
    backbone, robot = build.build_backbone(node, spec)
    actor = FlowActor(backbone, make_sampler(SamplerNode(denoise_steps=sizes.STEPS), backbone), None, robot)
    seen, recorded = observation(rows), load_file(GOLDEN / f"{family}_lerobot.safetensors")
    inputs = robot.inputs(seen, backbone)
    assert torch.equal(inputs.tokens, (recorded["policy.tokens"] * recorded["policy.token_mask"])[rows])
    torch.testing.assert_close(inputs.state[:, : sizes.STATE_DIM], recorded["policy.state"][rows], rtol=0, atol=1e-5)
    moved = np.array([1, 1, 1, 1, 0], np.float32) * relative
    expected = recorded["policy.actions"][rows].numpy() + sizes.state()[rows, None, : sizes.ACTION_DIM] * moved
    keys = NoiseKeys(0, np.arange(len(rows)), np.zeros(len(rows), np.int64))
    np.testing.assert_allclose(actor.act(seen, keys, explore=False).actions, expected, rtol=0, atol=1e-5)


def test_names_that_cannot_be_relative() -> None:
    spec = simulator(tuple(sizes.CAMERAS), (8, 8))
    assert fitting.find_relative(spec, ()) == ()
    assert fitting.find_relative(spec, spec.action_names[1:2]) == (-1, 1, -1, -1, -1)
    with pytest.raises(ValueError, match=r"policy\.relative: the simulator has no action 'nothing'"):
        fitting.find_relative(spec, ("nothing",))
    with pytest.raises(ValueError, match="cannot be relative"):
        fitting.find_relative(replace(spec, state_names=("alone",)), spec.action_names[1:2])
