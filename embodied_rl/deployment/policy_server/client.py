"""A policy behind a server of openpi's protocol: ours, openpi's, or another one. Needs neither torch nor a simulator.

Each question has a deadline, which holds for connecting, sending, computing and receiving together. After it the
connection is dropped, so that a late answer is never taken for a later one's; our servers repeat a number of the
question besides.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.policy_server.exchange import (
    LARGEST,
    ExpectedAnswer,
    NoPolicyAnswer,
    PolicyRefusal,  # noqa: F401 - who asks a client catches it
    RefusedConnection,
    SentKeys,
    read_actions,
    read_map,
    select_keys,
    write_observation,
    write_prefix,
)
from embodied_rl.deployment.policy_server.names import WireNames
from embodied_rl.deployment.policy_server.request import PROTOCOL, PROTOCOL_VERSION
from embodied_rl.deployment.policy_server.settings import check_installed
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Observation

LONGEST = 86400.0
"""Most seconds of a deadline."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Seconds before the next try to reach a server that is away; the last one repeats."""


class PolicyClient:
    """A policy behind a server.

    Attributes:
        url: of the server.
        metadata: what it said of itself.
        spec: what the policy expects and returns; None where a server of others does not say it.
        version: of the weights that gave the last answer; None where the server does not say.
        versions: of all weights that answered.
        timing: milliseconds of the last answer: `total_ms`, and what the server told.
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
        """Connect, and read what the server says of itself.

        Args:
            url: such as ws://127.0.0.1:8000.
            deadline: seconds for each question.
            token: of the server.
            names: how the server calls entries of observations, our name → its name.
            key: how a server of others calls the actions.

        Raises:
            UserError: the address is none, the deadline or the token cannot be, the extra is missing, or the server
                speaks another protocol.
            NoPolicyAnswer: nobody answers there.
        """
        check_installed("a policy client")
        if not url.startswith(("ws://", "wss://")):
            raise UserError(f"{url!r} is no address of a policy server: it begins with ws:// or wss://.")
        _check_deadline(deadline)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError("The token has a character that no token has, such as the end of a line: strip it.")
        from embodied_rl.deployment.policy_server.link import Link

        self.url, self.deadline, self._key = url, deadline, key
        self._names = WireNames(dict(names or {}))
        self._link = Link(url, {} if token is None else {"Authorization": f"Bearer {token}"}, LARGEST, token)
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
        """Return whether the server is embodied-rl's: it takes rows, keys of noise and prefixes."""
        return _says_ours(self.metadata)

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
        """Return the actions to execute next, as `LoadedPolicy.act` does.

        Args:
            observation: see `LoadedPolicy.act`; to a server that says nothing of its policy it goes unchecked.
            prefix, committed, strategy, whole: see `LoadedPolicy.act`.
            seed: of the noise; None starts from its mean.
            deadline: seconds; None takes the client's.

        Returns:
            float32 [H, A] in the robot's units; [n, H, A] for rows.

        Raises:
            UserError: the observation does not fit; the server says so in words (`PolicyRefusal`).
            NoPolicyAnswer: no answer within the deadline.
        """
        plain, rows = dict(observation), None
        if self.spec is not None:
            seen, single = read_observation(observation, self.spec)
            plain, rows = write_observation(seen, single), None if single else len(seen)
        beside = write_prefix(prefix, committed, strategy, whole)
        return self._ask(plain, {**beside, "seed": seed}, rows, deadline)

    def infer(
        self,
        observation: Observation,
        keys: SentKeys | None = None,
        prefix: NDArray[np.float32] | None = None,
        committed: NDArray[np.int64] | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> NDArray[np.float32]:
        """Return a chunk for each row, float32 [n, H, A]; see `interfaces.policy.Actor.infer`.

        Our servers get the rows in few messages, with the keys of their noise, and answer to the same bits as the
        policy in this process does. Others get a message for each row, and no keys.

        Raises:
            UserError, NoPolicyAnswer: see `act`.
        """
        shown = observation if self.spec is None else self._select_cameras(observation)
        size = self._choose_rows(shown)
        parts = []
        for start in range(0, len(shown), size):
            rows = range(start, min(start + size, len(shown)))
            part = shown.select(list(rows))
            if self.is_ours:
                cut = slice(rows.start, rows.stop)
                counts = None if committed is None else committed[cut]
                told = write_prefix(None if prefix is None else prefix[cut], counts, strategy, whole)
                told |= {} if keys is None else select_keys(keys, rows)
                parts.append(self._ask(write_observation(part, False), told, len(part), None))
            else:
                beside = write_prefix(prefix, committed, strategy, whole)  # refused, where there is any
                parts.append(self._ask(write_observation(part, True), beside, None, None)[None])
        return np.concatenate(parts)

    def check_body(self, body: Body, words: tuple[str, ...] = ()) -> list[str]:
        """Check that the served policy fits a robot, as far as the server tells; return what it does not tell.

        Raises:
            UserError: it does not fit; the message names what.
        """
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

    # -- questions --------------------------------------------------------------------------------------------------

    def _ask(
        self, observation: Mapping[str, Any], beside: Mapping[str, Any], rows: int | None, deadline: float | None
    ) -> NDArray[np.float32]:
        """Ask until there is an answer or the deadline is over."""
        began, seconds = time.monotonic(), self.deadline if deadline is None else _check_deadline(deadline)
        self._sequence += 1
        echoed = {"seq": self._sequence, "epoch": self.epoch} if self.is_ours else {}
        asked = ExpectedAnswer(self.url, echoed, rows, self.spec, bool(beside["whole"]), self._key)
        message = self._names.to_theirs(observation)
        if self.is_ours:
            said = {name: value for name, value in beside.items() if value is not None}
            message |= {**said, **echoed, "protocol_version": PROTOCOL_VERSION}
        elif any(value is not None for value in beside.values()):
            raise UserError(f"{self.url} is no server of embodied-rl: it takes neither a prefix nor a seed.")
        from embodied_rl.deployment.policy_server.wire import pack  # needs the extra

        packed = pack(message)
        if len(packed) > (most := self.metadata["message_bytes"] if self.is_ours else LARGEST):
            raise UserError(f"The observation has {len(packed)} bytes; {self.url} takes {most}. Send fewer rows.")
        answer = self._attempt(lambda until: read_map(self._link.exchange(packed, until), self.url), began + seconds)
        try:
            actions = read_actions(answer, asked)
        except NoPolicyAnswer:
            self._link.drop()
            raise
        version = answer.get("version")
        self.version = version if type(version) is int else None
        self.versions |= set() if self.version is None else {self.version}
        told = answer.get("server_timing")
        self.timing = {**(told if isinstance(told, dict) else {}), "total_ms": (time.monotonic() - began) * 1e3}
        return actions

    def _attempt(self, work: Callable[[float], Any], until: float, patient: bool = True) -> Any:
        """Do something over a connection, with a new one where it ended, until it works or the time is over.

        Where the time ends in a later try, it is told why it had to be tried again.
        """
        tries, cause = 0, ""
        while True:
            try:
                if not self._link.connected:
                    self._link.connect(until)
                    self._greet(until)
                cause = ""  # it was there again
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
                self._link.drop()  # what refuses closes its end, too; who greets wrongly is asked nothing
                raise

    def _greet(self, until: float) -> None:
        """Read the metadata of a new connection.

        Raises:
            UserError: the server speaks another version of our protocol, or says what cannot be.
        """
        said = read_map(self._link.exchange(None, until), self.url)
        spec = None
        if _says_ours(said):
            spoken = said.get("protocol_version")
            if type(spoken) is not int or spoken != PROTOCOL_VERSION:
                raise UserError(
                    f"{self.url} speaks version {ascii(spoken)[:20]} of the protocol, this client {PROTOCOL_VERSION}: "
                    "install the same embodied-rl on both sides."
                )
            spec = PolicyDescription.from_dict(said)
            for name in ("rows", "message_bytes"):
                if type(most := said.get(name)) is not int or most < 1:
                    raise UserError(f"{self.url} says {name}={ascii(most)[:40]}, which is no limit of a message.")
        if self.spec not in (None, spec):
            raise UserError(f"{self.url} serves another policy than before: connect anew.")
        self.metadata, self.spec = said, spec

    def _select_cameras(self, observation: Observation) -> Observation:
        assert self.spec is not None, "the caller asked"
        if missing := [name for name in self.spec.cameras if name not in observation.images]:
            raise UserError(f"{self.url} wants camera {missing[0]!r}; there are {', '.join(observation.images)}.")
        images = {name: np.asarray(observation.images[name]) for name in self.spec.cameras}
        return Observation(images, np.asarray(observation.state), observation.instruction)

    def _choose_rows(self, observation: Observation) -> int:
        """Return how many rows a message holds: multiples of 4 have the same bits in any batch."""
        if not self.is_ours:
            return 1
        each = sum(image[0].nbytes for image in observation.images.values()) + observation.state[0].nbytes + 4096
        most = min(self.metadata["rows"], int(0.9 * self.metadata["message_bytes"]) // each)
        return max(1, most - most % 4 if most >= 4 else most)


def _check_deadline(seconds: float) -> float:
    if not 0 < seconds <= LONGEST:
        raise UserError(f"deadline={seconds} must be positive, and at most {LONGEST:g}: seconds for each question.")
    return seconds


def _says_ours(metadata: Mapping[str, Any]) -> bool:
    protocol = metadata.get("protocol")
    return isinstance(protocol, str) and protocol == PROTOCOL


_START = "Is it there? embodied-rl serve policy=<run|file> starts one."
_ADDRESS = "Give the address that embodied-rl serve prints, without a path, and its token."
_REMEDY = "Give it more time (deadline), or see on its screen what it does."
