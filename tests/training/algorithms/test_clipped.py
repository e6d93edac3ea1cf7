"""The clipped update: what acts, what is masked, in which order, and at which rate."""

from itertools import chain
from math import log

import pytest
import torch

from embodied_rl.actors.learning import memory_budget
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import FIGURES, EpochSums, as_batch
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate
from tests.support.experience import (
    Table,
    changed,
    make_actor,
    make_rollout,
    make_update,
    on_ranks,
    table_batch,
    table_gradient,
    weights,
)


def single(ratio: float, advantage: float, **settings) -> float:
    """Gradient on the log-probability of one chunk of one action of one dimension; -ρA where nothing is clipped."""
    gradient = table_gradient(torch.full((1, 1, 1), log(ratio)), torch.tensor([advantage]), **settings)
    return gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "settings", "expected"),
    [
        (1.25, 1.0, {}, 0),
        (1.25, 1.0, {"clip_high": 0.3}, -1.25),
        (1.25, -1.0, {}, 1.25),
        (1.25, -1.0, {"clip_high": 0.3}, 1.25),
        (0.75, -1.0, {}, 0),
        (0.75, -1.0, {"clip_low": 0.3}, 0.75),
        (0.75, -1.0, {"clip_high": 0.3}, 0),
        (0.75, 1.0, {}, -0.75),
        (5.0, -1.0, {}, 5.0),
        (5.0, -1.0, {"dual_clip": 3.0}, 0),
        (2.9, -1.0, {"dual_clip": 3.0}, 2.9),
        (5.0, 1.0, {"dual_clip": 3.0, "clip_high": 9.0}, -5.0),
    ],
)
def test_both_bounds_and_the_dual_clip_act(ratio: float, advantage: float, settings: dict, expected: float) -> None:
    assert single(ratio, advantage, **settings) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("level", "clipped"), [("token", [[0, 0], [0, 0]]), ("action", [[1, 1], [0, 0]]), ("chunk", 1)]
)
def test_a_ratio_covers_its_level(level: str, clipped) -> None:
    """Log-ratios of 0.15 an entry are outside 1 + 0.2 as the sum over an action, or over a chunk, and not alone."""
    gap = torch.tensor([[[0.15, 0.15], [0.05, 0.05]]])
    gradient = table_gradient(gap, torch.ones(1), level=level)[0]
    assert torch.equal(gradient == 0, torch.tensor(clipped, dtype=torch.bool).expand(2, 2))


@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_every_ratio_counts_alike(level: str) -> None:
    """At ratio 1 the gradient is minus the advantage over the number of ratios; a masked action has none."""
    mask = torch.tensor([[True, False], [True, True]])
    gradient = table_gradient(torch.zeros(2, 2, 2), torch.tensor([2.0, -1.0]), mask, level=level)
    ratios = {"token": 6, "action": 3, "chunk": 2}[level]
    expected = torch.tensor([[[-2.0, -2.0], [0, 0]], [[1, 1], [1, 1]]]) / ratios
    torch.testing.assert_close(gradient, expected)


def test_entropy_is_pushed_up_where_the_policy_acted() -> None:
    """`Table` reports an entropy of 2·theta; the bonus is its mean over executed entries."""
    mask = torch.tensor([[True, False]])
    gradient = table_gradient(torch.zeros(1, 2, 2), torch.zeros(1), mask, entropy=0.1)
    torch.testing.assert_close(gradient, torch.tensor([[[-0.1, -0.1], [0, 0]]]))


@pytest.mark.parametrize(("target", "epochs"), [(None, 4), (0.305, 1), (0.309, 4)])
def test_an_epoch_beyond_the_target_divergence_is_the_last(target: float | None, epochs: int) -> None:
    """A log-ratio of log 2 has k3 = 2 - 1 - log 2 = 0.307; with a rate of 0 it stays there."""
    update = make_update(Table(1, 1, 1), lr=0.0, epochs=4, target_kl=target)
    _, figures = update.run([table_batch(torch.full((1, 1, 1), log(2)), torch.ones(1))], 0)
    assert figures["kl"] == pytest.approx(1 - log(2), abs=1e-6)
    assert figures["epochs"] == epochs


def test_figures_in_closed_form() -> None:
    gap = torch.tensor([0.0, 0.1, -0.5, log(1.5)])[:, None, None]
    _, figures = make_update(Table(4, 1, 1)).run([table_batch(gap, torch.tensor([1.0, 1, 1, 1]))], 0)
    ratio = gap.exp()
    assert figures["clip_share"] == pytest.approx(0.5)
    assert figures["worst_ratio"] == pytest.approx(0.5)
    assert figures["policy_loss"] == pytest.approx(-float(ratio.clamp(max=1.2).mean()))
    assert figures["kl"] == pytest.approx(float((ratio - 1 - gap).mean()))


def minibatches(seed: int = 0, iteration: int = 3, epoch: int = 1, rows: int = 50, **options) -> list[list[int]]:
    update = make_update(Table(64), seed=seed, minibatch=16, **options)
    return [part.tolist() for part in update.minibatches(torch.arange(rows), 4, iteration, epoch)]


def test_each_epoch_has_every_row_once_in_a_new_order() -> None:
    orders = [minibatches(*key) for key in [(0, 3, 1), (0, 3, 2), (0, 4, 1), (1, 3, 1)]]
    for order in orders:
        assert sorted(chain(*order)) == list(range(50))
        assert [*chain(*order)] != list(range(50))
    assert len({str(order) for order in orders}) == 4


def test_the_order_is_a_function_of_seed_iteration_and_epoch_alone() -> None:
    torch.manual_seed(1)
    expected = minibatches()
    update = make_update(Table(64), minibatch=16)
    for iteration, epoch in [(9, 0), (2, 2)]:
        list(update.minibatches(torch.arange(50), 4, iteration, epoch))
        torch.manual_seed(iteration)
    assert [part.tolist() for part in update.minibatches(torch.arange(50), 4, 3, 1)] == expected


@pytest.mark.parametrize("seed", [2**31 - 1, 2**63 - 1])
def test_any_seed_will_do(seed: int) -> None:
    assert sorted(chain(*minibatches(seed))) == list(range(50))


def test_ranks_take_equally_many_steps_whatever_they_lost() -> None:
    """Minibatches of 16 over both; the steps are collective, so their number may not differ."""

    def counts(ranks) -> list[int]:
        update = make_update(Table(64), ranks, minibatch=16)
        parts = [update.parts(torch.arange(rows[ranks.rank])) for rows in ((64, 64), (64, 0), (1, 0), (0, 0))]
        assert [len(list(update.minibatches(torch.arange(7), count, 0, 0))) for count in parts] == parts
        return parts

    assert on_ranks(counts) == [[8, 4, 1, 1]] * 2
    orders = on_ranks(lambda ranks: minibatches(ranks=ranks))
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("iteration", "share"), [(0, 1.0), (50, 0.65), (100, 0.3)])
def test_the_learning_rate_falls_linearly_whatever_came_before(iteration: int, share: float) -> None:
    """Adam's first step has the length of the learning rate."""
    actor = Table(1, 1, 1)
    update = make_update(actor, lr=0.1, lr_final=0.3)
    for other in (99, 0, iteration):
        update.anneal(other)
    update.run([table_batch(torch.zeros(1, 1, 1), torch.ones(1))], iteration)
    assert actor.theta.item() == pytest.approx(0.1 * share, rel=1e-4)


def test_the_learning_rate_rises_over_the_first_updates() -> None:
    actor = Table(1, 1, 1)
    update = make_update(actor, lr=0.1, warmup_updates=4)
    update.run([table_batch(torch.zeros(1, 1, 1), torch.ones(1))], 0)
    assert actor.theta.item() == pytest.approx(0.1 / 4, rel=1e-4)


@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_the_noise_level_falls_late_whatever_came_before(sampler: str) -> None:
    actor = make_actor(sampler)
    start = actor.sampler.noise_level
    update = make_update(actor, noise_final=0.4, noise_decay_from=0.5)
    for iteration, share in [(99, 0.412), (0, 1), (50, 1), (75, 0.7), (20, 1)]:
        update.anneal(iteration)
        assert actor.sampler.noise_level == pytest.approx(start * share)


def test_the_noise_level_stays_by_default() -> None:
    actor = make_actor("hybrid")
    start = actor.sampler.noise_level
    update = ClippedUpdate(ClippedConfig(), actor, Ranks(), 0, 100)
    for iteration in (0, 51, 99):
        update.anneal(iteration)
        assert actor.sampler.noise_level == start


@pytest.mark.parametrize("sampler", ["hybrid", "full", "noise"])
def test_the_first_minibatch_has_ratio_one(sampler: str) -> None:
    """To the bit on the batch that acted, also through the buffer and at an annealed noise level."""
    actor = make_actor(sampler)
    actor.sampler.noise_level *= 0.6
    rollout = make_rollout(actor, decisions=1, num_envs=7)
    batch = as_batch(rollout, torch.randn(1, 7))
    actor.sampler.noise_level *= 0.5
    totals = EpochSums()
    make_update(actor)._accumulate(batch, totals, None)
    assert totals.figures[FIGURES.index("worst_ratio")] == 0
    many = make_rollout(make_actor(sampler), decisions=6)
    _, figures = make_update(make_actor(sampler)).run([as_batch(many, torch.randn(6, 5))], 0)
    assert 0 <= figures["worst_ratio"] < 1e-3 and figures["clip_share"] == 0


def test_without_a_single_valid_row_nothing_moves() -> None:
    actor = make_actor()
    rollout, before = make_rollout(actor), weights(actor)
    rollout.valid[:] = False
    _, figures = make_update(actor, epochs=2, minibatch=8).run([as_batch(rollout, torch.randn(4, 5))], 0)
    assert changed(actor, before) == set()
    assert figures["kl"] == figures["grad_norm"] == 0


def test_the_auxiliary_loss_reaches_perception_alone() -> None:
    actor = make_actor(auxiliary=True)
    rollout, before = make_rollout(actor), weights(actor)
    make_update(actor, auxiliary=1.0).run([as_batch(rollout, torch.zeros(4, 5))], 0)
    perception = {id(parameter) for parameter in actor.backbone.perception_parameters()}
    moved = changed(actor, before)
    assert moved and moved <= {name for name, parameter in actor.named_parameters() if id(parameter) in perception}
    before = weights(actor)
    make_update(actor, auxiliary=0.0).run([as_batch(rollout, torch.zeros(4, 5))], 0)
    assert changed(actor, before) == set()


def test_by_default_advantages_alone_teach() -> None:
    """No bonus for entropy and no auxiliary loss: where every advantage is 0, nothing moves."""
    actor = make_actor("noise", auxiliary=True)
    rollout, before = make_rollout(actor), weights(actor)
    make_update(actor).run([as_batch(rollout, torch.zeros(4, 5))], 0)
    assert changed(actor, before) == set()


def test_a_frozen_perception_has_no_auxiliary_loss() -> None:
    actor = make_actor(auxiliary=True, freeze_perception=True)
    rollout, before = make_rollout(actor), weights(actor)
    make_update(actor, auxiliary=1.0).run([as_batch(rollout, torch.zeros(4, 5))], 0)
    assert changed(actor, before) == set()


@pytest.mark.parametrize("sampler", ["hybrid", "noise"])
def test_a_frozen_perception_stays_to_the_bit(sampler: str) -> None:
    actor = make_actor(sampler, freeze_perception=True)
    rollout, before = make_rollout(actor), weights(actor)
    make_update(actor, epochs=3, minibatch=8, lr=0.01).run([as_batch(rollout, torch.randn(4, 5))], 0)
    frozen = {id(parameter) for parameter in actor.backbone.perception_parameters()}
    names = {name for name, parameter in actor.named_parameters() if id(parameter) in frozen}
    assert names and not changed(actor, before) & names
    assert len(changed(actor, before)) > 10


@pytest.mark.thorough
def test_state_and_load_continue_to_the_bit() -> None:
    """Weights and state after two updates, then a third in another object."""
    actors = [make_actor("noise"), make_actor("noise")]
    rollout = make_rollout(actors[0])
    batch = as_batch(rollout, torch.randn(4, 5))
    straight = make_update(actors[0], epochs=2, minibatch=8, warmup_updates=9)
    for iteration in range(2):
        straight.run([batch], iteration)
    resumed = make_update(actors[1], epochs=2, minibatch=8, warmup_updates=9)
    actors[1].load_state_dict(actors[0].state_dict())
    resumed.load({name: value.clone() for name, value in straight.state().items()})
    for update in (straight, resumed):
        update.run([batch], 2)
    assert changed(actors[1], weights(actors[0])) == set()


def test_an_automatic_micro_batch_is_measured_before_the_first_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "find_affordable_rows", lambda *_: 3)
    actor, sizes = make_actor(), list[int]()
    evaluate, rollout = actor.evaluate, make_rollout(actor)
    actor.evaluate = lambda trace: (sizes.append(len(next(iter(trace.values())))), evaluate(trace))[1]
    make_update(actor, micro_batch="auto").run([as_batch(rollout, torch.zeros(4, 5))], 0)
    assert sizes == [3] * 6
