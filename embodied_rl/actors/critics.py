"""Critics (value heads) on privileged state, on the prefix, or on the action expert's features."""

from collections.abc import Sequence
from enum import StrEnum

from torch import Tensor, nn

from embodied_rl.interfaces.errors import UserError


class CriticNeed(StrEnum):
    """The input that a critic reads.

    Attributes:
        PRIVILEGED: the simulator's privileged state, which the policy never sees (an asymmetric critic).
        PREFIX: the prefix, pooled over its valid tokens; V_vlm of pi_RL (arXiv:2510.25889, section 4.3).
        EXPERT: the expert's features, averaged over the executed actions; V_expert of pi_RL.
    """

    PRIVILEGED = "privileged"
    PREFIX = "prefix"
    EXPERT = "expert"


class Critic(nn.Module):
    """A value head that reads one of three inputs and ignores the others.

    The last layer starts near zero (pi_RL: N(0, 0.02), bias 0).
    """

    def __init__(self, needs: CriticNeed, inputs: int, hidden: Sequence[int] = (192, 192), detach: bool = True) -> None:
        """Create the critic.

        Args:
            needs: the input that it reads.
            inputs: width of that input.
            hidden: units of each layer.
            detach: keep its gradient out of the backbone.

        Raises:
            UserError: it needs privileged state, and the simulator has none.
        """
        super().__init__()
        if needs == CriticNeed.PRIVILEGED and inputs < 1:
            raise UserError(
                "This simulator has no privileged state for policy.critic=privileged; try prefix.",
                code="privileged-state-missing",
            )
        self.needs, self.detach = needs, detach
        self.norm = nn.Identity() if needs == CriticNeed.PRIVILEGED else nn.LayerNorm(inputs)
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(inputs, size), nn.SiLU()]
            inputs = size
        last = nn.Linear(inputs, 1)
        nn.init.normal_(last.weight, std=0.02)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(*layers, last)

    def forward(self, privileged: Tensor | None, pooled: Tensor | None, features: Tensor | None) -> Tensor:
        """Compute value float32 [n] from privileged [n, P], pooled prefix [n, F] or expert features [n, Hx, F]."""
        given = {CriticNeed.PRIVILEGED: privileged, CriticNeed.PREFIX: pooled, CriticNeed.EXPERT: features}[self.needs]
        assert given is not None, f"a critic on {self.needs} was called without it"
        given = given.mean(dim=1) if self.needs == CriticNeed.EXPERT else given
        return self.head(self.norm(given.detach() if self.detach else given)).squeeze(-1)


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
        UserError: the kind is unknown, or the simulator has no privileged state.
    """
    if kind == "none":
        return None
    sizes = {"privileged": privileged_dim, "prefix": context_dim, "expert": feature_dim}
    if kind not in sizes:
        raise UserError(
            f"policy.critic={kind!r} is not one of privileged, prefix, expert, none.", code="critic-unknown"
        )
    return Critic(CriticNeed(kind), sizes[kind], hidden, detach)
