"""Starting a server and ending it: address, token, the missing extra, and signals."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from embodied_rl.serving import starting
from embodied_rl.serving.limits import ServerSettings
from embodied_rl.serving.listening import format_url, open_socket
from embodied_rl.serving.starting import check_settings, start_server
from tests.support.ended import wait_for
from tests.support.refusals import refuses
from tests.support.serving import DEADLINE, ToldModel, make_critic, running, say

TOKEN = "0123456789-abcdefghij"
SERVE = """
import sys, threading
from embodied_rl.serving.starting import ServerSettings, start_server
from embodied_rl.cli.main import announce_end
from tests.support.serving import ToldModel
gate = threading.Event() if "held" in sys.argv else None
with announce_end():
    start_server(ToldModel(gate), ServerSettings())
"""


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address, once it answers."""
    command = [sys.executable, "-u", "-c", SERVE, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + process.stdout.read()
        yield process, found[0]
    finally:
        process.kill()
        process.wait(DEADLINE)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("held", [False, True])
def test_a_signal_ends_it_within_seconds(number: signal.Signals, held: bool) -> None:
    """Also while the model computes a batch that never ends, for a client that waits."""
    with (
        started(*(["held"] if held else [])) as (process, url),
        httpx2.Client(base_url=url, timeout=DEADLINE) as client,
    ):
        assert client.get("/health").status_code == 200
        if held:
            with suppress(httpx2.TimeoutException):
                client.post("/v1/chat/completions", json=say("x"), timeout=1.0)
        else:
            assert client.post("/v1/chat/completions", json=say("x")).status_code == 200
        began = time.monotonic()
        process.send_signal(number)
        said, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, said
        assert "The server has ended." in said and "Traceback" not in said
        assert time.monotonic() - began < 30


@pytest.mark.thorough
@pytest.mark.process
def test_a_client_that_waits_is_given_up() -> None:
    """Its request is cut off; the end does not wait for the model."""
    with started("held") as (process, url), httpx2.Client(base_url=url, timeout=DEADLINE) as client:
        with socket.create_connection((httpx2.URL(url).host, httpx2.URL(url).port or 0), timeout=DEADLINE) as waiting:
            body = b'{"model": "told", "messages": [{"role": "user", "content": "x"}]}'
            head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            waiting.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body)
            wait_for(lambda: client.get("/health").json()["answering"])
            process.send_signal(signal.SIGTERM)
            assert b"200 OK" not in waiting.recv(10_000)
        said, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, said


def test_it_says_what_to_type(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.serving.listening.serve", lambda application, listening, ready: ready())
    monkeypatch.setenv("CRITIC_TOKEN", TOKEN)
    start_server(make_critic(), ServerSettings(token_variable="CRITIC_TOKEN"))
    said = capsys.readouterr().out
    assert re.search(r"reward=vlm reward\.url=http://127\.0\.0\.1:\d+/v1 reward\.prompt=embedded ", said)
    assert "reward.key_variable=CRITIC_TOKEN" in said and TOKEN not in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_need_a_token(host: str) -> None:
    with refuses("token-missing", "token_variable=<NAME>"):
        check_settings(ServerSettings(host=host))


@pytest.mark.parametrize("token", [None, "", "short", "ä" * 20, "with\nline breaks in it"])
def test_a_token_that_is_none(token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRITIC_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("CRITIC_TOKEN", token)
    with refuses("token-invalid", "token_variable=CRITIC_TOKEN") as raised:
        check_settings(ServerSettings(token_variable="CRITIC_TOKEN"))
    assert not token or token not in str(raised.value)


def test_everything_but_health_needs_the_token(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRITIC_TOKEN", TOKEN)
    caplog.set_level(0)
    with running(ToldModel(), token_variable="CRITIC_TOKEN") as server:
        for client in (server.client("a-wrong-token-0123456789"), server.client()):
            for path in ("/v1/models", "/metrics", "/v1/chat/completions", "/"):
                answer = client.get(path)
                assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
            assert client.post("/v1/chat/completions", json=say("x")).status_code == 401
            assert client.get("/health").status_code == 200
            client.close()
        with server.client(TOKEN) as right:
            assert right.get("/v1/models").status_code == right.get("/metrics").status_code == 200
            assert right.post("/v1/chat/completions", json=say("x")).status_code == 200
            assert right.get("/v1/models", headers={"Authorization": TOKEN}).status_code == 401, "without Bearer"
    out, err = capfd.readouterr()
    logged = "".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("uvicorn", "embodied"))
    )
    assert TOKEN not in out + err + logged and "a-wrong-token" not in out + err + logged


def test_a_port_that_is_taken() -> None:
    with open_socket("127.0.0.1", 0) as taken, refuses("address-unusable", "port=0"):
        open_socket("127.0.0.1", taken.getsockname()[1])


def test_addresses() -> None:
    with open_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert format_url("127.0.0.1", listening) == f"http://127.0.0.1:{port}/v1"
        assert format_url("::1", listening) == f"http://[::1]:{port}/v1"
        assert format_url("0.0.0.0", listening) == f"http://{socket.gethostname()}:{port}/v1"
    with refuses("address-unusable", "host=nowhere.invalid"):
        open_socket("nowhere.invalid", 0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "find_spec", lambda name: None if name == "uvicorn" else object())
    with refuses("package-missing", "uvicorn", "embodied-rl[serve]"):
        check_settings(ServerSettings())


def test_the_room_is_imported_without_the_extra() -> None:
    """What the command imports before it checks: files that import neither starlette nor uvicorn."""
    folder = Path(starting.__file__).parent
    for name in ("starting", "batcher", "chat", "pictures", "limits", "model", "refusal", "embedded_critic"):
        text = (folder / f"{name}.py").read_text()
        assert not re.search(r"^(from|import) (starlette|uvicorn|prometheus_client)", text, re.MULTILINE), name
