"""Every term of the loss is a mean over entries of its own kind, however the rows are spread and cut.

Terms are means over ratios, executed actions or rows, whose shares differ from part to part: of the first
rows, nearly all actions are a human's. The reference is one backward pass through the formulas, over all rows.
"""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.interfaces.policy import Actor, Evaluation, Trace
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from tests.support.experience import make_update, on_ranks

LEVELS = ["token", "action", "chunk"]
ENTROPY, AUXILIARY = 0.05, 0.7
ROWS, FEATURES = 40, 5
Gradients = dict[str, Tensor]


class Shared(Actor):
    """Normal actions, a value and a prediction of one hidden layer, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 6, dtype=torch.float64)
        self.head = nn.Linear(6, 3 * 2 * 2 + 2, dtype=torch.float64)
        self.critic = nn.Linear(6, 1, dtype=torch.float64)
        generator = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)

    def evaluate(self, trace: Trace) -> Evaluation:
        seen = self.hidden(trace["state"]).tanh()
        mean, log_std = self.head(seen)[:, :12].view(-1, 3, 2, 2).unbind(-1)
        normal = torch.distributions.Normal(mean, (0.3 * log_std).exp())
        value, predicted = self.critic(seen).squeeze(1), self.head(seen)[:, 12:]
        return Evaluation(normal.log_prob(trace["action"]), normal.entropy(), value, predicted, trace["truth"])

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        learned = [*self.hidden.parameters(), *self.head.parameters()]
        return {"actor": learned, "critic": [*self.critic.parameters()]}


def experience() -> tuple[Shared, Batch]:
    """An actor away from the weights that chose, and 40 rows; only the first of the first twelve acted, once."""
    generator = torch.Generator().manual_seed(6)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(ROWS, 3, generator=generator) < 0.7
    mask[:12] = False
    mask[0, 1] = True
    actor, trace = Shared(), {"state": draw(ROWS, FEATURES), "action": draw(ROWS, 3, 2), "truth": draw(ROWS, 2)}
    with torch.no_grad():
        recorded = actor.evaluate(trace).log_prob + 0.2 * draw(ROWS, 3, 2)
    rows, advantage, returns = torch.arange(ROWS), draw(ROWS), 2 * draw(ROWS)
    return actor, Batch(trace, recorded, mask, advantage, rows, value=torch.zeros(ROWS), returns=returns)


def mean_square(batch: Batch, value: Tensor) -> Tensor:
    return (value - batch.returns).square().mean() if len(value) else value.sum()


def by_formula(actor: Shared, batch: Batch, level: str) -> tuple[Gradients, dict[str, float]]:
    """Gradients and figures of the loss, with boolean indices instead of masks and counts."""
    now = actor.evaluate(batch.trace)
    gap = torch.where(batch.mask[..., None], now.log_prob - batch.log_prob, 0)
    chosen = batch.mask.any(dim=1)
    log_ratio = {"token": gap[batch.mask].flatten(), "action": gap.sum(-1)[batch.mask]}
    log_ratio = log_ratio | {"chunk": gap.sum((1, 2))[chosen]}
    actions = batch.advantage[:, None].expand(batch.mask.shape)[batch.mask]
    advantage = {"token": actions.repeat_interleave(gap.shape[2]), "action": actions, "chunk": batch.advantage[chosen]}
    ratio = log_ratio[level].exp()
    policy = -torch.minimum(ratio * advantage[level], ratio.clamp(0.8, 1.2) * advantage[level]).mean()
    error, entropy = (now.auxiliary - now.auxiliary_target).abs(), now.entropy[batch.mask].mean()
    auxiliary = torch.where(error < 0.1, error.square() / 0.2, error - 0.05).mean()
    value = (now.value - batch.returns).square().mean()
    actor.zero_grad()
    (policy - ENTROPY * entropy + AUXILIARY * auxiliary + value).backward()
    outside = ((ratio < 0.8) | (ratio > 1.2)).float().mean()
    kl = (log_ratio["chunk"].exp() - 1 - log_ratio["chunk"]).mean()
    figures = {"policy_loss": policy, "value_loss": value, "kl": kl, "clip_share": outside, "entropy": entropy}
    return gradients_of(actor), {name: float(figure.detach()) for name, figure in figures.items()}


def gradients_of(actor: Shared) -> Gradients:
    return {name: p.grad.clone() for name, p in actor.named_parameters() if p.grad is not None}


def learned(
    actor: Shared, ranks: Ranks, level: str, segments: list[Batch], micro_batch: int | None = None
) -> tuple[Gradients, dict]:
    """Gradients and figures of the one step that all segments of all ranks make, with a copy of the actor."""
    actor = deepcopy(actor)
    update = make_update(
        actor, ranks, lr=0.0, level=level, entropy=ENTROPY, auxiliary=AUXILIARY,
        micro_batch=micro_batch,
    )  # fmt: skip
    update.value_loss = mean_square
    critic = Optimiser({"critic": actor.parameter_groups()["critic"]}, {"critic": 0.0}, 1e9)
    _, figures = update.run(segments, 0, critic)
    assert update.updates == 1
    return gradients_of(actor), figures


def assert_same(found: tuple[Gradients, dict], wanted: tuple[Gradients, dict]) -> None:
    assert found[0].keys() == wanted[0].keys()
    for name, gradient in wanted[0].items():
        assert gradient.abs().max() > 0.01
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-10, atol=1e-12, msg=name)
    assert {name: found[1][name] for name in wanted[1]} == pytest.approx(wanted[1], rel=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("level", LEVELS)
def test_one_process_takes_the_gradient_of_the_formulas(level: str, micro_batch: int | None) -> None:
    actor, batch = experience()
    wanted = by_formula(actor, batch, level)
    assert 0.02 < wanted[1]["clip_share"] < 0.9
    found = learned(actor, Ranks(), level, [batch], micro_batch)
    assert_same(found, wanted)
    assert found[1]["worst_ratio"] == pytest.approx(learned(actor, Ranks(), level, [batch])[1]["worst_ratio"])


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("level", LEVELS)
def test_segments_on_two_ranks_add_up_to_the_gradient_of_all_rows(level: str, micro_batch: int | None) -> None:
    """One rank has nothing in one segment, and only a human's actions in another."""
    actor, batch = experience()
    wanted = by_formula(actor, batch, level)
    shares = [[range(1, 5), range(30, 32), range(0)], [range(0, 1), range(5, 30), range(32, ROWS)]]
    parts = [[batch.select(torch.tensor(list(rows), dtype=torch.int64)) for rows in mine] for mine in shares]
    for found in on_ranks(lambda ranks: learned(actor, ranks, level, parts[ranks.rank], micro_batch)):
        assert_same(found, wanted)


def test_a_rank_with_only_a_humans_actions_teaches_critic_and_perception() -> None:
    """Its rows count among all rows, although it has no ratio."""
    actor, batch = experience()
    wanted = by_formula(actor, batch, "action")
    none = (~batch.mask.any(dim=1)).nonzero().squeeze(1)
    some = batch.mask.any(dim=1).nonzero().squeeze(1)
    assert len(none) > 5
    parts = [batch.select(none), batch.select(some)]
    for found in on_ranks(lambda ranks: learned(actor, ranks, "action", [parts[ranks.rank]])):
        assert_same(found, wanted)
