"""Decoupled PPO: what is recomputed, what ranks agree on, and what must stay as it is without stale rows."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.actors.learning import memory_budget
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import as_batch
from tests.support.experience import (
    changed,
    make_actor,
    make_grpo,
    make_ppo,
    make_rollout,
    make_update,
    on_ranks,
    split,
    spoil,
    weights,
)


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


def learn(learner: Any, rollout: Rollout, iterations: int = 2) -> list[dict[str, float]]:
    return [learner.update([rollout], iteration) for iteration in range(iterations)]


@pytest.mark.thorough
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
    _, figures = update.run([decoupled], 0)
    assert figures["worst_ratio"] < 1e-4 and figures["clip_share"] == 0 and figures["kl"] < 1e-6
    assert figures["policy_loss"] == pytest.approx(-float((weight * batch.advantage[:, None])[chosen].mean()), abs=1e-5)
    assert importance["importance"] == pytest.approx(float(weight[chosen].mean()), rel=1e-4)
    assert importance["importance_capped"] == pytest.approx(float((weight[chosen] == 1.05).float().mean()))
    assert 0 < importance["importance_capped"] < 1


def test_without_decoupling_ratios_stay_those_to_the_policy_that_chose() -> None:
    actor, rollout = stale_rollout(make_actor(), decisions=6, fresh=2)
    batch = as_batch(rollout, torch.zeros(6, 5))
    same, figures = make_update(actor, decoupled=False).proximal(batch)
    assert same is batch and not figures


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    ppo.update([rollout], 0)
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
        figures = learner.update([mine], 0)
        return figures, {name: p.grad for name, p in copy.named_parameters() if p.grad is not None}

    parts = split(rollout, [slice(0, 4), slice(4, 6)])
    figures, gradients = run(Ranks(), rollout)
    for mine, others in on_ranks(lambda place: run(place, parts[place.rank])):
        assert mine.keys() == figures.keys() and "importance" in mine
        for name in ("importance", "importance_capped"):
            assert mine[name] == pytest.approx(figures[name], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_the_micro_batch_is_measured_before_stale_rows_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first evaluation would take all rows of a minibatch at once."""
    actor, rollout = stale_rollout(make_actor(), decisions=4)
    update = make_update(actor, micro_batch="auto")
    monkeypatch.setattr(memory_budget, "find_affordable_rows", lambda *_: 3)
    sizes, evaluate = [], actor.evaluate
    actor.evaluate = lambda trace: (sizes.append(len(next(iter(trace.values())))), evaluate(trace))[1]
    update.proximal(as_batch(rollout, torch.zeros(4, 5)))
    assert sizes == [3] * 6
