"""Adam over named groups: rates, one norm over all groups, and a state that continues to the bit."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from embodied_rl.actors.learning.optimiser import LightAdam, Optimiser
from embodied_rl.runtime.ranks.collective import Ranks


def make(rates: dict[str, float], grad_clip: float = 1e9) -> tuple[dict[str, nn.Parameter], Optimiser]:
    parameters = {name: nn.Parameter(torch.zeros(2)) for name in rates}
    return parameters, Optimiser({name: [value] for name, value in parameters.items()}, rates, grad_clip)


def test_each_group_moves_at_its_own_rate() -> None:
    """Adam's first step is as long as the rate, whatever the gradient; `share` scales all of them."""
    parameters, optimiser = make({"actor": 0.1, "critic": 0.01})
    for name, size in (("actor", 5.0), ("critic", 0.2)):
        parameters[name].grad = torch.tensor([size, -size])
    optimiser.step(Ranks(), share=0.5)
    assert parameters["actor"].tolist() == pytest.approx([-0.05, 0.05], rel=1e-5)
    assert parameters["critic"].tolist() == pytest.approx([-0.005, 0.005], rel=1e-5)


def test_one_norm_over_all_groups_is_clipped() -> None:
    parameters, optimiser = make({"a": 0.1, "b": 0.1}, grad_clip=1.0)
    parameters["a"].grad, parameters["b"].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert optimiser.step(Ranks()) == pytest.approx(5.0)
    assert parameters["a"].grad.tolist() == pytest.approx([0.6, 0])
    assert parameters["b"].grad.tolist() == pytest.approx([0, 0.8])


def test_moments_follow_adam() -> None:
    """Three steps by the formulas of arXiv:1412.6980 with β = (0.9, 0.95) and ε = 1e-8."""
    parameters, optimiser = make({"a": 0.1})
    first = second = expected = 0.0
    for t, gradient in enumerate((1.0, -3.0, 0.5), start=1):
        parameters["a"].grad = torch.full((2,), gradient)
        optimiser.step(Ranks())
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        expected -= 0.1 * (first / (1 - 0.9**t)) / ((second / (1 - 0.95**t)) ** 0.5 + 1e-8)
    assert parameters["a"].tolist() == pytest.approx([expected] * 2, rel=1e-5)


def test_a_parameter_that_does_not_learn_is_left_alone() -> None:
    learning, frozen = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    optimiser = Optimiser({"a": [learning, frozen]}, {"a": 0.1}, 1.0)
    learning.grad = torch.ones(1)
    optimiser.step(Ranks())
    assert (learning.item(), frozen.item()) == (pytest.approx(-0.1), 1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_no_number_stops_before_the_weights_change(value: float) -> None:
    parameters, optimiser = make({"a": 0.1})
    parameters["a"].grad = torch.tensor([value, 1.0])
    with pytest.raises(FloatingPointError, match=r"gradient is not a number.*algo\.lr"):
        optimiser.step(Ranks())
    assert parameters["a"].tolist() == [0, 0]


def test_state_and_load_continue_to_the_bit() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 2, 2)
    (one, straight), (other, resumed) = make({"a": 0.1, "b": 0.3}), make({"a": 0.1, "b": 0.3})

    def follow(parameters: dict[str, nn.Parameter], optimiser: Optimiser, part: torch.Tensor) -> None:
        for a, b in part:
            parameters["a"].grad, parameters["b"].grad = a.clone(), b.clone()
            optimiser.step(Ranks())

    follow(one, straight, gradients[:3])
    with torch.no_grad():
        for name in one:
            other[name].copy_(one[name])
    resumed.load({name: value.clone() for name, value in straight.state().items()})
    follow(one, straight, gradients[3:])
    follow(other, resumed, gradients[3:])
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert straight.state().keys() == resumed.state().keys()


SCRIPT = """
import sys
import torch
from embodied_rl.actors.learning.optimiser import LightAdam
weight = torch.nn.Parameter(torch.ones(3))
adam = LightAdam([{"params": [weight], "name": "all", "lr": 0.1}], betas=(0.9, 0.95), eps=1e-8)
weight.sum().backward()
adam.step()
adam.zero_grad()
adam.load_state_dict(adam.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def test_its_steps_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 3)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    settings = {"betas": (0.9, 0.95), "eps": 1e-8}
    kinds = (LightAdam, torch.optim.Adam)
    adams = [kind([{"params": [w], "lr": 0.01}], **settings) for kind, w in zip(kinds, weights, strict=True)]
    for _ in range(5):
        gradient = torch.randn(4, 3)
        for adam, weight in zip(adams, weights, strict=True):
            adam.zero_grad()
            (weight * gradient).sum().backward()
            adam.step()
        assert torch.equal(*weights)
    assert not torch.equal(weights[0], start)
    ours, theirs = (adam.state_dict()["state"][0] for adam in adams)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.thorough
@pytest.mark.process
def test_it_loads_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=False, timeout=200)
    assert done.returncode == 0
