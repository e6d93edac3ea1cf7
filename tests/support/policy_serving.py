"""Policy servers of a test, in a thread of its process, how they are asked, and a policy that does as it is told."""

import asyncio
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from embodied_rl.deployment.policy_client.wire import pack, unpack
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl.policy_server.served import PolicyServerSettings, ServedPolicy, ServedWeights
from embodied_rl.policy_server.server import PolicyServer
from embodied_rl.serving.listening import find_token, open_socket

DEADLINE = 60.0

SPEC = PolicyDescription(
    cameras={"front": (4, 5), "wrist": (4, 5)},
    state_names=("x", "y", "grip"),
    action_names=("dx", "dy"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    control_hz=10.0,
    horizon=4,
    executed=3,
    words=("go", "left", "right"),
    prompt_length=4,
    prefix_trained_to=2,
    normalisation="0" * 64,
)


@dataclass
class FakePolicy:
    """Answers with a number that depends on every part of a row and on nothing else.

    Attributes:
        gate: waits for it, where there is one.
        fails: raises for rows whose first state entry is this.
        calls: rows of each call.
        factor: what the answers are multiplied with, as other weights would.
    """

    gate: threading.Event | None = None
    fails: float | None = None
    calls: list[int] = field(default_factory=list)
    factor: float = 1.0

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: Array | None = None,
        committed: Array | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> Array:
        self.calls.append(len(observation))
        if self.gate is not None:
            assert self.gate.wait(DEADLINE)
        if self.fails is not None and (observation.state[:, 0] == self.fails).any():
            raise RuntimeError("told to fail")
        seen = sum(image.astype(np.float64).sum((1, 2, 3)) for image in observation.images.values())
        spoken = np.array([sum(map(ord, text)) for text in observation.instruction])
        drawn = 0.0 if keys is None else keys.seed % 1000 + 10 * keys.episode + 100 * keys.decision
        value = seen + 3 * spoken + observation.state.sum(1, np.float64) + drawn
        actions = np.sin(self.factor * value[:, None, None] + np.arange(4 if whole else 3)[:, None] + 5 * np.arange(2))
        for row in range(0 if prefix is None or committed is None else len(prefix)):
            actions[row, : committed[row]] = prefix[row, : committed[row]]
        return actions.astype(np.float32)


class RefusingPolicy:
    """Refuses each row in words, as a tokenizer does a prompt that is too long."""

    def infer(self, observation: Observation, *_: Any, **options: Any) -> Array:
        raise UserError("The prompt has 99 tokens; the policy reads at most 8.")


@dataclass
class RunningPolicy:
    """A server that runs.

    Attributes:
        url: its address.
        served: who answers; server: the server.
    """

    url: str
    served: ServedPolicy
    server: PolicyServer

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running_policy(policy: Any = None, spec: PolicyDescription = SPEC, port: int = 0, **options: Any) -> Iterator[Any]:
    """Serve a policy, on a free port unless one is given, while the context lasts."""
    settings = PolicyServerSettings(**options)
    served = ServedPolicy(ServedWeights(policy or FakePolicy(), spec, 7, {"policy": "told"}))
    server = PolicyServer(served, settings, find_token(settings.host, settings.token_variable))
    listening = open_socket(settings.host, port)
    ready, ends = threading.Event(), list[Any]()

    async def run() -> None:
        stop = asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        loop = asyncio.get_running_loop()
        await server.run(listening, stop, ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(DEADLINE)
        yield RunningPolicy(f"ws://127.0.0.1:{listening.getsockname()[1]}", served, server)
    finally:
        ends[0]()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def make_observation(seed: int = 0, spec: PolicyDescription = SPEC, rows: int | None = None) -> dict[str, Any]:
    """An observation that fits, drawn; with n rows if they are given."""
    random, lead = np.random.default_rng(seed), () if rows is None else (rows,)
    words = ["go left", "go right"]
    prompts = [words[index] for index in random.integers(0, 2, rows or 1)]
    images = {
        f"images/{name}": random.integers(0, 256, (*lead, *size, 3), dtype=np.uint8)
        for name, size in spec.cameras.items()
    }
    state = random.normal(size=(*lead, len(spec.state_names))).astype(np.float32)
    return {**images, "state": state, "prompt": prompts[0] if rows is None else prompts}


def as_batch(given: Mapping[str, Any]) -> Observation:
    """An observation of rows in this library's form."""
    images = {name.removeprefix("images/"): value for name, value in given.items() if name.startswith("images/")}
    return Observation(images, given["state"], tuple(given["prompt"]))


def open_raw(url: str, **options: Any) -> ClientConnection:
    """A connection without our client; its first message, the metadata, is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as openpi's client connects
        connection = connect(url, max_size=None, proxy=None, **options)
        unpack(connection.recv(DEADLINE))
    return connection


def ask(connection: ClientConnection, message: Any) -> Any:
    """The answer: a map, or the text of an error."""
    connection.send(message if isinstance(message, bytes | str) else pack(message))
    answer = connection.recv(DEADLINE)
    return answer if isinstance(answer, str) else unpack(answer)


def expect(given: dict[str, Any], policy: FakePolicy | None = None, **keys: Any) -> Any:
    """The actions that a policy gives to what is sent."""
    seen, single = read_observation(given, SPEC)
    actions = (policy or FakePolicy()).infer(seen, **keys)
    return actions[0] if single else actions
