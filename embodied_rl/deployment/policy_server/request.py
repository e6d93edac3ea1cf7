"""What a client asks: an observation, and beside it what is committed, the noise, and what is echoed."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.policy_server.names import WireNames
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import as_array, read_observation
from embodied_rl.interfaces.sim import Observation

PROTOCOL, PROTOCOL_VERSION = "embodied-rl", 1
"""What the metadata say beyond openpi's protocol, and the version of these additions."""
ROWS = 256
"""Most rows of a request."""
ECHOED = ("seq", "epoch")
STRATEGIES = ("prefix", "replacement", "guided")
"""How a chunk continues what is committed; see `Actor.infer`."""
ENDPOINTS = ("infer", "reset")
"""What clients of RoboArena and vLLM-Omni ask for; without `endpoint` a message asks for actions."""
BESIDE = (
    *ECHOED, "prefix", "committed", "strategy", "whole", "seed", "episode", "decision", "protocol_version", "endpoint",
    "session_id",
)  # fmt: skip
"""Entries of a request that are no part of its observation. `session_id` names an episode, of which policies keep
nothing between two requests."""


@dataclass(frozen=True)
class PolicyRequest:
    """A request that fits the policy.

    Attributes:
        observation: n rows.
        single: whether it came without an axis of rows, and is answered so.
        prefix: float32 [n, d, A], what is planned, or None.
        committed: int64 [n], how many of them, or None without a prefix.
        strategy: how the chunk continues it.
        whole: whether all H actions are wanted, not only those that are executed.
        seed: of the noise; None starts from its mean.
        episode, decision: int64 [n], further keys of the noise.
        echoed: entries that the answer repeats.
    """

    observation: Observation
    single: bool
    prefix: NDArray[np.float32] | None
    committed: NDArray[np.int64] | None
    strategy: str
    whole: bool
    seed: int | None
    episode: NDArray[np.int64]
    decision: NDArray[np.int64]
    echoed: Mapping[str, int]

    @property
    def shape(self) -> Hashable:
        """Return what requests have in common that are answered together."""
        return (self.seed, None if self.prefix is None else (self.prefix.shape[1], self.strategy), self.whole)


def is_reset(message: Any) -> bool:
    """Return whether a message asks to begin an episode, and not for actions.

    Raises:
        UserError: it asks for something else.
    """
    endpoint = message.get("endpoint", ENDPOINTS[0]) if isinstance(message, dict) else ENDPOINTS[0]
    if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
        raise UserError(f"endpoint is one of {', '.join(ENDPOINTS)}, not {ascii(endpoint)[:40]}.")
    return endpoint == "reset"


def read_request(message: Any, wanted: PolicyDescription, names: WireNames, whole: bool = False) -> PolicyRequest:
    """Check and convert a client's message.

    Args:
        message: as it was unpacked.
        wanted: what the policy takes.
        names: of the observation's entries on the wire.
        whole: for a message without `whole` and `protocol_version`, as clients of other projects send it.

    Raises:
        UserError: something in it does not fit; the message says what, and what does.
    """
    if not isinstance(message, dict):
        raise UserError(f"A request is a map of names, not {type(message).__name__}.")
    spoken = message.get("protocol_version", PROTOCOL_VERSION)
    if type(spoken) is not int or spoken != PROTOCOL_VERSION:
        raise UserError(
            f"The client speaks version {ascii(spoken)[:20]} of the protocol, the server {PROTOCOL_VERSION}: "
            "install the same embodied-rl on both sides."
        )
    beside = {name: message[name] for name in BESIDE if name in message}
    rest = {name: value for name, value in message.items() if name not in BESIDE}
    observation, single = read_observation(names.to_ours(rest), wanted)
    rows = len(observation)
    if rows > ROWS:
        raise UserError(f"A request has at most {ROWS} rows; this has {rows}.")
    prefix, committed = _read_prefix(beside, rows, single, wanted)
    seed = None if beside.get("seed") is None else _read_count(beside["seed"], "seed", 2**64 - 1)
    if seed is None and beside.keys() & {"episode", "decision"}:
        raise UserError("episode and decision are keys of the noise, beside a seed: send it, too.")
    return PolicyRequest(
        observation,
        single,
        prefix,
        committed,
        _read_strategy(beside, committed, wanted),
        _read_flag(beside.get("whole", whole and "protocol_version" not in beside), "whole"),
        seed,
        _read_counts(beside.get("episode", 0), "episode", rows, 2**63 - 1),
        _read_counts(beside.get("decision", 0), "decision", rows, 2**28 - 1),
        {name: _read_count(beside[name], name, 2**63 - 1) for name in ECHOED if name in beside},
    )


def _read_prefix(
    beside: Mapping[str, Any], rows: int, single: bool, wanted: PolicyDescription
) -> tuple[NDArray[np.float32] | None, NDArray[np.int64] | None]:
    if (given := beside.get("prefix")) is None:
        if beside.get("committed") is not None:
            raise UserError("committed says how many actions of a prefix are: send the prefix, too.")
        return None, None
    prefix, entries = as_array(given, "prefix"), len(wanted.action_names)
    prefix = prefix[None] if single else prefix
    fits = prefix.ndim == 3 and prefix.dtype.kind == "f" and prefix.shape[0] == rows and prefix.shape[2] == entries
    if not fits or prefix.shape[1] > wanted.horizon:
        raise UserError(
            f"prefix is {list(prefix.shape[single:])} of {prefix.dtype}; float32 "
            f"{'' if single else f'[{rows}] × '}[at most {wanted.horizon}, {entries}] fits."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity
        prefix = prefix.astype(np.float32)
    if not np.isfinite(prefix).all():
        raise UserError("prefix has NaN or infinity.")
    length = prefix.shape[1]
    committed = _read_counts(beside.get("committed", length), "committed", rows, length)
    return prefix, committed


def _read_strategy(beside: Mapping[str, Any], committed: NDArray[np.int64] | None, wanted: PolicyDescription) -> str:
    strategy = beside.get("strategy", STRATEGIES[0])
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise UserError(f"strategy is one of {', '.join(STRATEGIES)}, not {ascii(strategy)[:40]}.")
    longest, trained_to = 0 if committed is None else int(committed.max()), wanted.prefix_trained_to
    if strategy == "prefix" and longest > trained_to:
        raise UserError(
            f"prefix commits {longest} actions, and the policy is trained to continue {trained_to}: commit fewer, or "
            "say strategy=replacement or guided."
        )
    return strategy


def _read_flag(given: Any, name: str) -> bool:
    if not isinstance(given, bool):
        raise UserError(f"{name} is true or false.")
    return given


def _read_counts(given: Any, name: str, rows: int, most: int) -> NDArray[np.int64]:
    if not isinstance(given, np.ndarray | list):
        return np.full(rows, _read_count(given, name, most), np.int64)
    counts = as_array(given, name)
    if counts.shape != (rows,) or counts.dtype.kind not in "iu" or counts.min() < 0 or counts.max() > most:
        raise UserError(f"{name} is a whole number from 0 to {most}, or one for each of {rows} rows.")
    return counts.astype(np.int64)


def _read_count(given: Any, name: str, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        raise UserError(f"{name} is a whole number from 0 to {most}, not {ascii(given)[:40]}.")
    return given
