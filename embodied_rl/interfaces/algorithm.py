"""The interface of learning algorithms: their requirements, known before anything is built, and four methods.

The author of an algorithm writes a frozen dataclass of settings, `Config`, and a class with the methods of `Algorithm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from embodied_rl.interfaces.policy import Actor


@dataclass(frozen=True)
class Discount:
    """The discounting of later rewards.

    Attributes:
        gamma: discount factor, at most 1.
        per: time unit of gamma: "control_step" (a decision of s steps discounts by gamma^s) or "decision".
    """

    gamma: float
    per: Literal["control_step", "decision"] = "control_step"


@dataclass(frozen=True)
class Needs:
    """The requirements of an algorithm; trainer, planner and validation read them and know no algorithm by name.

    Attributes:
        learns_from: "rollouts" of the present policy; "replay", the stored experience of this and earlier policies, to
            which each rollout is added; or "demonstrations".
        explores: whether the sampler's exploring policy collects; otherwise the deployed policy does, if it is random.
        critic: whether the actor needs a value head.
        fixed_noise: whether the sampler's noise must not be learned.
        group_size: episodes that start alike and stay together in one process.
        fresh_episodes: whether a rollout holds whole episodes that begin with the rollout.
        epochs: passes over a rollout.
        warmup: iterations at the start with a shorter update, because it does not train the policy.
        discount: discounting of rewards; None if returns are compared without it.
        success: whether it learns only from successful episodes.
        stores: entries of a decision's trace that the replay storage keeps, too.
        start_noise: settings of the policy over the flow's start noise that learns while the network is frozen, an
            `embodied_rl.actors.start_noise.StartNoiseSettings`; None: the network learns.
        updates_per_decision: optimiser steps for each decision that an iteration collects, where their number follows
            from that (update-to-data ratio); None for another number.
        minibatch: rows of an optimiser step over all ranks, the setting `algo.minibatch`; None if a step has no such
            size.
        conditions: texts that the algorithm adds to instructions, such as "advantage: positive". A policy that reads
            instructions word by word gets their words.
    """

    learns_from: Literal["rollouts", "replay", "demonstrations"] = "rollouts"
    explores: bool = True
    critic: bool = False
    fixed_noise: bool = False
    group_size: int = 1
    fresh_episodes: bool = False
    epochs: int = 1
    warmup: int = 0
    discount: Discount | None = None
    updates_per_decision: float | None = None
    minibatch: int | None = None
    conditions: tuple[str, ...] = ()
    success: bool = False
    stores: tuple[str, ...] = ()
    start_noise: Any = None

    def explores_with(self, actor: Actor) -> bool:
        """Return whether the exploring policy of an actor collects: always where its deployed policy is not random."""
        return self.explores or not actor.random_deployed

    def count_decisions(self, decisions: int, horizon: int, executed: int) -> int:
        """Return the decisions of each environment in a rollout: `decisions`, or those of the longest whole episode.

        Args:
            decisions: as configured, `train.decisions`.
            horizon: control steps of the longest episode.
            executed: control steps of a decision.
        """
        return -(-horizon // executed) if self.fresh_episodes else decisions


class Algorithm(Protocol):
    """An algorithm that learns from rollouts or from replay, identically on every rank.

    `Config` is a frozen dataclass of the settings, the keys `algo.<key>`. The class is called with an instance of
    `Config`, the actor that learns, the ranks, the run's seed, and the number of iterations.
    """

    def prepare(self, iteration: int) -> None:
        """Set learning rates, noise level and so on for an iteration, before its rollout is collected."""
        ...

    def update(self, experience: Any, /, iteration: int) -> dict[str, float]:
        """Learn from the experience of one iteration.

        Args:
            experience: for an algorithm that learns from rollouts, an iterable of
                `embodied_rl.rollout.buffer.Rollout`s, usually of a single one; each stays unchanged until the next one
                is requested. For one that learns from replay, an `embodied_rl.rollout.replay.experience.Replay`, to
                which the iteration's rollout has been added.
            iteration: number of the iteration, from 0.

        Returns:
            Metrics for the log, computed on this rank's rows; the names are the same on every rank.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the state that an exact resume needs, as tensors."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        ...


class AlgorithmKind(Protocol):
    """The type of an algorithm's class, which the table of plug-ins names."""

    Config: type[Any]

    @staticmethod
    def needs(config: Any) -> Needs:
        """Return the requirements of the algorithm under these settings."""
        ...

    def __call__(self, config: Any, actor: Actor, ranks: Any, seed: int, iterations: int) -> Algorithm: ...


def join_states(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the states of an algorithm's parts into one, with names "<part>/<name>"."""
    return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}


def split_state(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the state of one part from a state that `join_states` made."""
    return {name.removeprefix(f"{part}/"): value for name, value in state.items() if name.startswith(f"{part}/")}
