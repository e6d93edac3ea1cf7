"""Value heads: what each reads, and what it refuses."""

import pytest
import torch

from embodied_rl.actors.critics import Critic, CriticNeed, make_critic
from tests.support.refusals import refuses

SIZES = {"privileged_dim": 3, "context_dim": 8, "feature_dim": 6}


@pytest.mark.parametrize("kind", list(CriticNeed))
def test_each_critic_reads_its_own_input_alone(kind) -> None:
    """Changing one of the three inputs moves the value of the critic that reads it, and no other."""
    torch.manual_seed(0)
    critic = make_critic(kind, **SIZES)
    inputs = {
        CriticNeed.PRIVILEGED: torch.randn(5, 3),
        CriticNeed.PREFIX: torch.randn(5, 8),
        CriticNeed.EXPERT: torch.randn(5, 2, 6),
    }
    value = critic(*inputs.values())
    assert value.shape == (5,)
    assert value.dtype == torch.float32
    for name in CriticNeed:
        other = critic(*(inputs | {name: torch.randn_like(inputs[name])}).values())
        assert torch.equal(other, value) == (name != kind)


@pytest.mark.parametrize("kind", ["prefix", "expert"])
def test_a_critic_does_not_train_the_backbone_by_default(kind: str) -> None:
    pooled, features = torch.randn(5, 8, requires_grad=True), torch.randn(5, 2, 6, requires_grad=True)
    critic = make_critic(kind, **SIZES)
    critic(None, pooled, features).sum().backward()
    assert pooled.grad is None and features.grad is None
    assert all(parameter.grad is not None for parameter in critic.parameters())


def test_values_start_near_zero() -> None:
    """The last layer's deviation of 0.02 keeps first values far below a reward of 1."""
    torch.manual_seed(0)
    assert Critic(CriticNeed.PREFIX, 20)(None, torch.randn(512, 20), None).std() < 0.1


def test_none_is_no_critic_and_others_are_refused() -> None:
    """Methods without a critic, a misspelt kind, a simulator without privileged state."""
    assert make_critic("none", **SIZES) is None
    with refuses("critic-unknown", "privileged, prefix, expert, none"):
        make_critic("privilegd", **SIZES)
    with refuses("privileged-state-missing"):
        make_critic("privileged", **SIZES | {"privileged_dim": 0})
