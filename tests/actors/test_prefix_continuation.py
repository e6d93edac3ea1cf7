"""FlowActor with a delay: what is committed is given to the policy, and what follows it is chosen and scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.actors.flow import COMMITTED, FlowActor
from tests.support.refusals import refuses

SAMPLERS, CRITICS = ["hybrid", "full", "noise"], ["privileged", "prefix", "expert", "none"]
ROWS, DELAY, EXECUTED = 9, 2, 2
COUNTS = np.array([2, 1, 0, 2, 2, 0, 1, 2, 2])


@pytest.fixture
def make_late(make_actor):
    """Like `make_actor`: an actor that is trained on two committed actions, and acts with a delay of two."""

    def make(*args, delay: int = DELAY, **options) -> FlowActor:
        actor = make_actor(*args, **options)
        actor.backbone.prefix_trained_to = DELAY
        actor.delay = delay
        return actor

    return make


def prefix(rows: int = ROWS, length: int = DELAY) -> np.ndarray:
    """Within the robot's limits."""
    low, high = np.array([-0.5, -2.0, 0.0]), np.array([0.5, 1.0, 0.1])
    return np.random.default_rng(1).uniform(low, high, (rows, length, 3)).astype(np.float32)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_first_ratio_is_one_with_prefixes_in_the_trace(make_late, observe, keys, sampler, critic) -> None:
    actor = make_late(sampler, critic)
    decision = actor.act(observe(ROWS), keys(ROWS), True, prefix(), COUNTS)
    again = actor.evaluate(decision.trace)
    assert torch.equal((again.log_prob - decision.log_prob).exp(), torch.ones_like(decision.log_prob))
    assert decision.log_prob.abs().sum() > 0
    assert torch.equal(again.value, decision.value)
    assert torch.equal(actor.value(observe(ROWS), keys(ROWS), prefix(), COUNTS), decision.value)
    again.log_prob.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in actor.backbone.parameters())


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_trace_matches_its_specification(make_late, observe, keys, sampler, critic) -> None:
    """With and without a prefix, so that one buffer holds both; without a delay nothing is added."""
    actor = make_late(sampler, critic)
    for given in ((), (prefix(), COUNTS)):
        decision = actor.act(observe(ROWS), keys(ROWS), True, *given)
        assert {name: (tuple(v.shape[1:]), v.dtype) for name, v in decision.trace.items()} == actor.trace_spec()
        assert decision.log_prob.shape == (ROWS, *actor.log_prob_shape())
        assert decision.actions.shape == (ROWS, EXECUTED, 3)
    assert decision.trace[COMMITTED].tolist() == COUNTS.tolist()
    assert COMMITTED not in make_late(sampler, critic, delay=0).trace_spec()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_chosen_and_scored_actions_follow_committed_ones(make_late, observe, keys, sampler) -> None:
    """Of each row the entries [c : c + Hx] of the chunk that `infer` returns whole, where c are committed."""
    actor, observation = make_late(sampler), observe(ROWS)
    decision = actor.act(observation, keys(ROWS), False, prefix(), COUNTS)
    chunk = actor.infer(observation, keys(ROWS), prefix(), COUNTS, whole=True)
    for row, count in enumerate(COUNTS):
        assert np.array_equal(decision.actions[row], chunk[row, count : count + EXECUTED])
    drawn = actor.act(observation, keys(ROWS), True, prefix(), COUNTS)
    scored = torch.from_numpy((np.arange(4) >= COUNTS[:, None]) & (np.arange(4) < COUNTS[:, None] + EXECUTED))
    moved = {name: value.clone() for name, value in drawn.trace.items()}
    moved["flow/x_next"] += 1.0 * ~scored[:, None, :, None]
    assert torch.equal(actor.evaluate(moved).log_prob, drawn.log_prob)
    moved["flow/x_next"] += 1.0 * scored[:, None, :, None]
    assert not torch.isclose(actor.evaluate(moved).log_prob, drawn.log_prob).any()


def test_the_expert_critic_reads_chosen_and_committed_actions(make_late, observe, keys) -> None:
    actor, observation = make_late("full", "expert"), observe(ROWS)
    value = actor.value(observation, keys(ROWS), prefix(), COUNTS)
    other = actor.value(observation, keys(ROWS), -prefix(), COUNTS)
    assert torch.equal(value[COUNTS == 0], other[COUNTS == 0])
    assert not torch.isclose(value[COUNTS > 0], other[COUNTS > 0]).any()
    features = []
    actor.critic.register_forward_pre_hook(lambda _, inputs: features.append(inputs[2]))
    actor.value(observation, keys(ROWS), prefix(), COUNTS)
    with torch.no_grad():
        context = actor.backbone.encode(actor.observation_inputs(observation))
        decision = actor.act(observation, keys(ROWS), True, prefix(), COUNTS)
        times = (torch.arange(4) >= torch.from_numpy(COUNTS)[:, None]).float()
        expected = actor.backbone.velocity(decision.trace["critic/initial"], times, context)[1]
    windows = [expected[row, count : count + EXECUTED] for row, count in enumerate(COUNTS)]
    assert torch.equal(features[0], torch.stack(windows))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_a_prefix_a_delay_changes_nothing(make_late, make_actor, observe, keys, sampler) -> None:
    """The chunk is that of an actor without a delay to the bit; rows of zero committed actions say the same."""
    late, plain, observation = make_late(sampler), make_actor(sampler), observe(ROWS)
    whole = plain.infer(observation, keys(ROWS), whole=True)
    assert np.array_equal(late.act(observation, keys(ROWS), False).actions, whole[:, :EXECUTED])
    none = np.zeros(ROWS, np.int64)
    for strategy in ("prefix", "replacement", "guided"):
        assert np.array_equal(late.infer(observation, keys(ROWS), prefix(), none, whole=True, strategy=strategy), whole)
    decisions = late.act(observation, keys(ROWS), True), late.act(observation, keys(ROWS), True, prefix(), none)
    assert torch.equal(decisions[0].log_prob, decisions[1].log_prob)
    assert torch.equal(decisions[0].trace["flow/x"], plain.act(observation, keys(ROWS), True).trace["flow/x"])


@pytest.mark.parametrize("strategy", ["prefix", "replacement", "guided"])
def test_committed_actions_come_back_to_the_bit_clipped_to_the_limits(make_late, observe, keys, strategy) -> None:
    actor, observation, given = make_late(), observe(ROWS), 4 * prefix()
    chunk = actor.infer(observation, keys(ROWS), given, COUNTS, whole=True, strategy=strategy)
    robot = actor.embodiment
    clipped = np.clip(given, np.float32(robot.action_low), np.float32(robot.action_high))
    held = np.arange(DELAY) < COUNTS[:, None]
    assert np.array_equal(chunk[:, :DELAY][held], clipped[held]) and not np.array_equal(given, clipped)
    within = actor.infer(observation, keys(ROWS), clipped, COUNTS, whole=True, strategy=strategy)
    assert np.array_equal(chunk, within), "the policy continues what is executed, not what was asked for"
    plain = actor.infer(observation, keys(ROWS), whole=True)
    assert not np.isclose(chunk[COUNTS > 0, DELAY:], plain[COUNTS > 0, DELAY:], atol=1e-6).all(axis=(1, 2)).any()


def test_relative_actions_are_given_relative_to_the_new_state(make_late, observe, keys, embodiment: Embodiment) -> None:
    """dx is relative to state x: after the robot has moved, the same command is another one to the network."""
    robot = replace(embodiment, relative=(0, -1, -1), action=Normalisation("mean_std", (0.0,) * 3, (1.0,) * 3))
    actor, observation = make_late(), observe(ROWS)
    actor.embodiment = robot
    decision = actor.act(observation, keys(ROWS), True, prefix())
    expected = prefix() - np.stack([observation.state[:, 0], *np.zeros((2, ROWS))], axis=-1)[:, None]
    np.testing.assert_allclose(decision.trace["flow/x"][:, 0, :DELAY, :3], expected, atol=1e-6)


def test_soft_strategies_stay_near_the_rest_of_the_plan(make_late, observe, keys) -> None:
    """Of two plans that begin alike and go on otherwise, "prefix" sees no difference; the others follow each."""
    actor, observation, first = make_late(), observe(ROWS), prefix(length=4)
    second = np.concatenate([first[:, :1], first[::-1, 1:]], axis=1)
    ones = np.ones(ROWS, np.int64)
    for strategy in ("prefix", "replacement", "guided"):
        chunks = [actor.infer(observation, keys(ROWS), plan, ones, strategy=strategy)[:, 1] for plan in (first, second)]
        same = np.isclose(*chunks, atol=1e-6).all()
        assert same == (strategy == "prefix"), strategy
    soft = actor.infer(observation, keys(ROWS), first, ones, strategy="replacement")[:, 1]
    hard = actor.infer(observation, keys(ROWS), first[:, :1], ones, strategy="replacement")[:, 1]
    assert np.abs(soft - first[:, 1]).mean() < np.abs(hard - first[:, 1]).mean()


def test_prefixes_and_strategies_beyond_the_training_are_refused(make_late, observe, keys) -> None:
    actor, observation = make_late(delay=0), observe(3)
    with refuses("policy-not-trained-for-delay", "algo.prefix=3", "strategy=replacement"):
        actor.infer(observation, keys(3), prefix(3, 3))
    assert actor.infer(observation, keys(3), prefix(3, 3), np.array([0, 1, 2])).shape == (3, EXECUTED, 3)
    assert actor.infer(observation, keys(3), prefix(3, 3), strategy="replacement").shape == (3, EXECUTED, 3)
    for given in (None, prefix(3, 1)):
        with refuses("strategy-unknown", "soft", "prefix, replacement, guided"):
            actor.infer(observation, keys(3), given, strategy="soft")
    actor.backbone.prefix_trained_to = 0
    with refuses("policy-not-trained-for-delay", "prefix_trained_to=0"):
        actor.infer(observation, keys(3), prefix(3, 1))


@pytest.mark.parametrize(
    ("delay", "trained_to", "code"),
    [(-1, 2, "delay-out-of-range"), (3, 4, "delay-too-long"), (2, 1, "policy-not-trained-for-delay")],
)
def test_an_impossible_delay_is_refused(make_actor, delay: int, trained_to: int, code: str) -> None:
    actor = make_actor()
    actor.backbone.prefix_trained_to = trained_to
    with refuses(code, f"delay={delay}"):
        actor.delay = delay
    assert actor.delay == 0


def test_a_policy_that_is_trained_to_less_than_its_delay_is_refused(make_late, observe, keys) -> None:
    """Another file may be loaded into an actor after its delay was set."""
    actor = make_late()
    actor.backbone.prefix_trained_to = 1
    assert actor.act(observe(3), keys(3), True, prefix(3, 1)).actions.shape == (3, EXECUTED, 3)
    with refuses("policy-not-trained-for-delay", "algo.prefix=2"):
        actor.act(observe(3), keys(3), True, prefix(3, 2))


def test_a_prefix_beyond_the_delay_is_refused(make_late, observe, keys) -> None:
    with refuses("prefix-without-delay"):
        make_late(delay=0).act(observe(3), keys(3), True, prefix(3, 1))
    with refuses("prefix-shape-mismatch", 1):
        make_late(delay=1).act(observe(3), keys(3), True, prefix(3, 2))
