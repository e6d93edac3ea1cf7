"""The served policy: inference in batches, with weights that can be replaced between two batches."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.policy_client.request import PolicyRequest
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation

ROW_MULTIPLE = 4
"""Batches are padded to a multiple of this number of rows: matrix libraries choose their operations by the number of
rows, so that the last bits of a result would depend on the requests of other clients."""


class SupportsInfer(Protocol):
    """A policy with `infer`, such as an `Actor`."""

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


class InferenceFailed(Exception):  # noqa: N818 - it says what happened
    """Inference failed or timed out on the server; `close_code` is the websocket close code (RFC 6455)."""

    def __init__(self, message: str, close_code: int) -> None:
        super().__init__(message)
        self.close_code = close_code


@dataclass(frozen=True)
class ServedWeights:
    """A policy with its current weights.

    Attributes:
        policy: the policy.
        spec: its description.
        version: number of updates of the weights; 0 if unknown.
        identity: further plain values about the policy, such as the hash of its file.
    """

    policy: SupportsInfer
    spec: PolicyDescription
    version: int = 0
    identity: dict[str, Any] | None = None


@dataclass(frozen=True)
class PolicyResponse:
    """Response to a `PolicyRequest`.

    Attributes:
        actions: float32 [executed, A], or [n, executed, A] for n rows; H instead of `executed` for the whole chunk.
        version: version of the weights.
        seconds: duration of the inference.
    """

    actions: NDArray[np.float32]
    version: int
    seconds: float


class ServedPolicy:
    """Runs inference for requests with the newest weights.

    Args:
        weights: the first weights.
    """

    def __init__(self, weights: ServedWeights) -> None:
        self.weights = weights

    def replace(self, weights: ServedWeights) -> None:
        """Use other weights from the next call on.

        Raises:
            UserError: they belong to another robot, or to a policy of other sizes.
        """
        if weights.spec != self.weights.spec:
            raise UserError(
                "the new weights belong to another robot, or a policy of other sizes", code="policy-changed"
            )
        self.weights = weights

    def infer(self, requests: Sequence[PolicyRequest], fill: bool) -> list[PolicyResponse]:
        """Return the responses to requests of one shape, in their order.

        Args:
            requests: requests of any clients.
            fill: pad the batch to a multiple of `ROW_MULTIPLE` rows.

        Raises:
            UserError: a request does not fit the policy.
            RuntimeError: the policy returned NaN or infinity.
        """
        weights, began = self.weights, time.perf_counter()
        rows = sum(len(request.observation) for request in requests)
        order = [*range(rows), *[0] * (-rows % ROW_MULTIPLE if fill else 0)]
        first = requests[0]
        parts = [request.observation for request in requests]
        if padding := order[rows:]:
            parts.append(first.observation.select(padding))
        episode, decision = (
            np.concatenate([getattr(request, name) for request in requests])[order] for name in ("episode", "decision")
        )
        keys = None if first.seed is None else NoiseKeys(first.seed, episode, decision)
        actions = weights.policy.infer(
            Observation.concatenate(parts),
            keys,
            _join([request.prefix for request in requests], order),
            _join([request.committed for request in requests], order),
            whole=first.whole,
            strategy=first.strategy,
        )[:rows]
        if not np.isfinite(actions).all():
            raise RuntimeError("the policy returned NaN or infinity: its weights are unusable")
        seconds = time.perf_counter() - began
        ends = np.cumsum([len(request.observation) for request in requests])[:-1]
        return [
            PolicyResponse(part[0] if request.single else part, weights.version, seconds)
            for part, request in zip(np.split(actions, ends), requests, strict=True)
        ]


def _join(parts: Sequence[NDArray[Any] | None], order: Sequence[int]) -> NDArray[Any] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given)[order] if given else None
