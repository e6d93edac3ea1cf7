"""Decoupled PPO: gradients by hand, what is recomputed, and what must stay as it is without stale rows."""

from copy import deepcopy
from math import exp, log, pi
from typing import Any

import numpy as np
import pytest
import torch
from experience import (
    Table,
    changed,
    make_actor,
    make_rollout,
    make_update,
    on_ranks,
    split,
    table_batch,
    weights,
)
from test_grpo import make_grpo
from test_ppo import make_ppo, spoil
from torch import Tensor, nn

from embodied_rl.algorithms.batch import Batch, as_batch
from embodied_rl.interfaces.policy import Actor, Evaluation, Trace
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.collective import Ranks

LEVELS = ["token", "action", "chunk"]
DOUBLE = torch.float64


def moved(actor: Any, amount: float = 0.02) -> Any:
    """An actor one version later, whose network differs a little."""
    later = deepcopy(actor)
    later.version += 1
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator))
    return later


def stale_rollout(actor: Any, fresh: int = 0, **options: Any) -> tuple[Any, Rollout]:
    """An actor, and a rollout that the version before it decided but for so many last rows of decisions."""
    later, rollout = moved(actor), make_rollout(actor, **options)
    if fresh:
        newest = make_rollout(later, **options)
        names = [name for name in rollout.tensors() if name not in ("last_value", "valid", "terminated")]
        for name in names:
            rollout.tensors()[name][-fresh:] = newest.tensors()[name][-fresh:]
    return later, rollout


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
    update.run(batch, 0)
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


@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_covers_the_level_of_its_ratio(level: str) -> None:
    """log w of .3 and .1 in one action, -.2 and .5 in the other; every ratio counts alike."""
    log_weight = torch.tensor([[[0.3, 0.1], [-0.2, 0.5]]])
    found = table_update(torch.zeros(1, 2, 2), -log_weight, torch.zeros(1, 2, 2), torch.ones(1), level=level)
    by_level = {
        "token": [[exp(0.3), exp(0.1)], [exp(-0.2), exp(0.5)]],
        "action": [[exp(0.4)] * 2, [exp(0.3)] * 2],
        "chunk": [[2.0, 2.0]] * 2,  # e^.7 = 2.01 is truncated
    }
    count = {"token": 4, "action": 2, "chunk": 1}[level]
    torch.testing.assert_close(found[0], -torch.tensor(by_level[level]) / count)


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
    figures = update.run(decoupled, 0)
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
    update.run(update.proximal(batch)[0], 0)
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


def learn(learner: Any, rollout: Rollout, iterations: int = 2) -> list[dict[str, float]]:
    return [learner.update(rollout, iteration) for iteration in range(iterations)]


@pytest.mark.parametrize("method", ["ppo/hybrid/privileged", "ppo/noise/prefix", "grpo/hybrid/none"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_without_stale_rows_nothing_changes_to_the_bit(method: str, ranks: int) -> None:
    """Weights and figures, and how often the network is asked."""
    name, sampler, critic = method.split("/")
    actor = make_actor(sampler, critic)
    rollout = make_rollout(actor, decisions=5, num_envs=6, group_size=2)
    rollout.truncated[-1] = True
    parts = split(rollout, [slice(0, 4), slice(4, 6)]) if ranks == 2 else [rollout]

    def run(decoupled: bool, place: Ranks) -> tuple[Any, list[dict[str, float]], int]:
        copy, calls = deepcopy(actor), []
        evaluate = copy.evaluate
        copy.evaluate = lambda trace: (calls.append(1), evaluate(trace))[1]
        settings: dict[str, Any] = {"epochs": 2, "decoupled": decoupled, "minibatch": 8, "lr": 0.01}
        if name == "ppo":
            learner: Any = make_ppo(copy, place, value_clip=0.1, **settings)
        else:
            learner = make_grpo(copy, place, success_low=-9, success_high=9, **settings)
        return copy, learn(learner, parts[place.rank]), len(calls)

    found = [on_ranks(lambda place, flag=flag: run(flag, place), ranks) for flag in (True, False)]
    for (one, figures, calls), (other, others, other_calls) in zip(*found, strict=True):
        assert changed(one, weights(actor)) and not changed(one, weights(other))
        assert (figures, calls) == (others, other_calls)


@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_an_update_of_stale_data_starts_at_ratio_one(sampler: str) -> None:
    """Distances are those to the policy at the start; the loss is minus the mean of w A, w from the present network."""
    actor, rollout = stale_rollout(make_actor(sampler), decisions=6, fresh=2)
    batch = as_batch(rollout, advantage=torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        present = actor.evaluate(batch.trace).log_prob
    difference = torch.where(batch.mask[..., None], present - batch.log_prob, 0).sum(dim=-1)
    weight = torch.where((torch.arange(30) < 20)[:, None], difference.exp().clamp(max=1.05), 1.0)
    chosen = batch.mask.clone()
    chosen[~rollout.valid.flatten()] = False
    update = make_update(actor, importance_cap=1.05)
    decoupled, importance = update.proximal(batch)
    figures = update.run(decoupled, 0)
    assert figures["worst_ratio"] < 1e-4 and figures["clip_share"] == 0 and figures["kl"] < 1e-6
    assert figures["policy_loss"] == pytest.approx(-float((weight * batch.advantage[:, None])[chosen].mean()), abs=1e-5)
    assert importance["importance"] == pytest.approx(float(weight[chosen].mean()), rel=1e-4)
    assert importance["importance_capped"] == pytest.approx(float((weight[chosen] == 1.05).float().mean()))
    assert 0 < importance["importance_capped"] < 1


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_distances_are_those_to_the_policy_at_the_start(method: str) -> None:
    """In one epoch of one minibatch they are 0; with ratios to the one that decided they are not."""

    def figures(**settings: Any) -> dict[str, float]:
        actor, rollout = stale_rollout(make_actor(), decisions=4, num_envs=6, group_size=2)
        rollout.truncated[-1] = True
        settings |= {"epochs": 1, "minibatch": 10**6, "lr": 1e-4}
        if method == "ppo":
            return make_ppo(actor, **settings).update(rollout, 0)
        return make_grpo(actor, success_low=-9, success_high=9, **settings).update(rollout, 0)

    decoupled, plain = figures(), figures(decoupled=False)
    assert decoupled["worst_ratio"] < 1e-4 and decoupled["kl"] < 1e-6
    assert plain["worst_ratio"] > 1e-3 and plain["kl"] > 1e-5
    assert decoupled.keys() - plain.keys() == {"importance", "importance_capped"}
    unweighted = figures(importance_cap=1.0)["policy_loss"]
    assert unweighted != decoupled["policy_loss"]


@pytest.mark.parametrize(("micro_batch", "calls"), [(None, [8, 8, 2]), (5, [5, 5, 5, 3])])
def test_stale_rows_alone_are_evaluated_and_fresh_ones_stay_to_the_bit(micro_batch: Any, calls: list[int]) -> None:
    """Of 20 stale rows two are lost; no more at once than an update takes."""
    actor, rollout = stale_rollout(make_actor(), decisions=6, fresh=2)
    batch, sizes, evaluate = as_batch(rollout, torch.zeros(6, 5)), [], actor.evaluate
    actor.evaluate = lambda trace: (sizes.append(len(next(iter(trace.values())))), evaluate(trace))[1]
    decoupled, _ = make_update(actor, minibatch=8, micro_batch=micro_batch).proximal(batch)
    assert sizes == calls
    assert decoupled.weight is not None and not decoupled.weight.requires_grad
    stale = torch.zeros(30, dtype=torch.bool)
    stale[batch.rows] = batch.rows < 20
    assert torch.equal(decoupled.log_prob[~stale], batch.log_prob[~stale])
    assert (decoupled.weight[~stale] == 1).all()
    assert (decoupled.log_prob[stale] != batch.log_prob[stale]).any(dim=2).any(dim=1).all()


@pytest.mark.parametrize("sampler", ["hybrid", "noise"])
def test_where_the_policy_stood_still_it_is_ppo(sampler: str) -> None:
    """Earlier versions with the same weights: all importance weights are 1 but for the last digits."""
    actors = [make_actor(sampler), make_actor(sampler)]
    actors[1].version = 3
    rollout = make_rollout(actors[0])
    plain, stale = (make_ppo(actor, epochs=2, lr=1e-3).update(rollout, 0) for actor in actors)
    assert stale.pop("importance") == pytest.approx(1, abs=1e-4)
    assert stale.pop("importance_capped") == 0
    assert stale == pytest.approx(plain, rel=1e-2, abs=1e-4)
    found = weights(actors[1])
    for name, parameter in weights(actors[0]).items():
        torch.testing.assert_close(found[name], parameter, rtol=0, atol=4e-4, msg=name)


@pytest.mark.parametrize("critic", ["privileged", "prefix"])
@pytest.mark.parametrize("sampler", ["hybrid", "noise"])
def test_entries_that_do_not_count_change_no_bit_of_a_stale_update(sampler: str, critic: str) -> None:
    actor, rollout = stale_rollout(make_actor(sampler, critic), decisions=5, num_envs=6)
    other, figures = deepcopy(actor), []
    for learner, experience in ((actor, rollout), (other, spoil(rollout))):
        figures.append(learn(make_ppo(learner, epochs=2, value_clip=0.1), experience))
    assert "importance" in figures[0][0]
    assert figures[0] == figures[1]
    assert changed(other, weights(actor)) == set()


@pytest.mark.parametrize("critic", ["privileged", "prefix"])
def test_values_of_stale_rows_are_clipped_around_those_at_the_start(critic: str) -> None:
    actor, rollout = stale_rollout(make_actor(critic=critic), decisions=4, fresh=1)
    batch = as_batch(rollout, torch.zeros(4, 5))
    with torch.no_grad():
        present = actor.evaluate(batch.trace).value
    expected = torch.where(torch.arange(20) < 15, present, rollout.value.flatten())[batch.rows]
    assert (present - rollout.value.flatten())[batch.rows].abs().max() > 1e-3
    ppo, seen = make_ppo(actor, epochs=1, minibatch=10**6, value_clip=0.1), []
    errors = ppo._errors
    ppo._errors = lambda value, old, returns: (seen.append(old), errors(value, old, returns))[1]
    ppo.update(rollout, 0)
    found = ppo._replay[0][2] if critic == "privileged" else seen[0]
    torch.testing.assert_close(found.sort().values, expected.sort().values, rtol=1e-4, atol=1e-5)
    if critic == "privileged":
        drawn = torch.cat(seen)
        assert torch.isin(drawn, found).all()


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_ranks_agree_where_only_one_holds_stale_rows(method: str) -> None:
    """Figures of both are those of one process with all rows, and so are the gradients."""
    actor, rollout = stale_rollout(make_actor(critic="privileged"), decisions=4, num_envs=6, group_size=2)
    later = make_rollout(actor, decisions=4, num_envs=6, group_size=2)
    rollout.truncated[-1] = True
    for name, tensor in rollout.tensors().items():
        if name not in ("last_value", "valid", "terminated", "truncated"):
            tensor[:, 4:] = later.tensors()[name][:, 4:]
    settings: dict[str, Any] = {"epochs": 1, "minibatch": 10**6, "grad_clip": 1e9}

    def run(place: Ranks, mine: Rollout) -> tuple[dict[str, float], dict[str, Tensor]]:
        copy = deepcopy(actor)
        if method == "ppo":
            learner: Any = make_ppo(copy, place, critic_steps=0, **settings)
        else:
            learner = make_grpo(copy, place, success_low=-9, success_high=9, **settings)
        figures = learner.update(mine, 0)
        return figures, {name: p.grad for name, p in copy.named_parameters() if p.grad is not None}

    parts = split(rollout, [slice(0, 4), slice(4, 6)])
    figures, gradients = run(Ranks(), rollout)
    for mine, others in on_ranks(lambda place: run(place, parts[place.rank])):
        assert mine.keys() == figures.keys() and "importance" in mine
        for name in ("importance", "importance_capped"):
            assert mine[name] == pytest.approx(figures[name], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


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


def test_what_is_measured_for_memory_is_measured_before_stale_rows_are_evaluated() -> None:
    """Else the first evaluation would take all rows of a minibatch at once."""
    actor, rollout = stale_rollout(make_actor(), decisions=4)
    update = make_update(actor, micro_batch="auto")
    update._affordable = lambda batch: 3
    sizes, evaluate = [], actor.evaluate
    actor.evaluate = lambda trace: (sizes.append(len(next(iter(trace.values())))), evaluate(trace))[1]
    update.proximal(as_batch(rollout, torch.zeros(4, 5)))
    assert sizes == [3] * 6
