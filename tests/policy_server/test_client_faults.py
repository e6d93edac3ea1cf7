"""A client gets an answer to its question, or an error, within its deadline: never an old action."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from random import Random
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.policy_client.client import NoPolicyAnswer, PolicyClient, PolicyRefusal
from embodied_rl.deployment.policy_client.websocket_client import ConnectionLost
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.interfaces.errors import UserError
from tests.support.ended import stop_process, wait_for
from tests.support.faulty_policy_server import GREETING, METADATA, faulty_server, reply
from tests.support.policy_serving import DEADLINE, expect, make_observation, running_policy

SLACK = 20.0
"""Seconds by which a machine that is busy may be late; a client that waits without a deadline waits longer."""
OURS = make_observation()


def fail_within(client: PolicyClient, deadline: float, said: str = ".", **more: Any) -> None:
    began = time.monotonic()
    with pytest.raises(NoPolicyAnswer, match=said) as caught:
        client.act(OURS, deadline=deadline, **more)
    assert time.monotonic() - began < deadline + SLACK
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("9", r"embodied-rl serve policy=<run\|file> starts one"),
        ("99999", r"ws://127\.0\.0\.1:99999: Port out of range"),
    ],
)
def test_nobody_listens(port: str, said: str) -> None:
    with pytest.raises(NoPolicyAnswer, match=said):
        PolicyClient(f"ws://127.0.0.1:{port}", deadline=5)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "runs/demo"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="begins with ws://"):
        PolicyClient(url)


@pytest.mark.thorough
def test_somebody_else_listens_and_is_silent() -> None:
    """Or a policy server that sends no metadata."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        faulty_server(lambda number, asked: None, greeting=None) as mute,
    ):
        for url in (f"ws://127.0.0.1:{silent.getsockname()[1]}", mute):
            with pytest.raises(NoPolicyAnswer, match="did not answer in time"):
                PolicyClient(url, deadline=0.3)


def test_a_server_of_http_is_no_policy_server() -> None:
    with running_policy() as running, pytest.raises(NoPolicyAnswer, match="404") as caught:
        PolicyClient(f"{running.url}/v1", deadline=5)
    assert "without a path" in str(caught.value) and "Is the server running" not in str(caught.value)


def test_a_late_answer_is_never_taken_for_a_later_question() -> None:
    held = threading.Event()

    def answer(number: int, asked: dict[str, Any]) -> bytes:
        if number == 0:
            assert held.wait(DEADLINE)
        return reply(asked)

    with faulty_server(answer) as url, PolicyClient(url) as client:
        fail_within(client, 0.2, "did not answer in time")
        held.set()
        for number in range(2, 5):
            assert (client.act(OURS) == number).all(), "the number of this question, not of an earlier one"


WRONG: dict[str, Any] = {
    "an answer to the question before": lambda asked: reply(asked, seq=asked["seq"] - 1),
    "an answer to none": lambda asked: reply(asked, seq=None),
    "an answer of another epoch": lambda asked: reply(asked, epoch=asked["epoch"] + 1),
    "no actions": lambda asked: reply(asked, actions=None),
    "actions in text": lambda asked: reply(asked, actions="go"),
    "whole numbers": lambda asked: reply(asked, actions=np.zeros((3, 2), np.int64)),
    "NaN": lambda asked: reply(asked, actions=np.full((3, 2), np.nan, np.float32)),
    "infinity in float32": lambda asked: reply(asked, actions=np.full((3, 2), 1e300)),
    "a number that is an array": lambda asked: reply(asked, seq=np.full(2, asked["seq"])),
    "infinity": lambda asked: reply(asked, actions=np.full((3, 2), np.inf, np.float32)),
    "no action": lambda asked: reply(asked, actions=np.zeros((0, 2), np.float32)),
    "other joints": lambda asked: reply(asked, actions=np.zeros((3, 3), np.float32)),
    "rows that were not asked for": lambda asked: reply(asked, actions=np.zeros((1, 3, 2), np.float32)),
    "fewer actions than are executed": lambda asked: reply(asked, actions=np.zeros((2, 2), np.float32)),
    "more actions than are predicted": lambda asked: reply(asked, actions=np.zeros((1000, 2), np.float32)),
    "an action above its limit": lambda asked: reply(asked, actions=np.full((3, 2), 1.1e6, np.float32)),
    "an action below its limit": lambda asked: reply(asked, actions=np.full((3, 2), -1.1e6, np.float32)),
    "one action without an axis": lambda asked: reply(asked, actions=np.zeros(2, np.float32)),
    "a list": lambda asked: pack([1, 2]),
    "no msgpack": lambda asked: b"\xc1\xc1",
    "half of it": lambda asked: reply(asked)[:40],
    "objects": lambda asked: pack({"actions": {"__ndarray__": True, "data": b"x", "dtype": "|O", "shape": [1]}}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_an_error_and_the_next_one_is_right(kind: str) -> None:
    with (
        faulty_server(lambda number, asked: WRONG[kind](asked) if number == 0 else reply(asked)) as url,
        PolicyClient(url) as client,
    ):
        fail_within(client, 10.0)
        assert (client.act(OURS) == 2).all()


@pytest.mark.parametrize("greeting", [GREETING, pack({})], ids=["ours", "others"])
def test_what_was_sent_twice_is_not_taken_for_the_next_answer(greeting: bytes) -> None:
    """Answers of other projects' servers say nothing of their question."""

    def answer(number: int, asked: dict[str, Any]) -> list[Any]:
        said = reply(asked, actions=np.full((3, 2), asked["state"][0], np.float32))
        return [said, said]

    with faulty_server(answer, greeting) as url, PolicyClient(url) as client:
        for number in range(4):
            asked = OURS | {"state": np.full(3, number, np.float32)}
            assert (client.act(asked, deadline=DEADLINE) == number).all(), "over a new connection"
            connection: Any = client._link._connection
            wait_for(lambda connection=connection: len(connection.recv_messages.frames) == 1)


@pytest.mark.parametrize("wrong", [bytes(65 * 2**20), ConnectionError()], ids=["huge", "hung up"])
def test_a_question_is_asked_again_over_a_new_connection_within_the_deadline(wrong: Any) -> None:
    def answer(number: int, asked: dict[str, Any]) -> Any:
        if number < 2 and isinstance(wrong, Exception):
            raise wrong
        return wrong if number == 0 else reply(asked)

    with faulty_server(answer) as url, PolicyClient(url) as client:
        assert (client.act(OURS, deadline=DEADLINE) == 1).all()


def test_an_error_in_words_is_shown_and_the_client_goes_on() -> None:
    with (
        faulty_server(lambda number, asked: "Traceback …\nKeyError: 'x'" if number == 0 else reply(asked)) as url,
        PolicyClient(url) as client,
    ):
        with pytest.raises(PolicyRefusal, match="KeyError: 'x'"):
            client.act(OURS)
        assert (client.act(OURS) == 2).all()


def test_a_server_that_is_gone_is_an_error_and_one_that_is_back_is_found() -> None:
    with faulty_server(lambda number, asked: reply(asked)) as url:
        client = PolicyClient(url)
        client.act(OURS)
    fail_within(client, 0.5, "Is the server running")
    with faulty_server(lambda number, asked: reply(asked), port=int(url.rpartition(":")[2])):
        assert (client.act(OURS, deadline=DEADLINE) == 3).all()
    client.close()


@pytest.mark.parametrize("other", [METADATA | {"action_names": ["dy", "dx"]}, {"who": "a server of others"}])
def test_another_policy_at_the_same_address_is_refused(other: dict[str, Any]) -> None:
    with faulty_server(lambda number, asked: reply(asked)) as url:
        client = PolicyClient(url)
    with (
        faulty_server(lambda number, asked: reply(asked), pack(other), int(url.rpartition(":")[2])),
        pytest.raises(UserError, match="another policy than before"),
    ):
        client.act(OURS, deadline=DEADLINE)
    client.close()


@pytest.mark.thorough
def test_a_server_that_reads_nothing_does_not_hold_a_client() -> None:
    """Its buffers fill up, so that sending itself has to end."""
    stop = threading.Event()

    def answer(number: int, asked: dict[str, Any]) -> None:
        stop.wait(DEADLINE)

    large = {"images/front": np.zeros((500, 4, 5, 3), np.uint8)}
    with faulty_server(answer, pack(METADATA | {"message_bytes": 2**30})) as url, PolicyClient(url) as client:
        try:
            for _ in range(3):
                fail_within(client, 0.2)
            client.spec = None
            began = time.monotonic()
            with pytest.raises(NoPolicyAnswer):
                client.act(OURS | {"more": np.zeros(40 * 2**20, np.uint8)} | large, deadline=0.5)
            assert time.monotonic() - began < SLACK
        finally:
            stop.set()


def test_a_client_that_was_closed_says_so() -> None:
    with faulty_server(lambda number, asked: reply(asked)) as url:
        client = PolicyClient(url)
        client.close()
        client.close()
        with pytest.raises(NoPolicyAnswer):
            client.act(OURS, deadline=0.5)


@pytest.mark.thorough
def test_a_client_that_ends_after_a_fault_leaves_no_task_behind(caplog: pytest.LogCaptureFixture) -> None:
    with faulty_server(lambda number, asked: b"\xc1") as url:
        for _ in range(20):
            with PolicyClient(url) as client, pytest.raises(NoPolicyAnswer):
                client.act(OURS)
            del client
    gc.collect()
    assert "Task was destroyed" not in caplog.text


@pytest.mark.thorough
def test_faults_by_chance() -> None:
    """Whatever happens to an answer, the client has one of its own question or an error."""
    random = Random(5)

    def answer(number: int, asked: dict[str, Any]) -> Any:
        kind = random.randrange(6)
        if kind == 0:
            raise ConnectionError
        if kind == 1:
            return random.choice(list(WRONG.values()))(asked)
        if kind == 2:
            return [reply(asked), reply(asked, actions=np.full((3, 2), -1, np.float32))]
        return random.randbytes(random.randrange(100)) if kind == 3 else reply(asked)

    right = 0
    with faulty_server(answer) as url, PolicyClient(url) as client:
        for number in range(1, 201):
            try:
                assert (client.act(OURS, deadline=DEADLINE) == number).all(), "never an old action"
                right += 1
            except (NoPolicyAnswer, PolicyRefusal):
                pass
    assert right > 40


def test_a_server_that_is_there_again_and_silent_is_called_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not absent, as it was before."""
    with running_policy() as running, PolicyClient(running.url) as client:
        connect, exchange, lost = client._link.connect, client._link.exchange, [ConnectionLost("Connection refused")]

        def connect_later(until: float) -> None:
            if lost:
                raise lost.pop()
            connect(until)

        def fall_silent(message: bytes | None, until: float) -> bytes | str:
            if message is None:  # the greeting
                return exchange(message, until)
            raise TimeoutError

        client._link.drop()
        monkeypatch.setattr(client._link, "connect", connect_later)
        monkeypatch.setattr(client._link, "exchange", fall_silent)
        fail_within(client, 30.0, "did not answer in time")
        assert not lost


def test_time_that_ends_while_it_connects_again_hides_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, where one try takes what is left of the time."""
    with running_policy() as running, PolicyClient(running.url) as client:
        outcomes: list[Exception] = [ConnectionLost("Connection refused"), TimeoutError()]

        def connect(_: float) -> None:
            raise outcomes.pop(0)

        client._link.drop()
        monkeypatch.setattr(client._link, "connect", connect)
        fail_within(client, 30.0, "Connection refused; 1 tries. Is the server running")
        assert not outcomes


# -- processes --------------------------------------------------------------------------------------------------------

SERVER = """
import time
from tests.support.policy_serving import running_policy
with running_policy(port={port}) as running:
    print(running.url, flush=True)
    time.sleep(600)
"""


def start_server(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER.format(port=port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.thorough
@pytest.mark.process
def test_a_server_that_is_killed_or_stopped_is_an_error_in_time_and_found_again() -> None:
    process, url = start_server()
    try:
        with PolicyClient(url, deadline=DEADLINE) as client:
            expected = client.act(OURS)
            stop_process(process.pid)
            fail_within(client, 0.5, "did not answer in time")
            fail_within(client, 0.5)
            os.kill(process.pid, signal.SIGCONT)
            assert (client.act(make_observation(1)) == expect(make_observation(1))).all()
            process.kill()
            process.wait()
            fail_within(client, 0.5, "Is the server running")
            process, again = start_server(int(url.rpartition(":")[2]))
            assert again == url and (client.act(OURS) == expected).all()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
