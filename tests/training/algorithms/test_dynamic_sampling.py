"""Dynamic sampling: which iterations update, from which groups, and how much each counts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.nft import NFT, NFTConfig
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
from tests.support.refusals import refuses

ONE_OF_TWO = ([1, 0, 1, 1], [2, 4, 6, 2])
"""Outcomes and lengths of a rollout whose first group alone differs."""
OTHER = ([1, 1, 0, 1], [3, 6, 5, 6])
"""The second group alone."""


def table_rollout(outcomes: list[float], lengths: list[int], first: int = 0) -> Rollout:
    """A rollout whose rows of the table begin at `first`."""
    _, rollout = episodes(outcomes, lengths)
    rollout.trace["row"] += first
    return rollout


def overwrite(rollout: Rollout) -> None:
    """What the next collection does to the same memory."""
    for tensor in rollout.tensors().values():
        tensor.fill_(1)


def test_an_update_waits_for_as_many_groups_as_asked() -> None:
    """Then it is that of one batch of the groups, weighted by their ratios, as if all had been collected at once."""
    first, second = table_rollout(*ONE_OF_TWO), table_rollout(*OTHER, first=4 * TALL)
    together = TableActor(8 * TALL)
    make_grpo(together).update([first, second], 0)
    actor = TableActor(8 * TALL)
    learner = make_grpo(actor, dynamic_sampling=2)
    waiting = learner.update([first], 0)
    overwrite(first)
    assert waiting["gathered_groups"] == 1 and waiting["epochs"] == 0 and not actor.theta.any()
    done = learner.update([second], 1)
    assert done["gathered_groups"] == 2 and done["epochs"] == 1 and waiting.keys() == done.keys()
    torch.testing.assert_close(actor.theta.grad, together.theta.grad)
    assert learner.update([table_rollout(*ONE_OF_TWO)], 2)["gathered_groups"] == 1, "it begins anew"


def test_after_the_longest_wait_it_takes_what_it_has() -> None:
    actor = TableActor(4 * TALL)
    learner = make_grpo(actor, dynamic_sampling=9, longest_wait=3)
    nothing = [0, 0, 1, 1], [2, 2, 2, 2]
    epochs = [
        learner.update([table_rollout(*each)], i)["epochs"] for i, each in enumerate([ONE_OF_TWO, nothing, nothing])
    ]
    assert epochs == [0, 0, 1] and actor.theta.any()
    epochs = [learner.update([table_rollout(*nothing)], i)["epochs"] for i in range(4)]
    assert epochs == [0] * 4, "three iterations without a group make no step"


@pytest.mark.thorough
def test_enough_groups_at_once_change_no_bit() -> None:
    found = []
    for settings in ({}, {"dynamic_sampling": 2}):
        actor = make_actor("noise", "none")
        rollout = make_rollout(actor, num_envs=6, group_size=3)
        rollout.terminated[-1] = True
        own = {"group_size": 3, "success_low": -9.0, "success_high": 9.0, "lr": 0.01, "epochs": 2, "minibatch": 8}
        make_grpo(actor, **own, **settings).update([rollout], 0)
        found.append(weights(actor))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_ranks_count_the_groups_of_all() -> None:
    """One group on one rank, none on the other; then none and one: both update once, together, as one process does."""
    alike = [1, 1], [2, 5]

    def rank(ranks: Ranks) -> tuple[list[float], Tensor]:
        actor = TableActor(8 * TALL)
        learner = make_grpo(actor, ranks, dynamic_sampling=2)
        own = [([1, 0], [2, 6]), alike] if ranks.rank == 0 else [alike, ([0, 1], [4, 3])]
        rows = [2 * TALL * (2 * iteration + ranks.rank) for iteration in range(2)]
        figures = [learner.update([table_rollout(*own[i], first=rows[i])], i) for i in range(2)]
        return [each["gathered_groups"] for each in figures], actor.theta.grad

    alone = TableActor(8 * TALL)
    whole = [table_rollout([1, 0, 1, 1], [2, 6, 2, 5]), table_rollout([1, 1, 0, 1], [2, 5, 4, 3], first=4 * TALL)]
    for rollout, start in zip(whole, (0, 4 * TALL), strict=True):  # rows as on the ranks: two environments each
        pairs = [torch.arange(2 * TALL).view(TALL, 2) + start + half * 2 * TALL for half in range(2)]
        rollout.trace["row"] = torch.cat(pairs, dim=1)
    learner = make_grpo(alone, dynamic_sampling=2)
    for iteration, rollout in enumerate(whole):
        learner.update([rollout], iteration)
    for groups, gradient in on_ranks(rank):
        assert groups == [1, 2]
        torch.testing.assert_close(gradient, alone.theta.grad)


def test_stale_rows_wait_with_their_weights() -> None:
    """In one of two rollouts earlier weights chose: each keeps its factor."""
    stale, fresh = table_rollout(*ONE_OF_TWO), table_rollout(*OTHER, first=4 * TALL)
    stale.trace["gap"] += 0.1  # log-ratios of π_prox to π_behaviour, below the cap
    fresh.version += 1
    for order in ([stale, fresh], [fresh, stale]):
        actor = TableActor(8 * TALL)
        actor.version = 1
        learner = make_grpo(actor, dynamic_sampling=2, importance_cap=None)
        for iteration, rollout in enumerate(order):
            learner.update([rollout], iteration)
        plain = TableActor(8 * TALL)
        for rollout in order:
            rollout.trace["gap"].zero_()
        make_grpo(plain, decoupled=False).update(order, 0)
        stale.trace["gap"] += 0.1
        factor = torch.ones(8 * TALL, 1, 1)
        factor[: 4 * TALL] = torch.tensor(0.2).exp()  # of the two entries of an action
        torch.testing.assert_close(actor.theta.grad, factor * plain.theta.grad)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["grpo", "nft"])
def test_state_and_load_continue_to_the_bit(method: str) -> None:
    """In the middle of a wait, after iterations with and without groups."""

    def make(actor: Any) -> Any:
        own = {"group_size": 5, "dynamic_sampling": 3, "longest_wait": 9, "lr": 0.01}
        if method == "nft":
            return NFT(NFTConfig(**own, warmup_updates=0), actor, Ranks(), 0, 100)
        return make_grpo(actor, **own, success_low=-9.0, success_high=9.0)

    straight, resumed = (make_actor("hybrid", "none") for _ in range(2))
    rollouts = [make_rollout(straight, group_size=5, seed=seed) for seed in range(4)]
    for rollout in rollouts:
        rollout.terminated[-1] = True
    rollouts[1].reward.zero_()
    first, second = make(straight), make(resumed)
    first.update(rollouts[:1], 0)
    first.update(rollouts[1:2], 1)
    second.load({name: value.clone() for name, value in first.state().items()})
    before = weights(straight)
    for iteration in (2, 3):
        assert first.update([rollouts[iteration]], iteration) == second.update([rollouts[iteration]], iteration)
    assert changed(straight, before) and changed(resumed, weights(straight)) == set()


def test_groups_of_one_are_refused() -> None:
    with refuses("keys-contradict", "algo.dynamic_sampling=4", "algo.group_size"):
        NFTConfig(dynamic_sampling=4)
