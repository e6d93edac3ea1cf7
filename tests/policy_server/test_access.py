"""Who may ask a policy behind a websocket, and that strangers disturb nobody."""

import socket
import threading
from random import Random
from typing import Any

import httpx2
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.interfaces.errors import UserError
from tests.support.policy_serving import (
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


# -- strangers --------------------------------------------------------------------------------------------------------


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
