"""FlowActor: the same numbers in rollout and update, and nothing of the privileged state in its actions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import ode_sample
from tests.support.refusals import refuses

SAMPLERS = ["hybrid", "full", "noise"]
CRITICS = ["privileged", "prefix", "expert", "none"]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_evaluate_repeats_the_rollout_to_the_bit(make_actor, observe, keys, sampler, critic, frozen) -> None:
    """Log-probabilities and values of unchanged weights are those of the rollout, with gradients switched on."""
    actor = make_actor(sampler, critic, freeze_perception=frozen)
    decision = actor.act(observe(9), keys(9), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob)
    assert torch.equal(again.value, decision.value)
    assert again.log_prob.requires_grad
    assert again.entropy.shape == decision.log_prob.shape


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("critic", CRITICS)
def test_privileged_state_never_reaches_an_action(make_actor, observe, keys, critic, explore) -> None:
    """Other simulator truth, same actions and log-probabilities; only a privileged critic's value moves."""
    actor, observation = make_actor("hybrid", critic), observe(5)
    other = replace(observation, privileged=observation.privileged * 3 + 1)
    first, second = actor.act(observation, keys(5), explore), actor.act(other, keys(5), explore)
    assert np.array_equal(first.actions, second.actions)
    assert torch.equal(first.log_prob, second.log_prob)
    assert torch.equal(first.value, second.value) == (critic != "privileged")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_deployed_policy_is_the_ode(make_actor, observe, keys, sampler, embodiment) -> None:
    """explore=False equals Euler steps from the keys' x_1 to the bit, for every sampler."""
    actor, observation, key = make_actor(sampler), observe(6), keys(6)
    with torch.no_grad():
        context = actor.backbone.encode(embodiment.inputs(observation, actor.backbone))
        x = ode_sample(
            lambda x, t: actor.backbone.velocity(x, t, context), draw_normal(key, NoiseStream.INITIAL, (4, 4)), 3
        )
    assert np.array_equal(actor.act(observation, key, explore=False).actions, embodiment.actions(x, observation.state))


def test_a_deployed_policy_needs_no_privileged_state(make_actor, observe, keys) -> None:
    """Without simulator truth: the same deterministic actions, an unknown value, and no exploration."""
    actor, observation = make_actor(critic="privileged"), observe(4)
    blind = observation.without_privileged()
    decision = actor.act(blind, keys(4), explore=False)
    assert np.array_equal(decision.actions, actor.act(observation, keys(4), explore=False).actions)
    assert decision.value.isnan().all()
    with refuses("privileged-state-missing", "policy.critic=prefix"):
        actor.act(blind, keys(4), explore=True)
    with refuses("privileged-state-missing", "policy.critic=prefix"):
        actor.value(blind, keys(4))


@pytest.mark.parametrize("critic", CRITICS)
def test_value_is_the_estimator_of_act(make_actor, observe, keys, critic) -> None:
    """The value of a final observation is what a decision there would have been given."""
    actor, observation, key = make_actor("full", critic), observe(5), keys(5)
    assert torch.equal(actor.value(observation, key), actor.act(observation, key, explore=True).value)


def test_a_critic_on_the_expert_reads_the_start_of_the_chain(make_actor, observe, keys, embodiment) -> None:
    """Its value is that of the features at t = 1 and the x_1 from which the actions are denoised; nothing else."""
    actor, observation, key = make_actor("full", "expert"), observe(5), keys(5)
    decision, start = actor.act(observation, key, explore=True), draw_normal(key, NoiseStream.INITIAL, (4, 4))
    assert torch.equal(decision.trace["flow/x"][:, 0], start)
    with torch.no_grad():
        context = actor.backbone.encode(embodiment.inputs(observation, actor.backbone))
        _, features = actor.backbone.velocity(start, torch.ones(5), context)
        expected = actor.critic(None, None, features[:, :2])
    assert torch.equal(decision.value, expected)
    assert torch.equal(actor.value(observation, key), expected)
    assert torch.equal(actor.evaluate(decision.trace).value, expected)


@pytest.mark.parametrize("critic", ["prefix", "expert"])
@pytest.mark.parametrize("detach", [True, False])
def test_detached_critics_leave_the_backbone_alone(make_actor, observe, keys, critic, detach) -> None:
    """A value's gradient reaches the critic, and the backbone only where it is meant to."""
    actor = make_actor("hybrid", critic, detach=detach)
    trace = actor.act(observe(4), keys(4), explore=True).trace
    actor.evaluate(trace).value.sum().backward()
    touched = [name for name, p in actor.backbone.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert bool(touched) != detach
    assert all(parameter.grad.abs().sum() > 0 for parameter in actor.critic.head[0].parameters())


def test_cached_perception_equals_images(make_actor, observe, keys) -> None:
    """Freezing changes what is stored, not what is computed; frozen weights are not handed to an optimiser."""
    learning, frozen = make_actor(freeze_perception=False), make_actor(freeze_perception=True)
    a, b = learning.act(observe(5), keys(5), True), frozen.act(observe(5), keys(5), True)
    assert np.array_equal(a.actions, b.actions)
    assert torch.equal(learning.evaluate(a.trace).log_prob, frozen.evaluate(b.trace).log_prob)
    assert not any(name.startswith("input/image") for name in b.trace)
    assert set(frozen.parameter_groups()) == {"actor", "critic"}
    trainable = {id(p) for p in frozen.parameters() if p.requires_grad}
    assert trainable == {id(p) for group in frozen.parameter_groups().values() for p in group}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parameter_groups_share_nothing_and_miss_nothing(make_actor, sampler) -> None:
    """Each trainable parameter is in one group, a noise head's among the actor's."""
    actor = make_actor(sampler, "expert")
    ids = [id(parameter) for group in actor.parameter_groups().values() for parameter in group]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in actor.parameters()}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_trace_spec_describes_the_trace(make_actor, observe, keys, sampler, critic, frozen) -> None:
    """A buffer allocated from the specifications fits what `act` returns."""
    actor = make_actor(sampler, critic, freeze_perception=frozen)
    decision = actor.act(observe(3), keys(3), explore=True)
    assert {name: (tuple(v.shape[1:]), v.dtype) for name, v in decision.trace.items()} == actor.trace_spec()
    assert decision.log_prob.shape == (3, *actor.log_prob_shape())
    assert decision.actions.shape == (3, 2, 3)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_only_executed_simulator_dimensions_are_scored(make_actor, observe, keys, sampler) -> None:
    """Moving an unexecuted action or a model dimension beyond the robot's changes no log-probability directly."""
    actor = make_actor(sampler)
    decision = actor.act(observe(3), keys(3), explore=True)
    changed = dict(decision.trace)
    changed["flow/x_next"] = changed["flow/x_next"].clone()
    changed["flow/x_next"][:, :, 2:] += 1
    changed["flow/x_next"][:, :, :, 3:] += 1
    assert torch.equal(actor.evaluate(changed).log_prob, decision.log_prob)
    changed["flow/x_next"][:, :, 1, 2] += 1
    moved = actor.evaluate(changed).log_prob != decision.log_prob
    assert torch.equal(
        moved.nonzero()[:, 1:].unique(dim=0), torch.tensor([[1, 2 + 3 * s] for s in range(moved.shape[2] // 3)])
    )


def test_auxiliary_targets_are_found_by_name(make_actor, observe, keys, embodiment) -> None:
    """A simulator lists the two entries that the policy predicts at the other end, and in the other order."""
    actor, observation = make_actor(critic="prefix"), observe(4)
    actor.privileged_names = ("mass", "clock", "cube_y", "cube_x")
    actor.embodiment = replace(embodiment, privileged_mean=(1.0, 2.0, 0.0, 0.0), privileged_std=(2.0, 4.0, 1.0, 1.0))
    evaluation = actor.evaluate(actor.act(observation, keys(4), True).trace)
    expected = (observation.privileged[:, [3, 2]] - [1, 2]) / [2, 4]
    assert torch.allclose(evaluation.auxiliary_target, torch.tensor(expected, dtype=torch.float32))


def test_decisions_carry_the_version(make_actor, observe, keys) -> None:
    """Who chose is known later."""
    actor = make_actor()
    actor.version = 12
    assert actor.act(observe(3), keys(3), True).version.tolist() == [12, 12, 12]


def test_parts_that_do_not_fit_are_refused(make_actor, embodiment) -> None:
    """Each mismatch is named."""
    actor = make_actor()
    for changed, code, named in [
        ({"cameras": ("wrist",)}, "policy-robot-mismatch", "wrist"),
        ({"image_size": (64, 64)}, "policy-robot-mismatch", (64, 64)),
        ({"token_length": 9}, "policy-robot-mismatch", 9),
        ({"executed": 5}, "executed-too-long", "policy.executed=5"),
    ]:
        with refuses(code, named):
            type(actor)(actor.backbone, actor.sampler, None, replace(embodiment, **changed))


def test_a_robot_that_is_larger_than_the_network_is_refused(make_actor, embodiment) -> None:
    """As many entries as the network has pass, one more does not."""
    actor = make_actor()
    spec = actor.backbone.spec

    def build(states: int, actions: int) -> None:
        limits = {"action_low": (-1.0,) * actions, "action_high": (1.0,) * actions}
        robot = replace(
            embodiment,
            state_names=tuple(map(str, range(states))),
            state=Normalisation.identity(states),
            action_names=tuple(map(str, range(actions))),
            action=Normalisation.identity(actions),
            **limits,
        )
        type(actor)(actor.backbone, actor.sampler, None, robot)

    build(spec.state_dim, spec.action_dim)
    with refuses("policy-robot-mismatch", spec.state_dim, spec.state_dim + 1):
        build(spec.state_dim + 1, spec.action_dim)
    with refuses("policy-robot-mismatch", spec.action_dim, spec.action_dim + 1):
        build(spec.state_dim, spec.action_dim + 1)


def test_only_a_perception_that_is_there_can_be_frozen(make_actor, embodiment, monkeypatch) -> None:
    actor = make_actor()
    monkeypatch.setattr(actor.backbone, "perception_parameters", list)
    type(actor)(actor.backbone, actor.sampler, None, embodiment)
    with refuses("perception-missing", "policy.freeze_perception"):
        type(actor)(actor.backbone, actor.sampler, None, embodiment, freeze_perception=True)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_update_makes_its_tensors_where_the_trace_is(make_actor, observe, keys, sampler, critic) -> None:
    """Wherever torch would make them by default, so that a network may be on another device than the host."""
    actor = make_actor(sampler, critic)
    trace = actor.act(observe(3), keys(3), explore=True).trace
    expected = actor.evaluate(trace)
    with torch.device("meta"):
        found = actor.evaluate(trace)
    assert torch.equal(found.log_prob, expected.log_prob) and torch.equal(found.value, expected.value)
