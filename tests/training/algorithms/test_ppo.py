"""PPO: advantages by hand, what may move when, and what must never reach a gradient."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.actors.network_actor import PRIVILEGED
from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from embodied_rl.training.algorithms.ppo import PPO
from tests.support.experience import (
    changed,
    make_actor,
    make_ppo,
    make_rollout,
    on_ranks,
    split,
    spoil,
    unlearnable,
    weights,
)

SAMPLERS = ["hybrid", "full", "noise"]


def with_advantages(ppo: PPO, rollout: Rollout) -> Batch:
    """The rows that PPO learns from."""
    return next(ppo._batches([rollout], {}))


def hand_rollout(**changes: Any) -> Rollout:
    """Three decisions of two actions in one environment: two steps, then one that ends the episode, then two more."""
    actor = make_actor()
    rollout = Rollout.allocate(actor, 3, 1)
    rollout.clear()
    values = {
        "reward": [[[1.0, 2.0]], [[4.0, 99.0]], [[0.0, 8.0]]],
        "steps": [[2], [1], [2]],
        "value": [[10.0], [20.0], [30.0]],
        "last_value": [40.0],
        "final_value": [[0.0], [12.0], [0.0]],
        "terminated": [[False], [False], [False]],
        "truncated": [[False], [True], [False]],
        "valid": [[True]] * 3,
        "source": [[[0, 0]]] * 3,
    }
    for name, value in (values | changes).items():
        getattr(rollout, name)[:] = torch.tensor(value)
    return rollout


@pytest.mark.parametrize(
    ("settings", "changes", "advantage"),
    [
        # γ = 1/2 per control step, λ = 1/2. Rewards of the chunks: 1 + 2/2 = 2; 4; 0 + 8/2 = 4.
        # δ₂ = 4 + 40/4 - 30 = -16; δ₁ = 4 + 12/2 - 20 = -10, the final observation's value; δ₀ = 2 + 20/4 - 10 = -3.
        ({}, {}, [-3 + 1 / 4 * 1 / 2 * -10, -10, -16]),
        # Terminated on the same step: the final value does not count, nothing follows. δ₁ = 4 - 20 = -16.
        ({}, {"terminated": [[False], [True], [False]]}, [-3 + 1 / 8 * -16, -16, -16]),
        # No end: decision 2 follows. δ₁ = 4 + 30/2 - 20 = -1; A₁ = -1 - 16/4 = -5.
        ({}, {"truncated": [[False]] * 3}, [-3 + 1 / 8 * -5, -5, -16]),
        # γ per decision: rewards 3, 4, 8; δ₂ = 8 + 40/2 - 30 = -2; δ₁ = 4 + 12/2 - 20 = -10; δ₀ = 3 + 20/2 - 10 = 3.
        ({"discount": "decision"}, {}, [3 + 1 / 4 * -10, -10, -2]),
    ],
)
def test_advantages_by_hand(settings: dict, changes: dict, advantage: list[float]) -> None:
    ppo = make_ppo(make_actor(), gamma=0.5, lam=0.5, normalise=False, **settings)
    batch = with_advantages(ppo, hand_rollout(**changes))
    assert batch.advantage.tolist() == pytest.approx(advantage)
    assert batch.returns.tolist() == pytest.approx([a + v for a, v in zip(advantage, [10, 20, 30], strict=True)])


def test_a_time_limit_that_ends_the_task_is_not_bootstrapped() -> None:
    """With γ = 1/2 per control step: δ₁ = 4 - 20 = -16, although the final observation has a value."""
    rollout = hand_rollout()
    rollout.end_at_time_limit()
    batch = with_advantages(make_ppo(make_actor(), gamma=0.5, lam=0.5, normalise=False), rollout)
    assert batch.advantage.tolist() == pytest.approx([-3 + 1 / 8 * -16, -16, -16])


def test_normalised_advantages_have_mean_0_and_deviation_1_over_valid_rows() -> None:
    rollout = hand_rollout(valid=[[True], [False], [True]])
    ppo = make_ppo(make_actor(), gamma=0.5, lam=0.5)
    assert with_advantages(ppo, rollout).advantage[[0, 2]].tolist() == pytest.approx([1, -1], abs=1e-4)


@pytest.mark.parametrize("level", ["action", "chunk"])
@pytest.mark.parametrize("critic", ["privileged", "prefix"])
def test_two_ranks_learn_what_one_process_learns_from_all_their_data(critic: str, level: str) -> None:
    """Advantages are normalised over both, and gradients weighted by what each rank holds."""
    actor = make_actor(critic=critic)
    rollout = make_rollout(actor)
    settings = {"epochs": 1, "minibatch": 10**6, "grad_clip": 1e9, "critic_steps": 0, "level": level}

    def learn(ranks: Ranks, mine: Rollout) -> dict[str, Tensor]:
        copy = deepcopy(actor)
        make_ppo(copy, ranks, **settings).update([mine], 0)
        return {name: parameter.grad for name, parameter in copy.named_parameters() if parameter.grad is not None}

    expected = learn(Ranks(), rollout)
    parts = split(rollout, [slice(0, 2), slice(2, 5)])
    for gradients in on_ranks(lambda ranks: learn(ranks, parts[ranks.rank])):
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_unexecuted_unchosen_or_lost_actions_change_no_bit(sampler: str, critic: str) -> None:
    """Two iterations of two epochs end in the same weights; each kind of spoilt entry occurs in the rollout."""
    actor = make_actor(sampler, critic)
    rollout = make_rollout(actor, decisions=5, num_envs=6)
    kinds = [rollout.steps < 2, (rollout.source == int(Source.HUMAN)).any(-1), ~rollout.valid, rollout.truncated]
    assert all(kind.any() for kind in kinds)
    other, figures = deepcopy(actor), []
    for learner, experience in ((actor, rollout), (other, spoil(rollout))):
        ppo = make_ppo(learner, epochs=2, entropy=0.01)
        figures.append([ppo.update([experience], iteration) for iteration in range(2)])
    assert changed(other, weights(actor)) == set()
    assert figures[0] == figures[1]


@pytest.mark.thorough
def test_an_executed_action_of_the_policy_does_change_it() -> None:
    """The counterpart, without which the test above could pass by looking at nothing."""
    actor = make_actor()
    rollout = make_rollout(actor)
    assert not unlearnable(rollout)[0, 0, 0]
    other = deepcopy(rollout)
    other.log_prob[0, 0, 0, 0] += 0.05
    learners = [deepcopy(actor), deepcopy(actor)]
    for learner, experience in zip(learners, (rollout, other), strict=True):
        make_ppo(learner, epochs=1, minibatch=10**6).update([experience], 0)
    assert changed(learners[1], weights(learners[0]))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("privileged", True), ("prefix", True), ("prefix", False), ("expert", False)])
def test_while_the_critic_warms_up_the_actor_stays_to_the_bit(options: tuple[str, bool]) -> None:
    critic, detach = options
    actor = make_actor("noise", critic, detach=detach)
    rollout, before = make_rollout(actor), weights(actor)
    ppo = make_ppo(actor, critic_warmup=2)
    for iteration in range(2):
        figures = ppo.update([rollout], iteration)
        assert "kl" not in figures and figures["value_loss"] > 0
    moved = changed(actor, before)
    assert moved and all(name.startswith("critic.") for name in moved)
    ppo.update([rollout], 2)
    assert any(name.startswith("backbone.") for name in changed(actor, before))


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ["prefix", "expert"])
def test_a_critic_on_the_network_learns_with_the_policy(critic: str) -> None:
    """With a policy that stands still, it comes to explain the returns of one rollout."""
    actor = make_actor(critic=critic)
    rollout = make_rollout(actor, decisions=6)
    rollout.terminated[:] = True
    ppo = make_ppo(actor, lr=0.0, perception_lr=0.0, critic_lr=0.02, epochs=10)
    targets = with_advantages(ppo, rollout)

    def error() -> float:
        with torch.no_grad():
            value = actor.evaluate({name: x[targets.rows] for name, x in targets.trace.items()}).value
        return float((value - targets.returns[targets.rows]).square().mean())

    start, before = error(), weights(actor)
    for iteration in range(4):
        ppo.update([rollout], iteration)
    assert all(name.startswith("critic.") for name in changed(actor, before))
    assert error() < 0.5 * start


@pytest.mark.thorough
def test_a_privileged_critic_learns_from_the_last_rollouts() -> None:
    actor = make_actor()
    rollout = make_rollout(actor, decisions=6)
    rollout.terminated[:] = True
    ppo = make_ppo(actor, lr=0.0, critic_lr=0.02, critic_steps=200, critic_warmup=9, critic_replay=2)
    losses = [ppo.update([rollout], iteration)["value_loss"] for iteration in range(3)]
    assert losses[2] < 0.5 * losses[0]
    assert len(ppo._replay) == 2


def known_errors(critic: str, reward: Tensor, **settings: Any) -> tuple[float, Tensor]:
    """The loss that a critic of zeros reports while it warms up, standing still, and its error for each row.

    Each decision is an episode of one step, so that its return is its `reward` [T, N].
    """
    actor = make_actor(critic=critic)
    rollout = make_rollout(actor, *reward.shape)
    rollout.terminated[:], rollout.steps[:], rollout.value[:] = True, 1, 0
    rollout.reward[..., 0] = reward
    with torch.no_grad():
        for parameter in actor.critic.head.parameters():
            parameter.zero_()
    ppo = make_ppo(actor, critic_lr=0.0, critic_warmup=1, **settings)
    return ppo.update([rollout], 0)["value_loss"], 0.5 * reward[rollout.valid] ** 2


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_loss_of_a_critic_that_warms_up_is_the_mean_over_rows(epochs: int) -> None:
    loss, errors = known_errors("prefix", torch.randn(4, 5), epochs=epochs, minibatch=10**6)
    assert loss == pytest.approx(float(errors.mean()), rel=1e-5)


@pytest.mark.parametrize("minibatch", [1, 2, 8])
def test_the_loss_of_a_privileged_critic_is_the_mean_over_what_it_drew(minibatch: int) -> None:
    loss, _ = known_errors("privileged", torch.full((4, 5), 3.0), minibatch=minibatch)
    assert loss == pytest.approx(4.5)


def test_a_privileged_critic_draws_from_all_rows_alike() -> None:
    """Sixteen thousand draws: the mean over all rows, within five standard errors."""
    loss, errors = known_errors("privileged", torch.arange(20.0).view(4, 5), minibatch=4096, critic_steps=1)
    assert loss == pytest.approx(float(errors.mean()), abs=5 * float(errors.std()) / 128)


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ["privileged", "prefix"])
def test_value_clip_and_huber_act_on_every_critic(critic: str) -> None:
    """A tight clip around the recorded values keeps the critic near them; Huber's loss grows with the error, once."""

    def learn(**settings: float) -> tuple[float, float]:
        actor = make_actor(critic=critic)
        rollout = make_rollout(actor, decisions=6)
        rollout.terminated[:] = True
        rollout.reward[:] = 5.0
        ppo = make_ppo(actor, lr=0.0, perception_lr=0.0, critic_lr=0.02, critic_steps=30, epochs=15, **settings)
        loss = ppo.update([rollout], 5)["value_loss"]
        with torch.no_grad():
            trace = {name: tensor.flatten(0, 1) for name, tensor in rollout.trace.items()}
            value = actor.evaluate(trace).value if critic == "prefix" else actor.critic_value(trace[PRIVILEGED])
        return float((value - rollout.value.flatten()).abs().mean()), loss

    moved, loss = learn()
    assert learn(value_clip=0.05)[0] < 0.5 * moved
    assert learn(value_huber=0.01)[1] < 0.1 * loss


@pytest.mark.parametrize("critic", ["privileged", "prefix"])
def test_a_rollout_that_was_lost_entirely_teaches_nothing_and_stops_nothing(critic: str) -> None:
    """Every environment may live in the one worker that was killed."""
    actor = make_actor(critic=critic)
    rollout, before = make_rollout(actor), weights(actor)
    rollout.valid[:] = False
    for iteration in range(2):
        make_ppo(actor, critic_warmup=1, epochs=2).update([rollout], iteration)
    assert changed(actor, before) == set()


@pytest.mark.parametrize("critic", ["privileged", "expert"])
def test_state_and_load_continue_to_the_bit(critic: str) -> None:
    actors = [make_actor("noise", critic), make_actor("noise", critic)]
    rollouts = [make_rollout(actors[0], seed=seed) for seed in range(3)]
    straight, resumed = (make_ppo(actor, critic_replay=2, epochs=2) for actor in actors)
    for iteration, rollout in enumerate(rollouts[:2]):
        straight.update([rollout], iteration)
    actors[1].load_state_dict(actors[0].state_dict())
    resumed.load({name: value.clone() for name, value in straight.state().items()})
    figures = [ppo.update([rollouts[2]], 2) for ppo in (straight, resumed)]
    assert figures[0] == figures[1]
    assert changed(actors[1], weights(actors[0])) == set()
