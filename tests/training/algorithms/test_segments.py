"""Learning from a rollout that comes in segments: when gradients are taken, when steps, and of what."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from embodied_rl.rollout.buffer import Rollout
from embodied_rl.training.algorithms.batch import Batch, as_batch, concatenate_batches
from tests.support.experience import (
    Table,
    episodes,
    make_actor,
    make_grpo,
    make_ppo,
    make_rollout,
    make_update,
    table_batch,
    weights,
)

GAP = 0.3 * torch.randn(12, 2, 2, generator=torch.Generator().manual_seed(0))
ADVANTAGE = torch.randn(12, generator=torch.Generator().manual_seed(1))
MASK = torch.rand(12, 2, generator=torch.Generator().manual_seed(2)) < 0.6
PARTS = (slice(0, 2), slice(2, 9), slice(9, 12))


def segment(part: slice) -> Batch:
    """Some rows of the table."""
    made = table_batch(GAP[part], ADVANTAGE[part], MASK[part])
    made.trace["row"] = torch.arange(12)[part]
    return made


@pytest.mark.parametrize(
    ("minibatch", "steps"),
    [(8, [1, 2, 3, 4]), (4, [2, 4, 6, 8]), (16, [0, 1, 1, 2]), (32, [0, 0, 0, 1]), (27, [0, 0, 1, 2])],
)
def test_minibatches_are_as_large_as_asked_for(minibatch: int, steps: list[int]) -> None:
    """Four segments of 8 rows: the steps made when each has been learned from; what is left makes one more."""
    update = make_update(Table(8), minibatch=minibatch)
    made = list[int]()

    def segments() -> Iterator[Batch]:
        for number in range(4):
            if number:
                made.append(update.updates)
            yield table_batch(torch.zeros(8, 2, 2), torch.ones(8))

    update.run(segments(), 0)
    assert [*made, update.updates] == steps


EMPTY = slice(0, 0)


@pytest.mark.parametrize("parts", [(EMPTY, slice(0, 12)), (slice(0, 12), EMPTY), (slice(0, 5), EMPTY, slice(5, 12))])
def test_a_segment_without_anything_to_learn_from_changes_nothing(parts: tuple[slice, ...]) -> None:
    """Neither a step more, which momentum would make of no gradient, nor figures that are means over nothing."""
    tables, figures = [Table(12), Table(12)], list[dict[str, float]]()
    for table, batches in zip(tables, ([segment(slice(0, 12))], map(segment, parts)), strict=True):
        update = make_update(table, minibatch=12)
        figures.append(update.run(batches, 0)[1])
        assert update.updates == 1
    torch.testing.assert_close(tables[1].theta, tables[0].theta)
    for name in ("policy_loss", "kl", "clip_share", "grad_norm"):
        assert figures[1][name] == pytest.approx(figures[0][name], rel=1e-3), name
    assert figures[0]["kl"] > 0.01


def test_where_nothing_is_to_be_learned_nothing_changes() -> None:
    """Also after a step, whose momentum would go on."""
    table = Table(12)
    update = make_update(table, epochs=2)
    update.run([segment(slice(0, 12))], 0)
    before = update.state() | {"theta": table.theta.detach().clone()}
    before = {name: value.clone() for name, value in before.items()}
    _, figures = update.run([segment(EMPTY), segment(EMPTY)], 1)
    after = update.state() | {"theta": table.theta.detach()}
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert figures["epochs"] == 0 and not any(figures.values())


def test_the_remainder_of_an_epoch_makes_a_shorter_step() -> None:
    """Two rows after nine, of which the first step was made: a step of its own would be as long as that of eight."""
    update = make_update(Table(12), minibatch=8)
    taken, step = list[float](), update.optimiser.step

    def noting(ranks, share: float = 1.0, weight: float = 1.0) -> float:
        taken.append(share)
        return step(ranks, share, weight)

    update.optimiser.step = noting  # type: ignore[method-assign]
    update.run(map(segment, (slice(0, 9), slice(9, 11))), 0)
    assert taken == [1, pytest.approx(2 / 8)]


def test_a_segment_is_learned_from_before_the_next_is_waited_for() -> None:
    """Gradients of it are there, whether or not a step has been taken."""
    table = Table(12)
    update = make_update(table)

    def segments() -> Iterator[Batch]:
        for part in PARTS:
            if part.start:
                assert table.theta.grad is not None and table.theta.grad[: part.start].abs().max() > 0
            yield segment(part)

    update.run(segments(), 0)


def test_later_epochs_mix_all_rows() -> None:
    update = make_update(Table(12), epochs=3, minibatch=4)
    whole, figures = update.run(map(segment, PARTS), 0)
    assert update.updates == 2 + 1 + 3 + 3, "2 rows wait for the next 7, which make two minibatches; 3 make one"
    assert figures["epochs"] == 3
    assert torch.equal(whole.trace["row"], torch.arange(12)) and torch.equal(whole.rows, torch.arange(12))


def test_rows_of_joined_batches_are_those_that_may_be_learned_from() -> None:
    first, second = segment(slice(0, 4)), segment(slice(4, 8))
    first.rows, second.rows = torch.tensor([0, 3]), torch.tensor([1])
    assert concatenate_batches([first, second]).rows.tolist() == [0, 3, 5]
    assert concatenate_batches([first]) is first


def test_segments_of_a_rollout_are_joined_without_a_copy() -> None:
    """Every field of the whole is in its segments, in order; their ends are their own."""
    whole = make_rollout(make_actor(), decisions=6)
    first, second = parts = whole.segments(2)
    for name, tensor in whole.tensors().items():
        if name != "last_value":
            assert torch.equal(torch.cat([part.tensors()[name] for part in parts]), tensor), name
    first.last_value[:] = 1
    assert not second.last_value.any() and whole.segments(1) == [whole]
    batches = [as_batch(part, torch.zeros(3, 5)) for part in parts]
    joined, plain = concatenate_batches(batches), as_batch(whole, torch.zeros(6, 5))
    assert torch.equal(joined.rows, plain.rows) and torch.equal(joined.log_prob, plain.log_prob)
    for name, tensor in joined.trace.items():
        assert torch.equal(tensor, plain.trace[name]) and tensor.data_ptr() == plain.trace[name].data_ptr()
    swapped = concatenate_batches(batches[::-1])
    assert torch.equal(swapped.log_prob, torch.cat([plain.log_prob[15:], plain.log_prob[:15]]))
    assert all(torch.equal(t, torch.cat([plain.trace[n][15:], plain.trace[n][:15]])) for n, t in swapped.trace.items())


def rollouts(count: int) -> list[Rollout]:
    actor = make_actor()
    return [make_rollout(actor, seed=seed) for seed in range(count)]


def test_ppo_normalises_each_segment_and_fits_the_critic_on_all() -> None:
    ppo, seen = make_ppo(make_actor(), epochs=1), list[Batch]()
    run = ppo.policy.run

    def noting(batches, iteration, critic):
        return run((seen.append(batch) or batch for batch in batches), iteration, critic)

    ppo.policy.run = noting  # type: ignore[method-assign]
    ppo.update(rollouts(3), 0)
    for batch in seen:
        chosen = batch.advantage[batch.rows]
        assert float(chosen.mean()) == pytest.approx(0, abs=1e-5)
        assert float(chosen.std(correction=0)) == pytest.approx(1, abs=1e-4)
    (replayed,) = ppo._replay
    assert len(replayed[0]) == sum(len(batch.rows) for batch in seen)


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ["privileged", "prefix"])
@pytest.mark.parametrize("iteration", [0, 1], ids=["critic alone", "both"])
def test_a_single_segment_is_the_rollout(critic: str, iteration: int) -> None:
    """However it is handed over: a list, or a stream."""
    learned = list[dict[str, Tensor]]()
    for told in (rollouts(1), iter(rollouts(1))):
        actor = make_actor(critic=critic)
        make_ppo(actor, critic_warmup=1, epochs=2).update(told, iteration)
        learned.append(weights(actor))
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])


def test_grpo_compares_within_each_segment() -> None:
    """An outcome is rare in one segment and not in the other; joined, they are the mean over ratios."""
    parts, settings = [], {"group_size": 4, "success_low": 0.0, "success_high": 1.0}
    for outcomes, lengths in (([1, 0, 0, 0], [2, 4, 6, 2]), ([1, 1, 1, 0], [6, 6, 2, 1])):
        actor, rollout = episodes(outcomes, lengths, group_size=4)
        make_grpo(actor, **settings).update([rollout], 0)
        ratios = int((rollout.steps * rollout.valid).sum())
        parts.append((rollout, actor.theta.grad, ratios))
    (one, first, few), (other, second, many) = parts
    together, _ = episodes([0] * 4, [2] * 4)
    figures = make_grpo(together, **settings).update([one, other], 0)
    assert figures["kept_share"] == 1
    torch.testing.assert_close(together.theta.grad, (few * first + many * second) / (few + many))
