"""The deployed policy's chunk, alone and after committed actions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.mathematics.flow.continuation import PlannedActions, replace_sample
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.refusals import refuses

HORIZON, EXECUTED, ENTRIES = 4, 2, 3


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_infer_equals_act_without_exploration(make_actor, observe, keys, sampler: str, frozen: bool) -> None:
    actor, observation = make_actor(sampler, "privileged", freeze_perception=frozen), observe(7)
    found = actor.infer(observation, keys(7))
    assert found.dtype == np.float32 and found.shape == (7, EXECUTED, ENTRIES)
    assert np.array_equal(found, actor.act(observation, keys(7), explore=False).actions)


def test_without_keys_it_starts_at_the_mean_of_the_noise(make_actor, observe, embodiment) -> None:
    actor, observation = make_actor(), observe(5)
    with torch.no_grad():
        context = actor.backbone.encode(embodiment.inputs(observation, actor.backbone))
        x = ode_sample(lambda x, t: actor.backbone.velocity(x, t, context), torch.zeros(5, HORIZON, 4), 3)
    assert np.array_equal(actor.infer(observation), embodiment.actions(x, observation.state))


def actions(rows: int, length: int) -> np.ndarray:
    """Within the robot's limits."""
    low, high = np.array([-0.5, -2.0, 0.0]), np.array([0.5, 1.0, 0.1])
    return np.random.default_rng(1).uniform(low, high, (rows, length, ENTRIES)).astype(np.float32)


@pytest.mark.parametrize("strategy", ["prefix", "replacement", "guided"])
def test_rows_without_committed_actions_are_the_plain_policy(make_actor, observe, keys, strategy: str) -> None:
    """To the bit, but for "prefix", whose network is asked in another form as soon as one row has a prefix."""
    actor, observation, prefix = make_actor(), observe(6), actions(6, 2)
    actor.backbone.prefix_trained_to = 2
    plain = actor.infer(observation, keys(6))
    some = actor.infer(observation, keys(6), prefix, np.array([0, 1, 2, 0, 1, 2]), strategy=strategy)
    np.testing.assert_allclose(some[[0, 3]], plain[[0, 3]], atol=1e-6)
    assert np.array_equal(some[[0, 3]], plain[[0, 3]]) or strategy == "prefix"
    assert np.array_equal(some[[1, 4], 0], prefix[[1, 4], 0]) and np.array_equal(some[[2, 5]], prefix[[2, 5]])
    assert not np.allclose(some[[1, 4], 1], prefix[[1, 4], 1], atol=1e-3)


@pytest.mark.parametrize(
    "prefix, committed, code, named",
    [
        (np.zeros((2, 1, 3)), None, "prefix-shape-mismatch", "(2, 1, 3)"),
        (np.zeros((3, 5, 3)), None, "prefix-shape-mismatch", "at most 4"),
        (np.zeros((3, 1, 2)), None, "prefix-shape-mismatch", "(3, 1, 2)"),
        (np.zeros((3, 3)), None, "prefix-shape-mismatch", "(3, 3)"),
        (np.zeros((3, 1, 3)), np.array([0, 1]), "prefix-shape-mismatch", "committed"),
        (np.zeros((3, 1, 3)), np.array([0, 1, 2]), "prefix-shape-mismatch", "0 to 1"),
        (np.zeros((3, 1, 3)), np.array([0, -1, 1]), "prefix-shape-mismatch", "committed"),
        (np.full((3, 1, 3), np.nan), None, "not-finite", "prefix"),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused(
    make_actor, observe, keys, prefix: Any, committed: Any, code: str, named: str
) -> None:
    with refuses(code, named):
        make_actor().infer(observe(3), keys(3), prefix, committed)


def test_an_actor_that_cannot_continue_a_prefix_refuses_it(keys) -> None:
    simulator = FakeSimulator(2)
    actor, observation = RowwiseFakeActor(simulator.spec, executed=1), simulator.reset([None] * 2)
    assert np.array_equal(
        actor.infer(replace(observation, privileged=None), keys(2)),
        actor.act(observation, keys(2), explore=False).actions,
    )
    with pytest.raises(UserError, match="cannot continue"):
        actor.infer(observation, keys(2), np.zeros((2, 1, 2), np.float32))


def test_replacement_is_the_textbook_s() -> None:
    """At each step the estimate of x₀ has its known entries replaced, and the flow goes towards the result."""
    torch.manual_seed(0)
    matrix = torch.randn(6, 6) / 3

    def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (x.flatten(1) @ matrix * t[:, None]).view_as(x), x

    start, known = torch.randn(5, 3, 2), torch.randn(5, 3, 2)
    mask = torch.rand(5, 3, 2) < 0.4
    steps, x = 4, start.double()
    for k in range(steps):
        t = 1 - k / steps
        v = (x.flatten(1) @ matrix.double() * t).view_as(x)
        estimate = torch.where(mask, known.double(), x - t * v)
        x = x - (x - estimate) / t / steps
    found = replace_sample(velocity, start, steps, PlannedActions(known, mask.float()))
    assert torch.allclose(found.double(), x, atol=1e-5) and torch.equal(found[mask], known[mask])
