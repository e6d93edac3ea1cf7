"""Client of a policy server with openpi's protocol. Needs neither torch nor a simulator.

One deadline covers connecting, sending, inference and receiving of a request. After it the connection is dropped, so
that late responses are discarded. Servers of embodied-rl also echo the sequence number of the request.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.configuration import ServedNode
from embodied_rl.deployment.policy_client.client_messages import (
    LARGEST,
    NoiseKeysLike,
    NoPolicyAnswer,
    PolicyRefusal,  # noqa: F401 - callers of the client catch it
    RefusedConnection,
    read_actions,
    read_map,
    write_observation,
    write_prefix,
)
from embodied_rl.deployment.policy_client.request import PROTOCOL, PROTOCOL_VERSION, WireNames
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Observation

LONGEST = 86400.0
"""Longest deadline in seconds."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Seconds between attempts to reconnect; the last one repeats."""


class PolicyClient:
    """Client of a policy server.

    Attributes:
        metadata: of the server. spec: description of the policy; None if a third-party server does not send one.
        version, versions: of the weights of the last response, None if unknown, and of all responses.
        timing: milliseconds of the last response: `total_ms`, and the timings that the server sent.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline: float = 10.0,
        token: str | None = None,
        names: Mapping[str, str] | None = None,
        key: str = "actions",
    ) -> None:
        """Connect, and read the metadata of the server.

        Args:
            url: such as ws://127.0.0.1:8000. deadline: timeout of each request in seconds. token: access token.
            names: names of observation entries, our name → the server's name.
            key: name of the actions in the responses of a third-party server.

        Raises:
            UserError: the address, deadline or token is invalid, the extra is missing, or the server uses another
                version of the protocol.
            NoPolicyAnswer: no server answers at the address.
        """
        if not url.startswith(("ws://", "wss://")):
            raise UserError(
                f"{url!r} is not the address of a policy server: it begins with ws:// or wss://.",
                code="url-invalid",
            )
        _check_deadline(deadline)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError(
                "The token has a character that is not allowed, such as the end of a line: strip it.",
                code="token-invalid",
            )
        from embodied_rl.deployment.policy_client.websocket_client import WebSocketClient

        self.url, self.deadline, self._key = url, deadline, key
        self._names = WireNames(dict(names or {}))
        self._link = WebSocketClient(url, {} if token is None else {"Authorization": f"Bearer {token}"}, LARGEST, token)
        self._sequence, self.epoch = 0, 0
        self.metadata: Mapping[str, Any] = {}
        self.spec: PolicyDescription | None = None
        self.version: int | None = None
        self.versions: set[int] = set()
        self.timing: Mapping[str, float] = {}
        try:
            self._attempt(lambda until: None, time.monotonic() + deadline, patient=False)
        except BaseException:
            self.close()
            raise
        if self.spec is not None:
            self._names.check(self.spec.keys, "names")

    @property
    def is_ours(self) -> bool:
        """Return whether the server is embodied-rl's, which accepts batches, noise keys and prefixes."""
        return _has_our_protocol(self.metadata)

    def act(
        self,
        observation: Mapping[str, Any],
        *,
        prefix: Any = None,
        committed: Any = None,
        strategy: str = "prefix",
        whole: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
    ) -> NDArray[np.float32]:
        """Return the next actions to execute, as `LoadedPolicy.act` does.

        Args:
            observation: sent unchecked to a server that does not describe its policy.
            seed: seed of the noise; None uses its mean. deadline: timeout in seconds; None uses the client's.

        Returns:
            float32 [H, A] in the robot's units; [n, H, A] for n rows.

        Raises:
            UserError: the observation does not fit the policy, or the server refused it (`PolicyRefusal`).
            NoPolicyAnswer: no valid response within the deadline.
        """
        plain, rows = dict(observation), None
        if self.spec is not None:
            seen, single = read_observation(observation, self.spec)
            plain, rows = write_observation(seen, single), None if single else len(seen)
        extras = write_prefix(prefix, committed, strategy, whole)
        return self._request(plain, {**extras, "seed": seed}, rows, deadline)

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeysLike | None = None,
        prefix: NDArray[np.float32] | None = None,
        committed: NDArray[np.int64] | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> NDArray[np.float32]:
        """Return an action chunk for each row, float32 [n, H, A]; see `interfaces.policy.Actor.infer`.

        Servers of embodied-rl get the rows in batches with their noise keys; the results are bit-identical to those of
        the policy in this process. Third-party servers get one message per row without keys.
        """
        shown = observation
        if self.spec is not None:
            if missing := [name for name in self.spec.cameras if name not in observation.images]:
                raise UserError(
                    f"{self.url} needs camera {missing[0]!r}; the observation has {', '.join(observation.images)}.",
                    code="camera-unknown",
                )
            images = {name: np.asarray(observation.images[name]) for name in self.spec.cameras}
            shown = Observation(images, np.asarray(observation.state), observation.instruction)
        size, parts = 1, list[NDArray[np.float32]]()
        if self.is_ours:  # rows per message, if possible a multiple of 4: then bits do not depend on it
            each = sum(image[0].nbytes for image in shown.images.values()) + shown.state[0].nbytes + 4096
            most = min(self.metadata["rows"], int(0.9 * self.metadata["message_bytes"]) // each)
            size = max(1, most - most % 4 if most >= 4 else most)
        for start in range(0, len(shown), size):
            cut = slice(start, min(start + size, len(shown)))
            part = shown.select(list(range(cut.start, cut.stop)))
            if not self.is_ours:
                extras = write_prefix(prefix, committed, strategy, whole)  # refused if there is any
                parts.append(self._request(write_observation(part, True), extras, None, None)[None])
                continue
            counts = None if committed is None else committed[cut]
            extras = write_prefix(None if prefix is None else prefix[cut], counts, strategy, whole)
            if keys is not None:
                episode, decision = (np.asarray(each)[cut] for each in (keys.episode, keys.decision))
                extras |= {"seed": keys.seed, "episode": episode, "decision": decision}
            parts.append(self._request(write_observation(part, False), extras, len(part), None))
        return np.concatenate(parts)

    def check_body(self, body: Body, words: tuple[str, ...] = ()) -> list[str]:
        """Return which properties the server does not send; raise `UserError` if the policy does not fit the robot."""
        if self.spec is None:
            return ["cameras and their sizes", "state names and units", "action names, limits and units", "rate"]
        self.spec.check_body(body, words)
        return ["rate"] if self.spec.control_hz is None else []

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def __enter__(self) -> "PolicyClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def _request(
        self, observation: Mapping[str, Any], extras: Mapping[str, Any], rows: int | None, deadline: float | None
    ) -> NDArray[np.float32]:
        """Send a request, again after a lost connection, until there is a response or the deadline is over."""
        began, seconds = time.monotonic(), self.deadline if deadline is None else _check_deadline(deadline)
        self._sequence += 1
        echoed = {"seq": self._sequence, "epoch": self.epoch} if self.is_ours else {}
        message = self._names.to_theirs(observation)
        if self.is_ours:
            given = {name: value for name, value in extras.items() if value is not None}
            message |= {**given, **echoed, "protocol_version": PROTOCOL_VERSION}
        elif any(value is not None for value in extras.values()):
            raise UserError(
                f"{self.url} is not a server of embodied-rl: it accepts neither a prefix nor a seed.",
                code="server-unsupported",
            )
        from embodied_rl.deployment.policy_client.wire import pack  # needs the extra

        packed = pack(message)
        if len(packed) > (most := self.metadata["message_bytes"] if self.is_ours else LARGEST):
            raise UserError(
                f"The observation has {len(packed)} bytes; {self.url} accepts {most}. Send fewer rows.",
                code="observation-too-large",
            )
        answer = self._attempt(lambda until: read_map(self._link.exchange(packed, until), self.url), began + seconds)
        try:
            actions = read_actions(
                answer, self.url, echoed=echoed, rows=rows, spec=self.spec, whole=bool(extras["whole"]), key=self._key
            )
        except NoPolicyAnswer:
            self._link.drop()
            raise
        version = answer.get("version")
        self.version = version if type(version) is int else None
        self.versions |= set() if self.version is None else {self.version}
        timing = answer.get("server_timing")
        self.timing = {**(timing if isinstance(timing, dict) else {}), "total_ms": (time.monotonic() - began) * 1e3}
        return actions

    def _attempt(self, work: Callable[[float], Any], until: float, patient: bool = True) -> Any:
        """Run `work` over a connection; reconnect and repeat after a lost connection, until the deadline.

        On timeout after a lost connection the error names the cause of the loss.
        """
        tries, cause = 0, ""
        while True:
            try:
                if not self._link.connected:
                    self._link.connect(until)
                    self._read_metadata(until)
                cause = ""
                return work(until)
            except TimeoutError:
                self._link.drop()
                raise NoPolicyAnswer(cause or f"{self.url} did not answer in time. {_REMEDY}") from None
            except ConnectionError as error:
                self._link.drop()
                remedy = _ADDRESS if isinstance(error, RefusedConnection) else _START
                if not patient:
                    raise NoPolicyAnswer(f"{self.url}: {error}. {remedy}") from None
                pause = PAUSES[min(tries, len(PAUSES) - 1)]
                tries += 1
                cause = f"{self.url}: {error}; {tries} tries. {remedy}"
                if time.monotonic() + pause >= until:
                    raise NoPolicyAnswer(cause) from None
                time.sleep(pause)
            except (UserError, NoPolicyAnswer):
                self._link.drop()  # the server closes its end as well; send nothing after invalid metadata
                raise

    def _read_metadata(self, until: float) -> None:
        """Read and check the metadata of a new connection."""
        metadata = read_map(self._link.exchange(None, until), self.url)
        spec = None
        if _has_our_protocol(metadata):
            version = metadata.get("protocol_version")
            if type(version) is not int or version != PROTOCOL_VERSION:
                raise UserError(
                    f"{self.url} uses version {ascii(version)[:20]} of the protocol, this client {PROTOCOL_VERSION}: "
                    "install the same embodied-rl on both sides.",
                    code="protocol-version-mismatch",
                )
            spec = PolicyDescription.from_dict(metadata)
            for name in ("rows", "message_bytes"):
                if type(most := metadata.get(name)) is not int or most < 1:
                    raise UserError(
                        f"{self.url} sent {name}={ascii(most)[:40]}, which is not a valid limit.",
                        code="server-metadata-invalid",
                    )
        if self.spec not in (None, spec):
            raise UserError(
                f"{self.url} serves another policy than before: create a new client.", code="policy-changed"
            )
        self.metadata, self.spec = metadata, spec


def _check_deadline(seconds: float) -> float:
    if not 0 < seconds <= LONGEST:
        raise UserError(
            f"deadline={seconds} must be positive, and at most {LONGEST:g}: seconds for each request.",
            code="value-out-of-range",
        )
    return seconds


def _has_our_protocol(metadata: Mapping[str, Any]) -> bool:
    protocol = metadata.get("protocol")
    return isinstance(protocol, str) and protocol == PROTOCOL


_START = "Is the server running? embodied-rl serve policy=<run|file> starts one."
_ADDRESS = "Give the address that embodied-rl serve prints, without a path, and its token."
_REMEDY = "Increase deadline, or see the output of the server."


def connect(url: str, node: ServedNode) -> PolicyClient:
    """Connect to a policy server.

    Raises:
        UserError: the address is not valid, or the token's variable is empty.
        NoPolicyAnswer: the server does not answer.
    """
    token = None
    if node.token_variable is not None and not (token := os.environ.get(node.token_variable)):
        raise UserError(
            f"server.token_variable={node.token_variable}: the environment variable is not set.", code="token-missing"
        )
    return PolicyClient(url, deadline=node.deadline, token=token, names=node.keys, key=node.actions)
