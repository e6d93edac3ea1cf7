"""policy.autocast: bfloat16 products in rollout and update alike, float32 weights and gradients."""

import pytest
import torch

from embodied_rl.actors import placement
from embodied_rl.actors.network_actor import PRIVILEGED
from embodied_rl.schema import PolicyNode


def lowered(actor):
    return placement.place_actor(actor, PolicyNode("pocket", autocast=True))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert"])
@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_an_update_starts_from_the_log_probabilities_of_its_rollout(
    make_actor, observe, keys, sampler, critic, frozen
) -> None:
    """To the bit, so that the first ratio is 1; kept features have the type that the buffer is made for."""
    actor = lowered(make_actor(sampler, critic, freeze_perception=frozen))
    decision = actor.act(observe(9), keys(9), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob) and torch.equal(again.value, decision.value)
    assert torch.equal(actor.value(observe(9), keys(9)), decision.value)
    spec = {name: (tuple(value.shape[1:]), value.dtype) for name, value in decision.trace.items()}
    assert spec == dict(actor.trace_spec())
    assert again.log_prob.dtype == decision.log_prob.dtype == decision.value.dtype == torch.float32


def test_products_are_bfloat16_and_parameters_float32(make_actor, observe, keys) -> None:
    plain, low = make_actor("full", "expert"), lowered(make_actor("full", "expert"))
    wanted = plain.act(observe(9), keys(9), explore=True)
    found = low.evaluate(wanted.trace)
    difference = (found.log_prob - wanted.log_prob).abs()
    assert 1e-4 < difference.median() < 1.0
    found.log_prob.sum().backward()
    assert {p.grad.dtype for p in low.backbone.parameters() if p.grad is not None} == {torch.float32}
    assert {p.dtype for p in low.parameters()} == {torch.float32}


def test_a_privileged_critic_by_itself_gives_the_values_of_the_rollout(make_actor, observe, keys) -> None:
    actor = lowered(make_actor("full", "privileged"))
    decision = actor.act(observe(9), keys(9), explore=True)
    assert torch.equal(actor.critic_value(decision.trace[PRIVILEGED]), decision.value)


def test_nothing_changes_without_it(make_actor, observe, keys, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = make_actor("full", "expert")
    monkeypatch.setattr(torch, "autocast", None)
    decision = actor.act(observe(3), keys(3), explore=True)
    assert torch.equal(actor.evaluate(decision.trace).log_prob, decision.log_prob)
