"""NFT: its loss against the mirrored velocities of the papers, its gradient, and who counts as good."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.network_actor import read_inputs
from embodied_rl.interfaces.policy import Evaluation, Trace
from embodied_rl.mathematics.flow.transition import flow_sde_transition, make_time_grid
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.nft import NFT, NFTConfig, NFTUpdate
from tests.support.experience import (
    EXECUTED,
    Table,
    changed,
    episodes,
    make_actor,
    make_rollout,
    on_ranks,
    split,
    spoil,
    table_batch,
    weights,
)

PLAIN = {
    "epochs": 1,
    "minibatch": 10**6,
    "grad_clip": 1e9,
    "warmup_updates": 0,
    "target_kl": None,
    "max_drift": 1e9,
    "perception_lr": 0.0,
}


class Means(Table):
    """A `Table` whose parameters are the means of normal distributions, of which `gap` was drawn."""

    std = 0.3

    def evaluate(self, trace: Trace) -> Evaluation:
        mean = self.theta[trace["row"]]
        std = torch.full_like(mean, self.std)
        log_prob = Normal(mean, std).log_prob(trace["gap"])
        return Evaluation(log_prob, torch.zeros_like(mean), torch.zeros(len(mean)), mean=mean, std=std)

    def trace_spec(self) -> dict:
        return {"gap": (tuple(self.theta.shape[1:]), torch.float32), "row": ((), torch.int64)}

    def log_prob_shape(self) -> tuple[int, ...]:
        return tuple(self.theta.shape[1:])


def make_nft(actor: Any, ranks: Ranks | None = None, **settings: Any) -> NFT:
    return NFT(NFTConfig(**(PLAIN | settings)), actor, ranks or Ranks(), 0, 100)


def mirrored_loss(v: Tensor, old: Tensor, drawn: Tensor, std: Any, y: Tensor, beta: float) -> Tensor:
    """The loss as printed: the two mirrored predictions, and their errors. [B, Hx]."""
    ahead, behind = old + (v - old), old - (v - old)
    error = [((each - drawn) ** 2 / std**2).sum(dim=-1) for each in (ahead, behind)]
    return F.softplus(beta / 2 * y[:, None] * (error[0] - error[1]))


@pytest.mark.parametrize("beta", [0.5, 2.0])
@pytest.mark.parametrize("moved", [0.0, 0.2])
def test_its_gradient_is_that_of_the_mirrored_velocities(beta: float, moved: float) -> None:
    """At the start of the update, and after the policy has moved away from it."""
    torch.manual_seed(0)
    drawn, y = torch.randn(6, 2, 3), torch.tensor([1.0, -1.0, 0.5, -0.25, 0.0, 1.0])
    actor = Means(6, 2, 3)
    with torch.no_grad():
        actor.theta.normal_()
    update = NFTUpdate(NFTConfig(**PLAIN, beta=beta, lr=0.0), actor, Ranks(), 0, 100)
    batch, _ = update.proximal(table_batch(drawn, y))
    old = actor.theta.detach().clone()
    with torch.no_grad():
        actor.theta += moved * torch.randn(6, 2, 3)
    update.run([batch], 0)
    expected = nn.Parameter(actor.theta.detach().clone())
    mirrored_loss(expected, old, drawn, actor.std, y, beta).mean().backward()
    torch.testing.assert_close(actor.theta.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_the_first_gradient_is_that_of_reinforce() -> None:
    """-beta y grad log p, of a flow policy on a rollout with partial chunks, a human's actions and lost rows."""
    actor = make_actor(critic="none")
    rollout = make_rollout(actor)
    rollout.terminated[-1] = True
    learner = make_nft(actor, beta=0.7, lr=0.0)
    batch = learner._batch(rollout, [])
    learner.update([rollout], 0)
    found = {name: parameter.grad.clone() for name, parameter in actor.named_parameters() if parameter.grad is not None}
    actor.zero_grad()
    log_prob = actor.evaluate({name: tensor[batch.rows] for name, tensor in batch.trace.items()}).log_prob.sum(dim=-1)
    counts = batch.mask[batch.rows]
    assert batch.weight is not None
    weighted = batch.weight[batch.rows] * batch.advantage[batch.rows, None]
    (-0.7 * weighted * log_prob)[counts].sum().div(counts.sum()).backward()
    for name, parameter in actor.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_the_flow_gives_the_means_that_its_transition_has() -> None:
    """Of the recorded steps, for the executed actions and the simulator's dimensions."""
    actor: FlowActor = make_actor("hybrid", critic="none")
    trace = {name: tensor.flatten(0, 1) for name, tensor in make_rollout(actor).trace.items()}
    kept = torch.isfinite(trace["flow/x"]).flatten(1).all(dim=1)
    trace = {name: tensor[kept] for name, tensor in trace.items()}
    now = actor.evaluate(trace)
    t = make_time_grid(3, "cpu")[trace["flow/step"][:, 0]]
    velocity, _ = actor.network.velocity(trace["flow/x"][:, 0], t, actor.network.encode(read_inputs(trace)))
    step = flow_sde_transition(trace["flow/x"][:, 0], velocity, t, 1 / 3, trace["flow/noise_level"])
    assert now.mean is not None and now.std is not None
    torch.testing.assert_close(now.mean, step.mean[:, :EXECUTED, :2])
    torch.testing.assert_close(now.std, step.std.expand_as(step.mean)[:, :EXECUTED, :2])


@pytest.mark.parametrize(("drift", "beyond"), [(0.5, 1.0), (2.0, 0.0)])
def test_an_action_that_has_moved_far_counts_as_one_at_the_bound(drift: float, beyond: float) -> None:
    """Shifted by 0.3 in each of three entries at a deviation of 0.3, so by the root of 3 deviations."""
    actor = Means(4, 2, 3)
    update = NFTUpdate(NFTConfig(**(PLAIN | {"max_drift": drift})), actor, Ranks(), 0, 100)
    drawn = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    batch, _ = update.proximal(table_batch(drawn, torch.ones(4)))
    actor.theta.data += 0.3
    loss, share = update.policy_loss(
        batch, now := actor.evaluate(batch.trace), (now.log_prob - batch.log_prob).sum(dim=-1), batch.mask
    )
    factor = min(1.0, drift / 3**0.5)
    ahead, behind = (((sign * 0.3 - drawn) / 0.3).square().sum(dim=-1) for sign in (1, -1))
    torch.testing.assert_close(loss.detach(), F.softplus(factor * (ahead - behind) / 2), rtol=1e-4, atol=1e-5)
    assert float(share) == beyond


def outcomes(returns: list[float], group_size: int) -> list[float]:
    """What `update` takes as the advantage of each episode, all of which have one whole decision."""
    actor, rollout = episodes(returns, [2] * len(returns), max(group_size, 1))
    means = Means(len(actor.theta))
    learner = make_nft(means, group_size=group_size)
    batch = learner._batch(rollout, [])
    return batch.advantage.view(rollout.valid.shape)[0].tolist()


def test_alone_a_success_counts_as_1_and_a_failure_as_minus_1() -> None:
    assert outcomes([1, 0, 0.5, 3], 1) == [1, -1, 0, 1]


def test_alone_an_unfinished_episode_is_not_learned() -> None:
    """As if it had failed, it would be."""
    actor, rollout = episodes([1, 0], [2, 6])
    rollout.terminated[:, 1] = False
    means = Means(len(actor.theta))
    batch = make_nft(means, group_size=1)._batch(rollout, [])
    assert batch.rows.tolist() == [0]


def test_in_groups_outcomes_are_those_of_grpo_within_bounds() -> None:
    found = outcomes([1, 0, 1, 1, 0, 0, 0, 1], 4)
    assert found == pytest.approx([0.5, -1, 0.5, 0.5, -0.5, -0.5, -0.5, 1], abs=1e-4)


def test_what_nobody_may_look_at_changes_no_bit() -> None:
    results = []
    for change in (deepcopy, spoil):
        actor = make_actor(critic="none")
        rollout = change(make_rollout(actor))
        make_nft(actor, lr=0.01, epochs=2).update([rollout], 0)
        results.append(weights(actor))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_two_ranks_learn_what_one_process_learns() -> None:
    def run(ranks: Ranks, rollout: Rollout) -> dict[str, Tensor]:
        actor = deepcopy(original)
        make_nft(actor, ranks, lr=0.01).update([rollout], 0)
        return {name: each.grad.clone() for name, each in actor.named_parameters() if each.grad is not None}

    original = make_actor(critic="none")
    rollout = make_rollout(original, num_envs=6)
    rollout.terminated[-1] = True
    expected = run(Ranks(), rollout)
    parts = split(rollout, [slice(0, 3), slice(3, 6)])
    for found in on_ranks(lambda ranks: run(ranks, parts[ranks.rank])):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


def test_state_and_load_continue_to_the_bit() -> None:
    straight, resumed = make_actor(critic="none"), make_actor(critic="none")
    rollouts = [make_rollout(straight, seed=seed) for seed in range(2)]
    settings = {"lr": 0.01, "warmup_updates": 3, "epochs": 2}
    first, second = make_nft(straight, **settings), make_nft(resumed, **settings)
    first.update([rollouts[0]], 0)
    resumed.load_state_dict(straight.state_dict())
    second.load({name: value.clone() for name, value in first.state().items()})
    before = weights(straight)
    assert first.update([rollouts[1]], 1) == second.update([rollouts[1]], 1)
    assert changed(straight, before) and changed(resumed, weights(straight)) == set()


def test_micro_batches_change_only_the_last_digits() -> None:
    gradients = []
    for micro in (None, 3):
        actor = make_actor(critic="none")
        make_nft(actor, micro_batch=micro, lr=0.0).update([make_rollout(actor)], 0)
        gradients.append(torch.cat([p.grad.flatten() for p in actor.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
