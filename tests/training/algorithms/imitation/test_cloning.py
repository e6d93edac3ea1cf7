"""Supervised fine-tuning: its times, the optimum of its loss, and what each stage may touch."""

from typing import Any

import numpy as np
import pytest
import scipy  # which imports its parts when they are used
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.training.algorithms.imitation.cloning import (
    SFT,
    SFTConfig,
    conditional_flow_matching_loss,
    draw_flow_times,
    perceive_once,
)
from embodied_rl_policies.pocket import Pocket
from tests.support.experience import MODEL_DIM, SMALL, changed, weights


def test_times_have_openpi_s_distribution() -> None:
    """Beta(1.5, 1) · 0.999 + 0.001."""
    times = draw_flow_times(20_000, torch.Generator().manual_seed(0)).double().numpy()
    assert scipy.stats.kstest(times, scipy.stats.beta(1.5, 1, loc=0.001, scale=0.999).cdf).pvalue > 0.01
    assert times.min() >= 0.001 and times.max() <= 1


class Oracle(FlowBackbone):
    """The conditional velocity of actions drawn from N(mean, std²), scaled and shifted by two parameters.

    With x = t n + (1 - t) a the pair (n - a, x) is Gaussian: E[n - a | x] = -m + (t - (1 - t) s²) / Var(x) · (x - E x).
    """

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.mean, self.std = mean, std
        self.scale, self.shift = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.zeros(()))

    def encode(self, inputs: PolicyInput) -> Context:
        return Context({}, inputs.state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        t = t[:, None, None]
        variance = t.square() + ((1 - t) * self.std).square()
        slope = (t - (1 - t) * self.std**2) / variance
        return self.scale * (slope * (x - (1 - t) * self.mean) - self.mean) + self.shift, x


@pytest.mark.parametrize("draws", [1, 8])
def test_the_loss_is_least_at_the_conditional_velocity(draws: int) -> None:
    """There its gradient vanishes but for sampling error, and a shift by c costs c²."""
    rows, generator = 40_000 // draws, torch.Generator().manual_seed(1)
    oracle = Oracle(mean=0.7, std=0.4)
    actions = 0.7 + 0.4 * torch.randn(rows, 2, 3, generator=generator)
    inputs = PolicyInput({}, torch.zeros(rows, 1), torch.zeros(rows, 1, dtype=torch.int64))

    def loss() -> Tensor:
        return conditional_flow_matching_loss(oracle, inputs, actions, torch.Generator().manual_seed(2), None, draws)

    least = loss()
    least.backward()
    assert abs(oracle.shift.grad.item()) < 0.02 and abs(oracle.scale.grad.item()) < 0.02
    with torch.no_grad():
        oracle.shift.fill_(0.5)
        assert loss().item() == pytest.approx(least.item() + 0.25, abs=0.01)
        oracle.shift.fill_(-0.5)
        assert loss().item() == pytest.approx(least.item() + 0.25, abs=0.01)


def test_each_row_is_encoded_once_for_all_of_its_draws() -> None:
    """Loss and gradient are the means of single draws; actions that are padded count in none of them."""
    oracle, encoded = Oracle(mean=0.1, std=0.5), list[int]()
    encode = oracle.encode
    oracle.encode = lambda inputs: (encoded.append(len(inputs)), encode(inputs))[1]  # type: ignore[method-assign]
    actions, padding = torch.randn(3, 2, 4), torch.tensor([[False, True], [False, False], [True, True]])
    inputs = PolicyInput({}, torch.arange(3.0)[:, None], torch.zeros(3, 1, dtype=torch.int64))
    generator = torch.Generator().manual_seed(3)
    loss = conditional_flow_matching_loss(oracle, inputs, actions, generator, padding, draws=5)
    assert encoded == [3]
    generator = torch.Generator().manual_seed(3)
    time = draw_flow_times(15, generator).reshape(5, 3)
    noise = torch.randn(15, 2, 4, generator=generator).reshape(5, 3, 2, 4)
    t = time[..., None, None]
    x = t * noise + (1 - t) * actions
    context = Context({}, torch.zeros(3, 1))
    each = [(oracle.velocity(x[d], time[d], context)[0] - (noise[d] - actions)).square()[~padding] for d in range(5)]
    torch.testing.assert_close(loss, torch.stack(each).mean())


@pytest.mark.parametrize("draws", [1, 4])
def test_errors_count_by_the_weight_of_their_row(draws: int) -> None:
    oracle, actions = Oracle(mean=0.1, std=0.5), torch.randn(3, 2, 4)
    inputs = PolicyInput({}, torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.int64))

    def loss(*weight: float) -> float:
        generator = torch.Generator().manual_seed(3)
        given = torch.tensor(weight)
        return float(conditional_flow_matching_loss(oracle, inputs, actions, generator, None, draws, weight=given))

    each = [loss(*row) for row in torch.eye(3).tolist()]
    assert min(each) > 0 and loss(1, 1, 1) == pytest.approx(sum(each))
    assert loss(0.5, 3, 2) == pytest.approx(0.5 * each[0] + 3 * each[1] + 2 * each[2])


def spots(rows: int) -> tuple[PolicyInput, Tensor, Tensor]:
    """Images with one bright spot; where it is, in -1…1; and chunks that point there, or away when told "left"."""
    random = np.random.default_rng(0)
    place = random.integers(2, 14, (rows, 2))
    images = np.zeros((rows, 16, 16, 3), np.uint8)
    images[np.arange(rows), place[:, 1], place[:, 0]] = 255
    position = torch.from_numpy(place / 7.5 - 1).float()
    tokens = torch.from_numpy(random.integers(1, 3, (rows, 1)))
    inputs = PolicyInput({"front": torch.from_numpy(images)}, torch.zeros(rows, 2), tokens)
    actions = torch.zeros(rows, SMALL.horizon, MODEL_DIM)
    actions[:, :, :2] = (position * (2 * tokens - 3))[:, None]
    return inputs, position, actions


def make_sft(**settings: Any) -> tuple[Pocket, SFT, list[tuple[str, int, dict[str, float]]]]:
    """A pocket with a localisation head, its teacher, and what that reports."""
    torch.manual_seed(0)
    backbone, reports = Pocket(SMALL, MODEL_DIM, 2, ("front",), (16, 16), 3, 1, ("x", "y")), []
    plain = {"localise_steps": 300, "localise_batch": 64, "localise_lr": 5e-3, "steps": 400, "batch": 64, "lr": 5e-3}
    return backbone, SFT(SFTConfig(**(plain | settings)), backbone, 0, lambda *report: reports.append(report)), reports


def localisation_error(backbone: Pocket, inputs: PolicyInput, position: Tensor) -> float:
    with torch.no_grad():
        predicted = backbone.predict_auxiliary(backbone.perceive(inputs))
    return float((predicted - position).abs().mean())


def cloning_error(backbone: Pocket, inputs: PolicyInput, actions: Tensor) -> float:
    """Mean distance of the deployed chunk from the demonstrated one."""
    with torch.no_grad():
        context = backbone.encode(inputs)
        start = torch.randn(actions.shape, generator=torch.Generator().manual_seed(3))
        chosen = ode_sample(lambda x, t: backbone.velocity(x, t, context), start, 4)
    return float((chosen - actions)[..., :2].abs().mean())


@pytest.mark.thorough
def test_localising_then_cloning() -> None:
    """Perception learns in the first stage alone, and stays to the bit in the second; both reach their targets."""
    inputs, position, actions = spots(256)
    backbone, sft, reports = make_sft(steps=1000, draws=4)  # with fewer, one in three networks still mixes up the words
    perception = {id(parameter) for parameter in backbone.perception_parameters()}
    seeing = {name for name, parameter in backbone.named_parameters() if id(parameter) in perception}
    before, error = weights(backbone), localisation_error(backbone, inputs, position)
    sft.localise(inputs, position)
    assert changed(backbone, before) <= seeing
    assert localisation_error(backbone, inputs, position) < min(0.08, 0.3 * error)
    before, error = weights(backbone), cloning_error(backbone, inputs, actions)
    sft.clone(inputs, actions)
    assert not changed(backbone, before) & seeing
    assert cloning_error(backbone, inputs, actions) < min(0.2, 0.4 * error)
    steps = [("localise", 200), ("localise", 300), *(("clone", step) for step in range(200, 1001, 200))]
    assert [(stage, step) for stage, step, _ in reports] == steps


def test_fine_tuning_may_touch_perception() -> None:
    inputs, _, actions = spots(32)
    backbone, sft, _ = make_sft(steps=0, finetune_steps=2)
    before = weights(backbone)
    sft.clone(inputs, actions)
    assert any(name.startswith("stem.") for name in changed(backbone, before))


def test_cached_features_equal_perception() -> None:
    """Over several batches of the cache, in order."""
    inputs, _, _ = spots(600)
    backbone, _, _ = make_sft()
    with torch.no_grad():
        expected = backbone.perceive(inputs)
    cached = perceive_once(backbone, inputs)
    assert cached.images == {}
    for name, value in expected.items():
        torch.testing.assert_close(cached.features[name], value)


def test_the_same_seed_teaches_the_same() -> None:
    inputs, position, actions = spots(32)
    learned = []
    for _ in range(2):
        backbone, sft, _ = make_sft(localise_steps=3, steps=3, finetune_steps=2)
        sft.localise(inputs, position)
        sft.clone(inputs, actions)
        learned.append(weights(backbone))
    assert all(torch.equal(value, learned[1][name]) for name, value in learned[0].items())


class Elsewhere(FlowBackbone):
    """A network on a device that computes nothing; notes where what it is given lies."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), device="meta"))
        self.seen = set[str]()

    def encode(self, inputs: PolicyInput) -> Context:
        self.seen |= {tensor.device.type for tensor in (*inputs.images.values(), inputs.state, inputs.tokens)}
        return Context({}, inputs.state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        self.seen |= {x.device.type, t.device.type}
        return self.scale * x, x

    def perception_parameters(self) -> list[torch.nn.Parameter]:
        return []


def test_it_learns_where_the_network_lives() -> None:
    """Up to the loss, which nobody can read there; that its targets lie elsewhere would have been an error before."""
    network = Elsewhere()
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        SFT(SFTConfig(steps=0, finetune_steps=1), network, 0, print).clone(*spots(8)[::2])
    assert network.seen == {"meta"}


@pytest.mark.thorough
def test_products_in_bfloat16_teach_nearly_the_same() -> None:
    """Other bits, the same loss within the precision of eight bits."""
    inputs, _, actions = spots(64)
    losses, kept = [], []
    for autocast in (False, True):
        backbone, _, _ = make_sft()
        sft = SFT(
            SFTConfig(steps=0, finetune_steps=200, batch=16),
            backbone,
            0,
            lambda *said: losses.append(said[2]),
            autocast=autocast,
        )
        sft.clone(inputs, actions)
        kept.append(weights(backbone))
        assert all(value.dtype == torch.float32 for value in kept[-1].values())
    assert not torch.equal(kept[0]["action_out.weight"], kept[1]["action_out.weight"])
    assert losses[1]["loss"] == pytest.approx(losses[0]["loss"], rel=0.02)
