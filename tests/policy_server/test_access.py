"""Who may ask a policy server, that strangers disturb nobody, and that no client fills its memory."""

import dataclasses
import socket
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx2
import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.wire import WireLimits, pack, unpack
from embodied_rl.interfaces.errors import UserError
from embodied_rl.policy_server import server
from tests.support.ended import wait_for
from tests.support.policy_serving import (
    DEADLINE,
    SPEC,
    FakePolicy,
    RunningPolicy,
    ask,
    expect,
    make_observation,
    open_raw,
    running_policy,
)

# -- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/health"])
def test_health_is_answered_without_a_token(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    with running_policy(token_variable="TOKEN") as running:
        answer = httpx2.get(running.url.replace("ws", "http", 1) + path)
    assert (answer.status_code, answer.text) == (200, "OK\n")


@pytest.mark.parametrize("path", ["/evil", "/vla-evaluation", "/metrics"])
def test_other_paths_are_refused_in_words(running: RunningPolicy, path: str) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        connect(running.url + path, proxy=None)


def test_another_address_needs_a_token() -> None:
    with pytest.raises(UserError, match="token is needed"), running_policy(host="0.0.0.0"):
        pass


@pytest.mark.parametrize("kind", ["Bearer", "Api-Key"])
def test_the_token_is_asked_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    with running_policy(token_variable="TOKEN") as running:
        with open_raw(running.url, additional_headers={"Authorization": f"{kind} 0123456789abcdef"}) as connection:
            assert "actions" in ask(connection, make_observation())
        for sent in (None, f"{kind} 0123456789abcdeg", f"{kind} ", "0123456789abcdef"):
            with pytest.raises(InvalidStatus, match="401"):
                connect(running.url, proxy=None, additional_headers={"Authorization": sent} if sent else {})
        with PolicyClient(running.url, token="0123456789abcdef") as client:
            assert client.is_ours
        with pytest.raises(RuntimeError, match="401 The token is missing or wrong"):
            PolicyClient(running.url, token="wrong")


def test_web_pages_cannot_connect(running: RunningPolicy) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(running.url, proxy=None, origin="http://127.0.0.1")  # type: ignore[arg-type]


def test_more_clients_than_places_are_told_so() -> None:
    with running_policy(clients=2) as running:
        first, second = open_raw(running.url), open_raw(running.url)
        with pytest.raises(InvalidStatus, match="503"):
            connect(running.url, proxy=None)
        first.close()
        second.close()
        with PolicyClient(running.url) as client:
            assert client.act(make_observation()).shape == (3, 2), "a place is free again"


def test_a_port_in_use_is_one_line(running: RunningPolicy) -> None:
    with (
        pytest.raises(UserError, match=rf"port={running.port} cannot be listened on.*port=0 takes a free one"),
        running_policy(port=running.port),
    ):
        pass


def mutate(random: Random) -> bytes:
    """A message that is random, or a good one in which something is other."""
    good = bytearray(pack(make_observation(random.randrange(10))))
    kind = random.randrange(4)
    if kind == 0:
        return random.randbytes(random.randrange(200))
    if kind == 1:
        return bytes(good[: random.randrange(len(good))])
    if kind == 2:
        for _ in range(random.randint(1, 8)):
            good[random.randrange(len(good))] = random.randrange(256)
        return bytes(good)
    values = [None, -1, 2**63, 1e308, "evil", b"evil", [], {}, [[]], {"a": {}}, np.zeros(0), np.zeros((2, 3), np.int8)]
    given: dict[str, Any] = {**make_observation(), "seed": 1, "prefix": np.zeros((1, 2), np.float32)}
    given[random.choice([*given, "seq", "epoch", "episode", "decision", "committed", "more"])] = random.choice(values)
    return pack(given)


@pytest.mark.thorough
def test_a_thousand_random_messages_are_answered_or_refused(running: RunningPolicy) -> None:
    random, answered, refused = Random(3), 0, 0
    connection = open_raw(running.url)
    for _ in range(1000):
        said = ask(connection, mutate(random))
        if isinstance(said, str):
            assert said and "Traceback" not in said
            refused += 1
            connection.close()
            connection = open_raw(running.url)
        else:
            assert said["actions"].shape[-2:] == (4, 2)
            answered += 1
    assert answered > 20 and refused > 500
    assert (ask(connection, make_observation())["actions"] == expect(make_observation(), whole=True)).all()
    connection.close()


def test_who_speaks_no_websocket_disturbs_nobody(running: RunningPolicy, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(1)
    with PolicyClient(running.url) as client:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", running.port)) as stranger:
                stranger.sendall(random.randbytes(100) + b"\r\n\r\n")
        assert client.act(make_observation()).shape == (3, 2)
    assert "Traceback" not in caplog.text


def test_a_client_that_leaves_while_it_is_computed_for_disturbs_nobody() -> None:
    gate, policy = threading.Event(), FakePolicy()
    policy.gate = gate
    with running_policy(policy) as running:
        gone = open_raw(running.url)
        gone.send(pack(make_observation()))
        while not policy.calls:
            pass
        gone.socket.shutdown(socket.SHUT_RDWR)
        gate.set()
        with PolicyClient(running.url) as client:
            assert client.act(make_observation()).shape == (3, 2)


AHEAD = 3 * 256 * 1024
"""Bytes: asyncio reads 256 KiB at most at once, and stops after two or three reads."""


@pytest.mark.thorough
@pytest.mark.parametrize(("clients", "size", "messages"), [(4, (1024, 1024), 4), (1, (100, 200), 60)])
def test_a_connection_reads_one_question_at_a_time(
    clients: int, size: tuple[int, int], messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, take = Counter[ServerConnection](), server._Connection.data_received
    spec = dataclasses.replace(SPEC, cameras={"front": size})
    message, gate = pack(make_observation(spec=spec)), threading.Event()
    policy, ahead = FakePolicy(gate), list[int]()

    def count(connection: server._Connection, data: bytes) -> None:
        received[connection] += len(data)
        ahead.append(received[connection] - (len(policy.calls) + 2) * len(message))  # computed, waiting, the next
        take(connection, data)

    monkeypatch.setattr(server._Connection, "data_received", count)
    assert len(message) * messages > len(message) + 2 * AHEAD, "more than may be read"
    with running_policy(policy, spec) as running, ThreadPoolExecutor(clients) as pool:
        opened = [open_raw(running.url) for _ in range(clients)]
        sent = [pool.submit(lambda each=each: [each.send(message) for _ in range(messages)]) for each in opened]
        try:
            wait_for(lambda: len(received) == clients and not any(each.transport.is_reading() for each in received))
            assert max(received.values()) <= len(message) + AHEAD, "a question, and the start of the next"
        finally:
            gate.set()
        for _ in range(messages):
            assert all("actions" in unpack(each.recv(DEADLINE)) for each in opened), "it reads on after an answer"
        assert max(ahead) <= AHEAD
        for each, done in zip(opened, sent, strict=True):
            done.result(DEADLINE)
            each.close()


def test_a_question_is_held_once_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its observation; neither the message nor what was unpacked of it is kept."""
    frames: list[Any] = []
    seen: list[weakref.ref[Any]] = []
    process, recv, read = server._Connection.process_event, server._Connection.recv, server.unpack

    async def receive(connection: server._Connection, decode: bool | None = None) -> memoryview:
        message = memoryview(await recv(connection, decode))  # bytes have no weak references
        seen.append(weakref.ref(message))
        return message

    def unpack_noted(message: bytes, limits: WireLimits) -> dict[str, Any]:
        said = read(message, limits)
        seen.extend(weakref.ref(value) for value in said.values() if isinstance(value, np.ndarray))
        return said

    monkeypatch.setattr(server._Connection, "process_event", lambda *args: (frames.append(args[1]), process(*args)))
    monkeypatch.setattr(server._Connection, "recv", receive)
    monkeypatch.setattr(server, "unpack", unpack_noted)
    gate, policy = threading.Event(), FakePolicy()
    policy.gate = gate
    with running_policy(policy) as running, open_raw(running.url) as client:
        client.send(pack(make_observation()))
        try:
            wait_for(lambda: bool(policy.calls))
            assert len(seen) == 1 + 3 and not any(each() is not None for each in seen)
            assert len(frames) == 2 and not frames[1].data, "the handshake and a frame, which websockets keeps"
        finally:
            gate.set()
        assert "actions" in unpack(client.recv(DEADLINE))


def test_pings_are_answered_while_a_question_is_not() -> None:
    gate = threading.Event()
    with running_policy(FakePolicy(gate)) as running, open_raw(running.url) as client:
        client.send(pack(make_observation()))
        try:
            assert client.ping().wait(DEADLINE)
        finally:
            gate.set()
        assert "actions" in unpack(client.recv(DEADLINE))
