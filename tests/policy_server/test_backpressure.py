"""A client that sends faster than the policy computes is stopped by TCP: the server's memory is bounded."""

import dataclasses
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection

from embodied_rl.deployment.policy_client.wire import WireLimits, pack, unpack
from embodied_rl.policy_server import server
from tests.support.ended import wait_for
from tests.support.policy_serving import DEADLINE, SPEC, FakePolicy, make_observation, open_raw, running_policy

AHEAD = 3 * 256 * 1024
"""Bytes: asyncio reads 256 KiB at most at once, and stops after two or three reads."""


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
