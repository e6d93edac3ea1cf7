"""Critics (value heads) on privileged state, on the prefix, or on the action expert's features.

Each reads one of three inputs, which `needs` names, and ignores the others.
"""

from collections.abc import Sequence
from enum import StrEnum

from torch import Tensor, nn

from embodied_rl.interfaces.errors import UserError


class CriticNeed(StrEnum):
    """The input that a critic reads."""

    PRIVILEGED = "privileged"
    PREFIX = "prefix"
    EXPERT = "expert"


def make_value_head(inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Make an MLP with one output; the last layer starts near zero (pi_RL, arXiv:2510.25889: N(0, 0.02), bias 0)."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.SiLU()]
        inputs = size
    last = nn.Linear(inputs, 1)
    nn.init.normal_(last.weight, std=0.02)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


class Critic(nn.Module):
    """A value head. `needs` names its input; `detach` keeps its gradient out of the backbone."""

    needs: CriticNeed
    detach: bool = True

    def forward(self, privileged: Tensor | None, pooled: Tensor | None, features: Tensor | None) -> Tensor:
        """Compute value float32 [n] from privileged [n, P], pooled prefix [n, F] or expert features [n, Hx, F]."""
        raise NotImplementedError


class PrivilegedCritic(Critic):
    """An asymmetric critic: reads the simulator's privileged state, which the policy never sees."""

    needs = CriticNeed.PRIVILEGED

    def __init__(self, dim: int, hidden: Sequence[int] = (192, 192)) -> None:
        """Create the critic. dim: P, entries of the privileged state; hidden: units of each layer.

        Raises:
            UserError: the simulator has no privileged state.
        """
        super().__init__()
        if dim < 1:
            raise UserError(
                "This simulator has no privileged state for policy.critic=privileged; try prefix.",
                code="privileged-state-missing",
            )
        self.head = make_value_head(dim, hidden)

    def forward(self, privileged: Tensor | None, pooled: Tensor | None, features: Tensor | None) -> Tensor:
        assert privileged is not None, "a privileged critic was called without privileged state"
        return self.head(privileged).squeeze(-1)


class PrefixCritic(Critic):
    """The critic V_vlm of pi_RL (section 4.3): reads the prefix, pooled over its valid tokens."""

    needs = CriticNeed.PREFIX

    def __init__(self, context_dim: int, hidden: Sequence[int] = (192, 192), detach: bool = True) -> None:
        """Create it. context_dim: width of `Context.pooled`; hidden: layer units; detach: no backbone gradient."""
        super().__init__()
        self.detach = detach
        self.norm = nn.LayerNorm(context_dim)
        self.head = make_value_head(context_dim, hidden)

    def forward(self, privileged: Tensor | None, pooled: Tensor | None, features: Tensor | None) -> Tensor:
        assert pooled is not None, "a prefix critic was called without the prefix"
        return self.head(self.norm(pooled.detach() if self.detach else pooled)).squeeze(-1)


class ExpertCritic(Critic):
    """The critic V_expert of pi_RL (section 4.3): reads the expert's features, averaged over the executed actions."""

    needs = CriticNeed.EXPERT

    def __init__(self, feature_dim: int, hidden: Sequence[int] = (192, 192), detach: bool = True) -> None:
        """Create it. feature_dim: width of the features; hidden: layer units; detach: no backbone gradient."""
        super().__init__()
        self.detach = detach
        self.norm = nn.LayerNorm(feature_dim)
        self.head = make_value_head(feature_dim, hidden)

    def forward(self, privileged: Tensor | None, pooled: Tensor | None, features: Tensor | None) -> Tensor:
        assert features is not None, "an expert critic was called without features"
        mean = features.mean(dim=1)
        return self.head(self.norm(mean.detach() if self.detach else mean)).squeeze(-1)


def make_critic(
    kind: str,
    *,
    privileged_dim: int,
    context_dim: int,
    feature_dim: int,
    hidden: Sequence[int] = (192, 192),
    detach: bool = True,
) -> Critic | None:
    """Make the critic that `policy.critic` names: "privileged", "prefix", "expert"; None for "none".

    Raises:
        UserError: the kind is unknown.
    """
    if kind == "none":
        return None
    if kind == CriticNeed.PRIVILEGED:
        return PrivilegedCritic(privileged_dim, hidden)
    if kind == CriticNeed.PREFIX:
        return PrefixCritic(context_dim, hidden, detach)
    if kind == CriticNeed.EXPERT:
        return ExpertCritic(feature_dim, hidden, detach)
    raise UserError(f"policy.critic={kind!r} is not one of privileged, prefix, expert, none.", code="critic-unknown")
