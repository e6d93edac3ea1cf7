"""Each flow policy continues committed actions: they come back to the bit, and shape what follows."""

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from tests.support.flow_networks import NAMES, build, build_actor

ROWS, LENGTH = 3, 2
COUNTS = np.array([2, 0, 1])
STRATEGIES = ("prefix", "replacement", "guided")


def make_sampler(kind: str, name: str) -> Sampler:
    if kind != "noise":
        return FlowSDE(3, 0.5, layers=kind)
    spec = build(name).spec
    return FlowNoise(3, 0.05, 0.3, spec.feature_dim, spec.action_dim)


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


@pytest.mark.parametrize("name", NAMES)
def test_without_committed_actions_results_equal_the_plain_sampler_bit_for_bit(name: str) -> None:
    actor, observation = build_actor(name, FlowSDE(3, 0.5))
    given, none = np.zeros((ROWS, LENGTH, 3), np.float32), np.zeros(ROWS, np.int64)
    plain = actor.infer(observation, keys(), whole=True)
    for strategy in STRATEGIES:
        found = actor.infer(observation, keys(), given, none, whole=True, strategy=strategy)
        assert np.array_equal(found, plain), strategy


@pytest.mark.parametrize("kind", ["hybrid", "full", "noise"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_ratio_is_one(name: str, kind: str) -> None:
    actor, observation = build_actor(name, make_sampler(kind, name))
    actor.delay = LENGTH
    given = actions(actor.embodiment.action_low, actor.embodiment.action_high)
    decision = actor.act(observation, keys(), True, given, COUNTS)
    again = actor.evaluate(decision.trace)
    assert torch.equal((again.log_prob - decision.log_prob).exp(), torch.ones_like(decision.log_prob))
    assert decision.log_prob.abs().sum() > 0
    again.log_prob.sum().backward()
    learned = [p.grad for p in actor.backbone.parameters() if p.grad is not None]
    assert learned and all(gradient.isfinite().all() for gradient in learned)
