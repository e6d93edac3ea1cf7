"""The served policy: inference in batches, with weights that can be replaced between two batches; its settings.

It does not import the extra `serve`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.policy_client.request import PolicyRequest, WireNames
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Observation

ROW_MULTIPLE = 4
"""Batches are padded to a multiple of this number of rows: matrix libraries choose their operations by the number of
rows, so that the last bits of a result would depend on the requests of other clients."""


@dataclass(frozen=True)
class PolicyServerSettings:
    """Settings of a policy server.

    Attributes:
        host, port: address to listen on; port 0 selects a free port.
        token_variable: environment variable of the access token; None: no token.
        batch: maximum number of requests in a batch.
        wait: seconds that a request waits for those of other clients.
        clients: maximum number of connections.
        message: maximum bytes of a message.
        deadline: timeout of a request in seconds.
        send: actions for third-party clients: the whole horizon, or only those to execute.
        metadata: metadata for clients instead of the server's description; empty: the description.
        names: names of observation entries on the wire.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_variable: str | None = None
    batch: int = 8
    wait: float = 0.002
    clients: int = 64
    message: int = 16 * 2**20
    deadline: float = 30.0
    send: Literal["horizon", "executed"] = "horizon"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    names: WireNames = field(default_factory=WireNames)


def check_settings(settings: PolicyServerSettings) -> None:
    """Check the settings before the policy is loaded.

    Raises:
        UserError: the extra is missing, or the address needs a token that is not set.
    """
    if find_spec("starlette") is None:
        raise UserError("a policy server needs starlette: pip install 'embodied-rl[serve]'", code="package-missing")
    from embodied_rl.serving.listening import find_token

    find_token(settings.host, settings.token_variable)


class InferenceFailed(Exception):  # noqa: N818 - it says what happened
    """Inference failed or timed out on the server; `close_code` is the websocket close code (RFC 6455)."""

    def __init__(self, message: str, close_code: int) -> None:
        super().__init__(message)
        self.close_code = close_code


@dataclass(frozen=True)
class ServedWeights:
    """A policy with its current weights.

    Attributes:
        version: number of updates of the weights; 0 if unknown.
        identity: further plain values about the policy, such as the hash of its file.
    """

    policy: Actor
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
    """Runs inference for requests with the newest weights."""

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
        padding = [first.observation.select(order[rows:])] if len(order) > rows else []
        parts = [*(request.observation for request in requests), *padding]
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
