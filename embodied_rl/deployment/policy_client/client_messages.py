"""Write requests to a policy server, and validate its responses."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Observation

LARGEST = 64 * 2**20
"""Maximum bytes of a response."""


class NoPolicyAnswer(RunFailed):
    """The server sent no valid response within the deadline; there is no action."""


class RefusedConnection(ConnectionError):  # noqa: N818 - it says what happened
    """The server refused the connection: unknown path, or missing or wrong token."""


class PolicyRefusal(UserError):  # noqa: N818 - it says what happened
    """The server answered with an error message."""


class NoiseKeysLike(Protocol):
    """Keys of the noise, such as `interfaces.policy.NoiseKeys`."""

    @property
    def seed(self) -> int: ...
    @property
    def episode(self) -> NDArray[Any]: ...
    @property
    def decision(self) -> NDArray[Any]: ...


def read_map(message: bytes | str, url: str) -> dict[str, Any]:
    """Return the map of a message.

    Raises:
        PolicyRefusal: the message is an error text.
        NoPolicyAnswer: the message is damaged.
    """
    from embodied_rl.deployment.policy_client.wire import WireError, WireLimits, unpack  # needs the extra

    if isinstance(message, str):
        raise PolicyRefusal(f"{url}: {message.strip()[-2000:]}", code="server-refused")
    try:
        content = unpack(message, WireLimits(LARGEST, LARGEST, keys=100_000))
    except WireError as error:
        raise NoPolicyAnswer(f"{url} sent an invalid response: {error}") from None
    if not isinstance(content, dict):
        raise NoPolicyAnswer(f"{url} sent an invalid response: a {type(content).__name__}, not a map.")
    return content


def read_actions(
    answer: Mapping[str, Any],
    url: str,
    *,
    echoed: Mapping[str, int],
    rows: int | None,
    spec: PolicyDescription | None,
    whole: bool,
    key: str,
) -> NDArray[np.float32]:
    """Return the actions of a response, float32 [H, A], or [n, H, A] for n rows.

    Args:
        answer: the response. url: address of the server, for messages.
        echoed: entries of the request that the response must repeat.
        rows: number of rows n; None for a single observation.
        spec: description of the policy; None if the server does not send one.
        whole: whether all `spec.horizon` actions were requested.
        key: name of the actions in the response.

    Raises:
        NoPolicyAnswer: they belong to another request, are not finite, or do not fit the policy's description.
    """
    for name, value in echoed.items():
        if type(echo := answer.get(name)) is not int or echo != value:
            raise NoPolicyAnswer(f"{url} answered another request ({name} {ascii(echo)[:40]}, not {value}).")
    actions = answer.get(key)
    if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f":
        raise NoPolicyAnswer(f"{url} sent no float array {key!r}; its response has {', '.join(map(str, answer))}.")
    leading = () if rows is None else (rows,)
    size = actions.shape[-1:] if spec is None else (len(spec.action_names),)
    if actions.ndim != 2 + len(leading) or (actions.shape[:-2], actions.shape[-1:]) != (leading, size):
        raise NoPolicyAnswer(f"{url} sent actions of the shape {list(actions.shape)}.")
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinity
        actions = np.array(actions, np.float32)
    if not actions.size or not np.isfinite(actions).all():
        raise NoPolicyAnswer(f"{url} sent actions that are NaN, infinite or empty.")
    if spec is None:
        return actions
    least, given = spec.horizon if whole else spec.executed, actions.shape[-2]
    if not least <= given <= spec.horizon:
        raise NoPolicyAnswer(
            f"{url} sent {given} actions; its policy executes {spec.executed} and predicts {spec.horizon}."
        )
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    if (outside := (actions < low) | (actions > high)).any():
        *place, entry = np.argwhere(outside)[0]
        found, limits = actions[(*place, entry)], f"[{low[entry]:g}, {high[entry]:g}]"
        raise NoPolicyAnswer(f"{url} sent {spec.action_names[entry]} = {found:g}, outside of its limits {limits}.")
    return actions


def write_prefix(prefix: Any, committed: Any, strategy: str, whole: bool) -> dict[str, Any]:
    """Return the request entries of a prefix; entries that are None are not sent."""
    return {
        "prefix": None if prefix is None else np.asarray(prefix, np.float32),
        "committed": committed,
        "strategy": None if prefix is None else strategy,
        "whole": whole or None,
    }


def write_observation(observation: Observation, single: bool) -> dict[str, Any]:
    """Return the request entries of an observation; `single` removes the row axis."""
    images = {f"{IMAGES}{name}": image for name, image in observation.images.items()}
    if single:
        return {
            **{name: np.ascontiguousarray(image[0]) for name, image in images.items()},
            STATE: observation.state[0],
            PROMPT: observation.instruction[0],
        }
    return {**images, STATE: observation.state, PROMPT: list(observation.instruction)}
