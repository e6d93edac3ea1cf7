"""What a learning algorithm is to the engine: what it needs, which is asked before anything is built, and four verbs.

An author of an algorithm writes a frozen dataclass of settings, `Config`, and a class with the methods of `Algorithm`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from embodied_rl.interfaces.policy import Actor


@dataclass(frozen=True)
class Discount:
    """What later rewards count.

    Attributes:
        gamma: factor, at most 1.
        per: what it counts for: a control step, so that a decision of s steps discounts by gamma^s; or a decision.
    """

    gamma: float
    per: Literal["control_step", "decision"] = "control_step"


@dataclass(frozen=True)
class Needs:
    """What an algorithm asks of a run; trainer, planner and validation ask this, and know no algorithm by name.

    Attributes:
        learns_from: "rollouts" of the present policy, "replay" of any policy's experience, or "demonstrations".
        critic: whether its actor has a value head.
        group_size: episodes that start alike and stay together in one process.
        fresh_episodes: whether a rollout holds whole episodes, begun with it.
        epochs: passes over a rollout.
        warmup: iterations at the start whose update is shorter, because it leaves the policy alone.
        discount: of rewards; None where returns are compared as they are.
    """

    learns_from: Literal["rollouts", "replay", "demonstrations"] = "rollouts"
    critic: bool = False
    group_size: int = 1
    fresh_episodes: bool = False
    epochs: int = 1
    warmup: int = 0
    discount: Discount | None = None


class Algorithm(Protocol):
    """Learns from rollouts, the same on every rank.

    `Config` is a frozen dataclass of its settings, the keys `algo.<key>`. The class is called with an instance of it,
    the actor that learns, the ranks, the run's seed, and its number of iterations.
    """

    def prepare(self, iteration: int) -> None:
        """Set what depends on the iteration before its rollout is collected: learning rates, the strength of noise."""
        ...

    def update(self, segments: Iterable[Any], iteration: int) -> dict[str, float]:
        """Learn from the rollouts of an iteration as they come, usually a single one.

        Args:
            segments: `embodied_rl.rollout.buffer.Rollout`s; each stays as it is until the next one is asked for.
            iteration: counted from 0.

        Returns:
            Figures for the log, of this rank's rows; the same names on every rank.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """What an exact resume needs, as tensors."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        ...


class AlgorithmKind(Protocol):
    """The class of an algorithm, as the table of plug-ins names it."""

    Config: type[Any]

    @staticmethod
    def needs(config: Any) -> Needs:
        """What it asks of a run with such settings."""
        ...

    def __call__(self, config: Any, actor: Actor, ranks: Any, seed: int, iterations: int) -> Algorithm: ...


def join_states(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The states of an algorithm's parts as one: "<part>/<name>"."""
    return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}


def split_state(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The inverse of `join_states` for one part."""
    return {name.removeprefix(f"{part}/"): value for name, value in state.items() if name.startswith(f"{part}/")}
