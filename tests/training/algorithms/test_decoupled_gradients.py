"""The gradient of decoupled PPO: by hand, by finite differences, and as the policy gradient that it estimates."""

from math import exp, log, pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.policy import Actor, Evaluation, Trace
from embodied_rl.training.algorithms.batch import Batch
from tests.support.experience import (
    Table,
    make_update,
    table_batch,
)

LEVELS = ["token", "action", "chunk"]
DOUBLE = torch.float64


def table_update(prox: Tensor, recorded: Tensor, now: Tensor, advantage: Tensor, **settings: Any) -> Tensor:
    """Gradient on log-probabilities [B, Hx, D'] that were `recorded`, `prox` when the update began, and are `now`."""
    actor = Table(*prox.shape)
    actor.version = 1
    update = make_update(actor, lr=0.0, **settings)
    batch = table_batch(prox, advantage)
    batch.log_prob, batch.version = recorded, torch.zeros(len(prox), dtype=torch.int64)
    batch, _ = update.proximal(batch)
    with torch.no_grad():
        actor.theta.copy_(now - prox)
    update.run([batch], 0)
    assert actor.theta.grad is not None
    return actor.theta.grad


@pytest.mark.parametrize(
    ("weight", "ratio", "advantage", "cap", "expected"),
    [
        (0.5, 1.1, 2.0, 2.0, -0.5 * 1.1 * 2),  # inside the region: -w u A
        (0.5, 1.1, -2.0, 2.0, 0.5 * 1.1 * 2),
        (1.8, 1.3, 1.0, 2.0, 0),  # beyond it, where A points
        (1.8, 1.3, -1.0, 2.0, 1.8 * 1.3),
        (1.8, 0.7, -1.0, 2.0, 0),
        (3.0, 1.1, 1.0, 2.0, -2.0 * 1.1),  # truncated
        (3.0, 1.1, 1.0, None, -3.0 * 1.1),
        (0.1, 1.0, 1.0, 2.0, -0.1),  # far from the one that decided, and not clipped: the region lies elsewhere
    ],
)
def test_gradients_by_hand(weight: float, ratio: float, advantage: float, cap: float | None, expected: float) -> None:
    prox = torch.full((1, 1, 1), -0.4)
    found = table_update(
        prox, prox - log(weight), prox + log(ratio), torch.tensor([advantage]), importance_cap=cap, level="chunk"
    )
    assert found.item() == pytest.approx(expected, abs=1e-5)


class Gaussian(Actor):
    """Independent normal entries of two actions around a linear function of the state, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(0.3 * torch.randn(3, 4, generator=generator, dtype=DOUBLE))
        self.log_std = nn.Parameter(torch.tensor([-0.3, 0.2], dtype=DOUBLE))

    def evaluate(self, trace: Trace) -> Evaluation:
        mean = (trace["state"] @ self.weight).view(-1, 2, 2)
        log_prob = torch.distributions.Normal(mean, self.log_std.exp()).log_prob(trace["action"])
        return Evaluation(log_prob, torch.zeros_like(log_prob), trace["state"].sum(dim=1))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"actor": [self.weight, self.log_std]}


def by_loops(parameters: np.ndarray, start: np.ndarray, batch: Batch, level: str, cap: float) -> float:
    """The decoupled loss, one unit after the other, without torch."""

    def log_density(flat: np.ndarray, row: int) -> np.ndarray:
        mean = (batch.trace["state"][row].numpy() @ flat[:12].reshape(3, 4)).reshape(2, 2)
        std = np.exp(flat[12:])
        return -(((batch.trace["action"][row].numpy() - mean) / std) ** 2) / 2 - np.log(std) - 0.5 * log(2 * pi)

    losses = []
    for row in batch.rows.tolist():
        assert batch.version is not None
        recorded = batch.log_prob[row].numpy()
        prox = log_density(start, row) if batch.version[row] == 0 else recorded
        now, steps = log_density(parameters, row), np.flatnonzero(batch.mask[row].numpy())
        units = {
            "token": [[(step, entry)] for step in steps for entry in range(2)],
            "action": [[(step, entry) for entry in range(2)] for step in steps],
            "chunk": [[(step, entry) for step in steps for entry in range(2)]],
        }[level]
        for unit in units:
            if unit:
                ratio = exp(sum(now[place] - prox[place] for place in unit))
                weight = min(exp(sum(prox[place] - recorded[place] for place in unit)), cap)
                advantage = float(batch.advantage[row])
                losses.append(-weight * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
    return sum(losses) / len(losses)


def gaussian_batch(actor: Gaussian, rows: int = 24) -> Batch:
    """Actions around the actor's, decided by version 0 with other densities; every fourth row by version 1 itself."""
    generator = torch.Generator().manual_seed(8)
    state = torch.randn(rows, 3, generator=generator, dtype=DOUBLE)
    trace = {"state": state, "action": torch.randn(rows, 2, 2, generator=generator, dtype=DOUBLE)}
    with torch.no_grad():
        present = actor.evaluate(trace).log_prob
    version = (torch.arange(rows) % 4 == 3).long()
    other = present + 0.3 * torch.randn(present.shape, generator=generator, dtype=DOUBLE)
    return Batch(
        trace,
        torch.where(version[:, None, None] == 1, present, other),
        torch.rand(rows, 2, generator=generator) < 0.7,
        torch.randn(rows, generator=generator, dtype=DOUBLE),
        torch.arange(rows)[torch.arange(rows) % 5 != 0],
        version=version,
    )


@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_is_that_of_finite_differences(level: str, micro_batch: int | None) -> None:
    """In the middle of an update, with clipped, truncated, masked and fresh entries."""
    actor = Gaussian()
    actor.version = 1
    batch = gaussian_batch(actor)
    update = make_update(actor, lr=0.0, level=level, importance_cap=1.3, micro_batch=micro_batch)
    start = torch.cat([p.detach().flatten() for p in actor.parameters()]).numpy().copy()
    decoupled, importance = update.proximal(batch)
    assert 0 < importance["importance_capped"] < 0.6
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel(), dtype=DOUBLE)).view_as(parameter))
    _, figures = update.run([decoupled], 0)
    assert 0 < figures["clip_share"] < 0.6
    at = torch.cat([p.detach().flatten() for p in actor.parameters()]).numpy()
    assert figures["policy_loss"] == pytest.approx(by_loops(at, start, batch, level, 1.3), rel=1e-5)
    found = torch.cat([p.grad.flatten() for p in actor.parameters() if p.grad is not None]).numpy()
    step = 1e-6 * np.eye(len(at))
    expected = [
        (by_loops(at + d, start, batch, level, 1.3) - by_loops(at - d, start, batch, level, 1.3)) / 2e-6 for d in step
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


class Choices(Actor):
    """In one of two contexts, one of three actions and then another of three; the second depends on the first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(2, 3, generator=generator, dtype=DOUBLE))
        self.second = nn.Parameter(torch.randn(2, 3, 3, generator=generator, dtype=DOUBLE))

    def evaluate(self, trace: Trace) -> Evaluation:
        context, one, two = trace["choice"].unbind(dim=1)
        first = self.first.log_softmax(-1)[context, one]
        second = self.second.log_softmax(-1)[context, one, two]
        log_prob = torch.stack([first, second], dim=1)[..., None]
        return Evaluation(log_prob, torch.zeros_like(log_prob), torch.zeros(len(log_prob)))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"actor": [self.first, self.second]}


def expected_gradient(behaviour: Choices, present: Choices, reward: Tensor, **settings: Any) -> list[Tensor]:
    """Of the update on data of `behaviour`: every choice once, its loss times the chance that it occurs in."""
    trace = {"choice": torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(3))}
    with torch.no_grad():
        log_prob = behaviour.evaluate(trace).log_prob
    rows = len(log_prob)
    advantage = reward.flatten() * log_prob.sum(dim=(1, 2)).exp() * rows / 2
    mask, version = torch.ones(rows, 2, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64)
    batch = Batch(trace, log_prob, mask, advantage, torch.arange(rows), version=version)
    update = make_update(present, lr=0.0, level="chunk", **settings)
    update.run([update.proximal(batch)[0]], 0)
    return [p.grad for p in (present.first, present.second) if p.grad is not None]


def exact_gradient(policy: Choices, reward: Tensor) -> list[Tensor]:
    """Of minus the expected reward, both contexts alike."""
    joint = policy.first.softmax(-1)[:, :, None] * policy.second.softmax(-1)
    return list(torch.autograd.grad(-(joint * reward).sum() / 2, [policy.first, policy.second]))


@pytest.mark.parametrize("versions", [1, 4])
def test_data_of_an_earlier_policy_give_the_policy_gradient_of_the_present_one(versions: int) -> None:
    """Exactly, where nothing is truncated: the expectation is a sum. Truncated, or with PPO's ratio, it is another."""
    behaviour, present = Choices(0), Choices(0)
    present.version = versions
    drift = Choices(1)
    with torch.no_grad():
        for parameter, direction in zip(present.parameters(), drift.parameters(), strict=True):
            parameter.add_(0.3 * versions * direction)
    reward = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    exact = exact_gradient(present, reward)
    for found, expected in zip(expected_gradient(behaviour, present, reward, importance_cap=None), exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for settings in ({"importance_cap": 1.0}, {"decoupled": False}):
        others = expected_gradient(behaviour, present, reward, **settings)
        assert max(float((a - b).abs().max()) for a, b in zip(others, exact, strict=True)) > 1e-2


def test_ratios_to_the_policy_that_decided_where_it_is_asked_for() -> None:
    """decoupled=false: plain PPO on stale data, clipped around the old policy."""
    found = table_update(
        torch.zeros(1, 1, 1),
        torch.full((1, 1, 1), -log(1.1)),
        torch.full((1, 1, 1), log(1.05)),
        torch.ones(1),
        decoupled=False,
    )
    assert found.item() == pytest.approx(-1.1 * 1.05, rel=1e-5)
