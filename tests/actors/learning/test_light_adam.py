"""Our Adam is PyTorch's, and does not load a compiler."""

import subprocess
import sys

import pytest
import torch

from embodied_rl.actors.learning.optimiser import LightAdam

SCRIPT = """
import sys
import torch
from embodied_rl.actors.learning.optimiser import LightAdam
weight = torch.nn.Parameter(torch.ones(3))
adam = LightAdam([{"params": [weight], "name": "all", "lr": 0.1}], betas=(0.9, 0.95), eps=1e-8)
weight.sum().backward()
adam.step()
adam.zero_grad()
adam.load_state_dict(adam.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def test_its_steps_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 3)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    settings = {"betas": (0.9, 0.95), "eps": 1e-8}
    kinds = (LightAdam, torch.optim.Adam)
    adams = [kind([{"params": [w], "lr": 0.01}], **settings) for kind, w in zip(kinds, weights, strict=True)]
    for _ in range(5):
        gradient = torch.randn(4, 3)
        for adam, weight in zip(adams, weights, strict=True):
            adam.zero_grad()
            (weight * gradient).sum().backward()
            adam.step()
        assert torch.equal(*weights)
    assert not torch.equal(weights[0], start)
    ours, theirs = (adam.state_dict()["state"][0] for adam in adams)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.thorough
@pytest.mark.process
def test_it_loads_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=False, timeout=200)
    assert done.returncode == 0
