"""Requests of clients: an observation, a committed prefix, noise keys, and entries to echo; names on the wire."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.description import STATE, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import as_array, read_observation
from embodied_rl.interfaces.sim import Observation

PROTOCOL, PROTOCOL_VERSION = "embodied-rl", 1
"""Name and version of our additions to openpi's protocol, sent in the metadata."""
ROWS = 256
"""Maximum rows of a request."""
ECHOED = ("seq", "epoch")
STRATEGIES = ("prefix", "replacement", "guided")
"""How a chunk continues the committed actions; see `Actor.infer`."""
ENDPOINTS = ("infer", "reset")
"""Endpoints of RoboArena and vLLM-Omni clients; default: infer."""
EXTRAS = (
    *ECHOED, "prefix", "committed", "strategy", "whole", "seed", "episode", "decision", "protocol_version", "endpoint",
    "session_id",
)  # fmt: skip
"""Entries of a request besides its observation. `session_id` is ignored: policies keep no state between requests."""


@dataclass(frozen=True)
class WireNames:
    """Names of observation entries on the wire, where they differ from ours; they are configured, never guessed.

    Attributes:
        given: such as {"images/front": "observation/image"}; other entries keep our name. The state may be joined from
            several: "observation/joint_position:7+observation/gripper_position:1". Only the sender needs the sizes.
        ignored: wire names to leave out.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def check(self, keys: Sequence[str], option: str) -> None:
        """Raise `UserError` if the policy's observations, of these keys, lack an entry; `option` is for the message."""
        if unknown := [name for name in self.given if name not in keys]:
            raise UserError(
                f"{option}: the policy has no {unknown[0]!r}; it takes {', '.join(keys)}.", code="key-unknown"
            )

    def to_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a message by our names; nested maps `a: {b: …}` but `state` become `a/b`."""
        plain = {name: value for name, value in _flatten(theirs).items() if name not in self.ignored}
        ours: dict[str, Any] = {}
        parts = {name: _parse_sizes(text) for name, text in self.given.items()}
        for name, sizes in parts.items():
            if plain.keys() >= sizes.keys():
                single, *more = (plain[part] for part in sizes)
                ours[name] = _join_parts({part: plain[part] for part in sizes}, sizes) if more else single
        taken = {part for sizes in parts.values() for part in sizes}
        rest = {name: value for name, value in plain.items() if name not in taken}
        if twice := [name for name in ours if name in rest]:
            raise UserError(
                f"The observation has both {twice[0]!r} and {self.given[twice[0]]!r}: leave one out.",
                code="observation-invalid",
            )
        return rest | ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of an observation by their names on the wire.

        Raises:
            UserError: a joined state cannot be split.
        """
        theirs: dict[str, Any] = {}
        for name, value in ours.items():
            sizes = _parse_sizes(self.given.get(name, name))
            if len(sizes) == 1:
                theirs |= dict.fromkeys(sizes, value)
                continue
            array, given = as_array(value, STATE), [size for size in sizes.values() if size is not None]
            if len(given) < len(sizes):
                example = f"{next(iter(sizes))}:2"
                raise UserError(f"state: give the size of each name, such as {example}.", code="state-invalid")
            if array.dtype.kind not in "fiu" or array.shape[-1:] != (sum(given),):
                raise UserError(
                    f"state is {array.dtype} {list(array.shape)}; {', '.join(sizes)} have {sum(given)} entries.",
                    code="state-invalid",
                )
            theirs |= dict(zip(sizes, np.split(array, np.cumsum(given)[:-1], axis=-1), strict=True))
        return theirs


@dataclass(frozen=True)
class PolicyRequest:
    """A request that fits the policy.

    Attributes:
        observation: n rows. single: whether it and the response have no row axis.
        prefix: float32 [n, d, A], planned actions, or None. committed: int64 [n], number of committed ones, or None.
        strategy: how the chunk continues the prefix.
        whole: whether to return all H actions, not only those to execute.
        seed: seed of the noise; None uses its mean. episode, decision: int64 [n], further keys of the noise.
        echoed: entries that the response repeats.
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
        """Return the properties that all requests of a batch must share."""
        return (self.seed, None if self.prefix is None else (self.prefix.shape[1], self.strategy), self.whole)


def is_reset(message: Any) -> bool:
    """Return whether a message is a reset instead of a request; raise `UserError` if its endpoint is unknown."""
    endpoint = message.get("endpoint", ENDPOINTS[0]) if isinstance(message, dict) else ENDPOINTS[0]
    if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
        raise UserError(
            f"endpoint is one of {', '.join(ENDPOINTS)}, not {ascii(endpoint)[:40]}.", code="endpoint-unknown"
        )
    return endpoint == "reset"


def read_request(message: Any, wanted: PolicyDescription, names: WireNames, whole: bool = False) -> PolicyRequest:
    """Validate and convert a client's unpacked message.

    Args:
        wanted: description of the policy. names: of the observation entries on the wire.
        whole: default of `whole` for messages without `protocol_version`, as third-party clients send them.

    Raises:
        UserError: an entry is invalid; the message names it and the valid values.
    """
    if not isinstance(message, dict):
        raise _invalid(f"A request is a map, not {type(message).__name__}.")
    version = message.get("protocol_version", PROTOCOL_VERSION)
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise UserError(
            f"The client uses version {ascii(version)[:20]} of the protocol, the server {PROTOCOL_VERSION}: "
            "install the same embodied-rl on both sides.",
            code="protocol-version-mismatch",
        )
    extras = {name: message[name] for name in EXTRAS if name in message}
    rest = {name: value for name, value in message.items() if name not in EXTRAS}
    observation, single = read_observation(names.to_ours(rest), wanted)
    rows = len(observation)
    if rows > ROWS:
        raise _invalid(f"A request has at most {ROWS} rows; this has {rows}.")
    prefix, committed = _read_prefix(extras, rows, single, wanted)
    seed = None if extras.get("seed") is None else _read_count(extras["seed"], "seed", 2**64 - 1)
    if seed is None and extras.keys() & {"episode", "decision"}:
        raise _invalid("episode and decision need seed: send it as well.")
    whole = extras.get("whole", whole and "protocol_version" not in extras)
    if not isinstance(whole, bool):
        raise _invalid("whole is true or false.")
    return PolicyRequest(
        observation,
        single,
        prefix,
        committed,
        _read_strategy(extras, committed, wanted),
        whole,
        seed,
        _read_counts(extras.get("episode", 0), "episode", rows, 2**63 - 1),
        _read_counts(extras.get("decision", 0), "decision", rows, 2**28 - 1),
        {name: _read_count(extras[name], name, 2**63 - 1) for name in ECHOED if name in extras},
    )


def _invalid(message: str) -> UserError:
    return UserError(message, code="request-invalid")


def _read_prefix(
    extras: Mapping[str, Any], rows: int, single: bool, wanted: PolicyDescription
) -> tuple[NDArray[np.float32] | None, NDArray[np.int64] | None]:
    if (given := extras.get("prefix")) is None:
        if extras.get("committed") is not None:
            raise _invalid("committed needs prefix: send it as well.")
        return None, None
    prefix, entries = as_array(given, "prefix"), len(wanted.action_names)
    prefix = prefix[None] if single else prefix
    fits = prefix.ndim == 3 and prefix.dtype.kind == "f" and prefix.shape[0] == rows and prefix.shape[2] == entries
    if not fits or prefix.shape[1] > wanted.horizon:
        raise UserError(
            f"prefix is {list(prefix.shape[single:])} of {prefix.dtype}; float32 "
            f"{'' if single else f'[{rows}] × '}[at most {wanted.horizon}, {entries}] fits.",
            code="prefix-shape-mismatch",
        )
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinity
        prefix = prefix.astype(np.float32)
    if not np.isfinite(prefix).all():
        raise UserError("prefix has NaN or infinity.", code="not-finite")
    length = prefix.shape[1]
    committed = _read_counts(extras.get("committed", length), "committed", rows, length)
    return prefix, committed


def _read_strategy(extras: Mapping[str, Any], committed: NDArray[np.int64] | None, wanted: PolicyDescription) -> str:
    strategy = extras.get("strategy", STRATEGIES[0])
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise UserError(
            f"strategy is one of {', '.join(STRATEGIES)}, not {ascii(strategy)[:40]}.", code="strategy-unknown"
        )
    longest, trained_to = 0 if committed is None else int(committed.max()), wanted.prefix_trained_to
    if strategy == "prefix" and longest > trained_to:
        raise UserError(
            f"prefix commits {longest} actions, but the policy is trained to continue {trained_to}: commit fewer, or "
            "use strategy=replacement or guided.",
            code="policy-not-trained-for-delay",
        )
    return strategy


def _read_counts(given: Any, name: str, rows: int, most: int) -> NDArray[np.int64]:
    if not isinstance(given, np.ndarray | list):
        return np.full(rows, _read_count(given, name, most), np.int64)
    counts = as_array(given, name)
    if counts.shape != (rows,) or counts.dtype.kind not in "iu" or counts.min() < 0 or counts.max() > most:
        raise _invalid(f"{name} is an integer from 0 to {most}, or one for each of {rows} rows.")
    return counts.astype(np.int64)


def _read_count(given: Any, name: str, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        raise _invalid(f"{name} is an integer from 0 to {most}, not {ascii(given)[:40]}.")
    return given


def _parse_sizes(text: str) -> dict[str, int | None]:
    """Return the names of `a:7+b:1` with their sizes; None for a name without size."""
    found: dict[str, int | None] = {}
    for part in text.split("+"):
        name, _, size = part.rpartition(":")
        found |= {name: int(size)} if name and size.isascii() and size.isdigit() else {part: None}
    return found


def _flatten(group: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping) and before + name != STATE:  # a state may be a map of named entries
            inner = _flatten(value, f"{before}{name}/")
        else:
            inner = {f"{before}{name}": value}
        if twice := [each for each in inner if each in found]:
            raise UserError(
                f"The observation has {twice[0]!r} twice, once within a nested map: leave one out.",
                code="observation-invalid",
            )
        found |= inner
    return found


def _join_parts(parts: Mapping[str, Any], sizes: Mapping[str, int | None]) -> Any:
    """Return the concatenation of the parts of a state."""
    arrays = {name: np.atleast_1d(as_array(part, STATE)) for name, part in parts.items()}
    if len({(array.shape[:-1], array.dtype.kind in "fiu") for array in arrays.values()}) > 1:
        found = " and ".join(f"{array.dtype} {list(array.shape)}" for array in arrays.values())
        raise UserError(f"state: its parts are {found}; they must be numbers or rows of numbers.", code="state-invalid")
    for name, array in arrays.items():
        if sizes[name] not in (None, array.shape[-1]):
            raise UserError(f"state: {name!r} has {array.shape[-1]} entries, not {sizes[name]}.", code="state-invalid")
    return np.concatenate(list(arrays.values()), axis=-1)
