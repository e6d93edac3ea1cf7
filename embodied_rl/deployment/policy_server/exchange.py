"""What a client writes of a question, and reads of an answer: all that can be wrong with it is found here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Observation

LARGEST = 64 * 2**20
"""Bytes of an answer that is read."""


class NoPolicyAnswer(RunFailed):
    """A server did not answer within the deadline. There is no action; the robot decides what it does without one."""


class RefusedConnection(ConnectionError):  # noqa: N818 - it says what happened
    """A server is there, and refuses the connection: another path, or a token that is missing or wrong."""


class PolicyRefusal(UserError):  # noqa: N818 - it says what happened
    """A server answered with an error in words."""


class SentKeys(Protocol):
    """Keys of the noise; `interfaces.policy.NoiseKeys` are some."""

    @property
    def seed(self) -> int: ...
    @property
    def episode(self) -> NDArray[Any]: ...
    @property
    def decision(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class ExpectedAnswer:
    """What an answer has to fit.

    Attributes:
        url: who is asked, for messages.
        echoed: entries that the answer has to repeat.
        rows: n; None without an axis of rows.
        spec: of the policy; None where the server does not describe it.
        whole: whether all `spec.horizon` actions were asked for.
        key: how the answer calls the actions.
    """

    url: str
    echoed: Mapping[str, int]
    rows: int | None
    spec: PolicyDescription | None
    whole: bool
    key: str


def read_map(message: bytes | str, url: str) -> dict[str, Any]:
    """Return the map of a message.

    Raises:
        PolicyRefusal: it is an error in words.
        NoPolicyAnswer: it is damaged.
    """
    from embodied_rl.deployment.policy_server.wire import WireError, WireLimits, unpack  # needs the extra

    if isinstance(message, str):
        raise PolicyRefusal(f"{url}: {message.strip()[-2000:]}")
    try:
        said = unpack(message, WireLimits(LARGEST, LARGEST, keys=100_000))
    except WireError as error:
        raise NoPolicyAnswer(f"{url} sent what is no answer: {error}") from None
    if not isinstance(said, dict):
        raise NoPolicyAnswer(f"{url} sent what is no answer: a {type(said).__name__}.")
    return said


def read_actions(answer: Mapping[str, Any], asked: ExpectedAnswer) -> NDArray[np.float32]:
    """Return an answer's actions, float32 [H, A], or [n, H, A] for rows.

    Raises:
        NoPolicyAnswer: they are of another question, cannot be executed, or do not fit the policy's description.
    """
    for name, value in asked.echoed.items():
        if type(said := answer.get(name)) is not int or said != value:
            raise NoPolicyAnswer(f"{asked.url} answered another question ({name} {ascii(said)[:40]}, not {value}).")
    actions = answer.get(asked.key)
    if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f":
        known = ", ".join(map(str, answer))
        raise NoPolicyAnswer(f"{asked.url} sent no array {asked.key!r} of floats; its answer has {known}.")
    leading = () if asked.rows is None else (asked.rows,)
    size = actions.shape[-1:] if asked.spec is None else (len(asked.spec.action_names),)
    if actions.ndim != 2 + len(leading) or (actions.shape[:-2], actions.shape[-1:]) != (leading, size):
        raise NoPolicyAnswer(f"{asked.url} sent actions of the shape {list(actions.shape)}.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity
        actions = np.array(actions, np.float32)
    if not actions.size or not np.isfinite(actions).all():
        raise NoPolicyAnswer(f"{asked.url} sent actions that are NaN, infinite or none.")
    if asked.spec is not None:
        _check_fit(actions, asked, asked.spec)
    return actions


def _check_fit(actions: NDArray[np.float32], asked: ExpectedAnswer, spec: PolicyDescription) -> None:
    """Check the number of actions and their limits against the policy's description."""
    least, given = spec.horizon if asked.whole else spec.executed, actions.shape[-2]
    if not least <= given <= spec.horizon:
        raise NoPolicyAnswer(
            f"{asked.url} sent {given} actions; its policy executes {spec.executed} and predicts {spec.horizon}."
        )
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    if (outside := (actions < low) | (actions > high)).any():
        *place, entry = np.argwhere(outside)[0]
        raise NoPolicyAnswer(
            f"{asked.url} sent {spec.action_names[entry]} = {actions[(*place, entry)]:g}, outside of its limits "
            f"[{low[entry]:g}, {high[entry]:g}]."
        )


def write_prefix(prefix: Any, committed: Any, strategy: str, whole: bool) -> dict[str, Any]:
    """Return what is said of a prefix, by its names on the wire; None is not sent."""
    return {
        "prefix": None if prefix is None else np.asarray(prefix, np.float32),
        "committed": committed,
        "strategy": None if prefix is None else strategy,
        "whole": whole or None,
    }


def select_keys(keys: SentKeys, rows: range) -> dict[str, Any]:
    """Return the keys of some rows, by their names on the wire."""
    episode, decision = (np.asarray(each)[rows.start : rows.stop] for each in (keys.episode, keys.decision))
    return {"seed": keys.seed, "episode": episode, "decision": decision}


def write_observation(observation: Observation, single: bool) -> dict[str, Any]:
    """Return an observation's entries by our names; without an axis of rows, of one row."""
    images = {f"{IMAGES}{name}": image for name, image in observation.images.items()}
    if single:
        return {
            **{name: np.ascontiguousarray(image[0]) for name, image in images.items()},
            STATE: observation.state[0],
            PROMPT: observation.instruction[0],
        }
    return {**images, STATE: observation.state, PROMPT: list(observation.instruction)}
