"""GRPO: who is compared with whom, and how much an episode counts."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.grpo import GRPO, GRPOConfig
from tests.support.experience import (
    TALL,
    TableActor,
    changed,
    episodes,
    make_actor,
    make_grpo,
    make_rollout,
    on_ranks,
    weights,
)


def gradients(actor: TableActor, rollout: Rollout, **settings: Any) -> Tensor:
    """[T, N, Hx, D'] on each log-probability."""
    make_grpo(actor, **settings).update([rollout], 0)
    return actor.theta.grad.view(TALL, -1, *actor.theta.shape[1:])


@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_every_episode_counts_alike_however_long(level: str) -> None:
    """Of one decision, of two and a half, of three: each pushes with its advantage, over the number of episodes."""
    actor, rollout = episodes([1, 0, 0, 1], [1, 5, 6, 2])
    each = gradients(actor, rollout, level=level)
    weight = {  # entries of one ratio share its gradient
        "token": each.sum(dim=(0, 2, 3)),
        "action": each[..., 0].sum(dim=(0, 2)),
        "chunk": each[:, :, 0, 0].sum(dim=0),
    }[level]
    advantage = torch.tensor([1, -1, -1, 1]) / 2**0.5
    torch.testing.assert_close(weight, -advantage / 4, rtol=1e-4, atol=1e-5)


def test_groups_that_agree_teach_nothing() -> None:
    actor, rollout = episodes([0, 0, 1, 1, 0, 1], [6, 4, 2, 2, 6, 3])
    touched = gradients(actor, rollout).abs().sum(dim=(0, 2, 3)) > 0
    assert touched.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize(("low", "high", "kept"), [(0.1, 0.9, True), (0.25, 0.25, True), (0.3, 0.9, False)])
def test_groups_that_nearly_agree_are_left_out(low: float, high: float, kept: bool) -> None:
    actor, rollout = episodes([0, 0, 1, 0], [2, 2, 2, 2], group_size=4)
    figures = make_grpo(actor, group_size=4, success_low=low, success_high=high).update([rollout], 0)
    assert figures["kept_share"] == float(kept)
    assert actor.theta.any() == kept, "without a group there is no step"


@pytest.mark.parametrize("how", ["lost", "unfinished"])
def test_a_broken_episode_does_not_affect_others(how: str) -> None:
    """Whatever it holds: its group of three goes on as one of two, and a group of two is skipped."""
    results = []
    for junk in (0.0, 1000.0):
        actor, rollout = episodes([1, 0, 1, 0, 1, 0], [2, 3, 6, 6, 2, 4], group_size=3)
        rollout.reward[:, 2] += junk
        if how == "lost":
            rollout.valid[:, 2] = False
        rollout.terminated[:, 2] = False
        results.append(gradients(actor, rollout, group_size=3))
    assert torch.equal(*results)
    touched = results[0].abs().sum(dim=(0, 2, 3)) > 0
    assert touched.tolist() == [True, True, False, True, True, True]
    actor, rollout = episodes([1, 0], [2, 3])
    rollout.terminated[:, 0], rollout.valid[:, 0] = False, how != "lost"
    make_grpo(actor).update([rollout], 0)
    assert not actor.theta.any()


def test_an_episode_counts_whether_it_was_terminated_or_truncated() -> None:
    actor, rollout = episodes([1, 0], [2, 6])
    expected = gradients(actor, rollout).clone()
    actor.theta.data.zero_()
    rollout.truncated[2, 1], rollout.terminated[2, 1] = True, False
    assert torch.equal(gradients(actor, rollout), expected) and expected[:, 1].any()


def test_rewards_of_lost_rows_are_none() -> None:
    """Of an environment that is parked after its episode."""
    actor, rollout = episodes([1, 0], [2, 3])
    expected = gradients(actor, rollout).clone()
    actor.theta.data.zero_()
    rollout.reward[2], rollout.steps[2] = 5.0, 2
    assert not rollout.valid[2].any() and torch.equal(gradients(actor, rollout), expected)


def test_a_rollout_is_left_as_it_was() -> None:
    """All of its steps are counted."""
    actor, rollout = episodes([0, 0, 1, 0], [2, 3, 4, 5])
    before = deepcopy(rollout.tensors())
    gradients(actor, rollout)
    for name, tensor in rollout.tensors().items():
        assert torch.equal(tensor, before[name]), name


def test_actions_that_were_not_executed_have_no_effect() -> None:
    """Rewards beyond an episode's steps would turn a failure into a success."""
    actor, rollout = episodes([0, 1], [1, 3])
    expected = gradients(actor, rollout).clone()
    actor.theta.data.zero_()
    rollout.reward[torch.arange(2) >= rollout.steps[..., None]] += 1
    assert torch.equal(gradients(actor, rollout), expected)


def test_two_ranks_learn_what_one_process_learns_from_all_their_episodes() -> None:
    """Episodes count alike over all ranks, also where one rank has the long ones."""
    outcomes, lengths = [1, 0, 0, 1], [1, 2, 6, 5]

    actor, rollout = episodes(outcomes, lengths)
    expected = gradients(actor, rollout)

    def rank(ranks: Ranks) -> Tensor:
        mine = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        actor = TableActor(TALL * 4)
        _, rollout = episodes(outcomes[mine], lengths[mine])
        rollout.trace["row"][:] = torch.arange(TALL * 4).view(TALL, 4)[:, mine]
        make_grpo(actor, ranks).update([rollout], 0)
        return actor.theta.grad.view(TALL, 4, 2, 2)

    for found in on_ranks(rank):
        torch.testing.assert_close(found, expected)


def test_state_and_load_continue_to_the_bit() -> None:
    """The optimiser's moments and its warm-up go on where they were."""
    straight, resumed = make_actor("noise", "none"), make_actor("noise", "none")
    rollouts = [make_rollout(straight, group_size=5, seed=seed) for seed in range(2)]
    for rollout in rollouts:
        rollout.terminated[-1] = True
    settings = {"group_size": 5, "success_low": -9.0, "success_high": 9.0, "lr": 0.01, "warmup_updates": 3}
    first, second = make_grpo(straight, **settings), make_grpo(resumed, **settings)
    first.update([rollouts[0]], 0)
    resumed.load_state_dict(straight.state_dict())
    second.load({name: value.clone() for name, value in first.state().items()})
    before = weights(straight)
    assert first.update([rollouts[1]], 1) == second.update([rollouts[1]], 1)
    assert changed(straight, before) and changed(resumed, weights(straight)) == set()


def test_there_is_no_critic() -> None:
    """Values are no part of it, and a rollout of a real actor without one moves every part of the network."""
    assert not GRPO.needs(GRPOConfig()).critic
    actor = make_actor(critic="none")
    rollout = make_rollout(actor, group_size=5)
    rollout.terminated[-1] = True
    rollout.value[:], rollout.last_value[:], rollout.final_value[:] = 3, 4, 5
    before = weights(actor)
    make_grpo(actor, group_size=5, success_low=-9.0, success_high=9.0, lr=0.01).update([rollout], 0)
    assert any(name.startswith("backbone.stem") for name in changed(actor, before))
    assert set(make_grpo(actor).state()) == {"updates"}
