"""The policy that a server asks: requests in batches, weights that are replaced between two of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.policy_server.request import PolicyRequest
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation

LIKE = 4
"""Batches are filled up to a multiple of this many rows: matrix libraries compute other numbers of rows with other
operations, so that an answer's last bits would depend on the questions of other clients."""


class Infers(Protocol):
    """What is served; an `Actor` is one."""

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> np.ndarray: ...


class Unanswered(Exception):  # noqa: N818 - it says what happened
    """A question that is not answered for a reason that lies with the server; `code` ends the connection."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ServedWeights:
    """A policy with its present weights.

    Attributes:
        policy: answers.
        spec: what it expects and returns.
        version: of the weights, counted in updates; 0 where nobody says.
        identity: further plain values about it, such as the hash of its file.
    """

    policy: Infers
    spec: PolicyDescription
    version: int = 0
    identity: dict[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        actions: float32 [executed, A], or [n, executed, A] for rows; H where the whole chunk is asked for.
        version: of the weights that chose them.
        seconds: of the call of the policy.
    """

    actions: NDArray[np.float32]
    version: int
    seconds: float


class ServedPolicy:
    """Answers requests with the newest weights.

    Args:
        weights: the first.
    """

    def __init__(self, weights: ServedWeights) -> None:
        self.weights = weights

    def replace(self, weights: ServedWeights) -> None:
        """Answer with other weights from the next call on.

        Raises:
            UserError: they are of another robot, or a policy of other sizes.
        """
        if weights.spec != self.weights.spec:
            raise UserError("the new weights belong to another robot, or a policy of other sizes")
        self.weights = weights

    def answer(self, requests: Sequence[PolicyRequest], fill: bool) -> list[Answer]:
        """Answer requests of one shape, in their order.

        Args:
            requests: of any clients.
            fill: compute a multiple of `LIKE` rows.

        Raises:
            UserError: a request does not fit.
            RuntimeError: the policy chose NaN or infinity.
        """
        weights, began = self.weights, time.perf_counter()
        rows = sum(len(request.observation) for request in requests)
        order = [*range(rows), *[0] * (-rows % LIKE if fill else 0)]
        first = requests[0]
        parts = [request.observation for request in requests]
        if padding := order[rows:]:
            parts.append(first.observation.select(padding))
        actions = weights.policy.infer(
            Observation.concatenate(parts),
            None if first.seed is None else _join_keys(requests, first.seed, order),
            _join([request.prefix for request in requests], order),
            _join([request.committed for request in requests], order),
            whole=first.whole,
            strategy=first.strategy,
        )[:rows]
        if not np.isfinite(actions).all():
            raise RuntimeError("the policy chose NaN or infinity: its weights are of no use")
        seconds = time.perf_counter() - began
        return [Answer(part, weights.version, seconds) for part in _split(actions, requests)]


def _join_keys(requests: Sequence[PolicyRequest], seed: int, order: Sequence[int]) -> NoiseKeys:
    episode, decision = (
        np.concatenate([getattr(request, name) for request in requests])[order] for name in ("episode", "decision")
    )
    return NoiseKeys(seed, episode, decision)


def _join(parts: Sequence[NDArray[Any] | None], order: Sequence[int]) -> NDArray[Any] | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there)[order] if there else None


def _split(actions: NDArray[np.float32], requests: Sequence[PolicyRequest]) -> list[NDArray[np.float32]]:
    ends = np.cumsum([len(request.observation) for request in requests])[:-1]
    parts = np.split(actions, ends)
    return [part[0] if request.single else part for part, request in zip(parts, requests, strict=True)]
