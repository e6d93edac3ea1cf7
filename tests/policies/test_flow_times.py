"""A flow time for each action: an action at time 0 is given, and the others are denoised beside it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import Context, FlowBackbone
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.sampler import FlowSDE
from embodied_rl.testing.policy_contract import check_backbone, make_random_inputs
from tests.support.flow_networks import NAMES, VOCABULARY, build, build_actor

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def prepare(name: str) -> tuple[FlowBackbone, Tensor, Tensor, Context]:
    """A network, noise [3, H, D], a time for each of three rows, and the context of random inputs."""
    network = build(name)
    noise = torch.randn(3, network.spec.horizon, network.spec.action_dim, generator=torch.Generator().manual_seed(1))
    context = network.encode(make_random_inputs(network, VOCABULARY[name]))
    return network, noise, torch.tensor([1.0, 0.55, 0.1]), context


@pytest.mark.parametrize("name", NAMES)
def test_networks_that_read_the_time_keep_the_contract(name: str) -> None:
    check_backbone(lambda: build(name), vocabulary=VOCABULARY[name])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_rows_with_other_times_do_not_disturb_each_other(name: str) -> None:
    network, noise, t, context = prepare(name)
    own = t[:, None].repeat(1, network.spec.horizon)
    own[1, :2] = 0
    plain, mixed = (network.velocity(noise, times, context)[0] for times in (t, own))
    torch.testing.assert_close(mixed[[0, 2]], plain[[0, 2]], **CLOSE)
    alone = network.velocity(noise[[1]], own[[1]], context.select(torch.tensor([1])))[0]
    torch.testing.assert_close(mixed[[1]], alone, **CLOSE)
    assert not torch.allclose(mixed[1], plain[1], **CLOSE)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gr00t"])
def test_each_action_depends_on_its_own_flow_time(name: str) -> None:
    """The velocity of the action has a slope in its own time, for every action alike; GR00T rounds times down."""
    network, noise, t, context = prepare(name)
    own = t[:, None].repeat(1, network.spec.horizon).requires_grad_()
    velocity, _ = network.velocity(noise, own, context)
    for action in range(network.spec.horizon):
        (slope,) = torch.autograd.grad(velocity[:, action].square().sum(), own, retain_graph=True)
        assert (slope[:, action] != 0).all(), f"action {action}"


ROWS, LENGTH = 3, 2
COUNTS = np.array([2, 0, 1])
STRATEGIES = ("prefix", "replacement", "guided")


def keys() -> NoiseKeys:
    return NoiseKeys(3, np.arange(ROWS), np.zeros(ROWS, np.int64))


def actions(low: tuple[float, ...], high: tuple[float, ...]) -> np.ndarray:
    return np.random.default_rng(1).uniform(low, high, (ROWS, LENGTH, len(low))).astype(np.float32)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_committed_actions_are_returned_bit_for_bit(name: str, strategy: str) -> None:
    actor, observation = build_actor(name, FlowSDE(3, 0.5))
    given = actions(actor.embodiment.action_low, actor.embodiment.action_high)
    plain = actor.infer(observation, keys(), whole=True)
    chunk = actor.infer(observation, keys(), given, COUNTS, whole=True, strategy=strategy)
    held = np.arange(LENGTH) < COUNTS[:, None]
    assert chunk.shape == (ROWS, actor.backbone.spec.horizon, 3)
    assert np.array_equal(chunk[:, :LENGTH][held], given[held])
    if strategy == "prefix":
        np.testing.assert_allclose(chunk[1], plain[1], atol=1e-5)
    else:
        assert np.array_equal(chunk[1], plain[1]), "a row without a prefix is the plain sampler's, to the bit"
    assert np.abs(chunk[[0, 2], LENGTH:] - plain[[0, 2], LENGTH:]).max(axis=(1, 2)).min() > 1e-5
