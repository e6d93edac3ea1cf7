"""A server that repeats the key it was sent: the key is shown, logged and stored nowhere, in whatever form it comes."""

import asyncio
import base64
import html
import json
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np
import pytest

pytest.importorskip("websockets")

from embodied_rl.critic.evaluation.server_probe import ResponseCapture
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.interfaces.scorer import ScorerError
from embodied_rl.judge.scorers.http_json import JsonServer
from embodied_rl.system.untrusted_files import SecretFilter
from tests.support.faulty_policy_server import METADATA, faulty_server, reply
from tests.support.policy_serving import make_observation

pytestmark = pytest.mark.thorough
KEY = 'sk-planted/4711"\\&x=y'
FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "json": lambda key: json.dumps(key)[1:-1],
    "json with escaped slashes": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "unicode escapes": lambda key: "".join(f"\\u{ord(letter):04X}" for letter in key),
    "repr": lambda key: repr(key)[1:-1],
    "hexadecimal escapes": lambda key: "".join(f"\\x{ord(letter):02x}" for letter in key),
    "repr of json": lambda key: repr(json.dumps(key))[2:-2],
    "percent": quote,
    "percent, everything": lambda key: "".join(f"%{ord(letter):02x}" for letter in key),
    "HTML": html.escape,
    "HTML, numbers": lambda key: "".join(f"&#{ord(letter)};" for letter in key),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of the header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 for addresses": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
}


def hides(text: str) -> bool:
    return not any(form(KEY) in text for form in FORMS.values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", [200, 400, 429, 500])
@pytest.mark.parametrize("content", ["{}", '"said: {}"', '{{"error": "got {}"}}', '{{"{}": 1}}'])
def test_what_a_judge_s_server_says(
    form: str, status: int, content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Authorization"])
        body = content.format(FORMS[form](KEY))
        return httpx2.Response(status, text=body, headers={"X-Echo": quote(KEY), "Retry-After": "1"})

    async def ask() -> str:
        server = JsonServer("http://server.example/v1", "JUDGE_KEY", httpx2.MockTransport(answer))
        try:
            said = await server.send("GET", "models")
        except ScorerError as error:
            return str(error)
        finally:
            await server.close()
        return f"{said} {json.dumps(said)}"

    shown = asyncio.run(ask())
    assert sent == [f"Bearer {KEY}"]
    assert hides(shown) and KEY not in shown, shown
    assert hides(capsys.readouterr().out)


def test_what_an_exception_of_the_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.RemoteProtocolError(f"illegal header {request.headers['Authorization']!r}")

    async def ask() -> None:
        await JsonServer("http://server.example/v1", "JUDGE_KEY", httpx2.MockTransport(answer)).send("GET", "models")

    with pytest.raises(ScorerError, match="illegal header") as refused:
        asyncio.run(ask())
    assert hides(str(refused.value))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_an_answer_in_another_encoding_is_no_answer(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    content = json.dumps({"said": KEY}).encode(encoding)

    async def ask() -> Any:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=content))
        return await JsonServer("http://server.example/v1", "JUDGE_KEY", transport).send("GET", "models")

    with pytest.raises(ScorerError, match="is not JSON"):
        asyncio.run(ask())


def test_what_a_probe_keeps_of_answers() -> None:
    answer = {"data": [{"id": f"model {KEY}", "asked_with": {KEY: KEY}}]}
    watch = ResponseCapture(httpx2.MockTransport(lambda request: httpx2.Response(200, json=answer)))

    async def ask() -> None:
        async with httpx2.AsyncClient(transport=watch, headers={"Authorization": f"Bearer {KEY}"}) as client:
            await client.get("http://server.example/v1/models")

    asyncio.run(ask())
    assert watch.models[0].startswith("model ") and hides(repr(watch.answers))


@pytest.mark.parametrize("form", ["raw", "json", "percent", "base64"])
def test_what_a_policy_s_server_says(form: str) -> None:
    said, token = FORMS[form](KEY), KEY
    with (
        faulty_server(lambda number, asked: f"refused {said}") as url,
        PolicyClient(url, token=token) as client,
        pytest.raises(Exception, match="refused") as refused,
    ):
        client.act(make_observation())
    assert hides(str(refused.value))


def test_what_a_policy_s_server_says_of_itself() -> None:
    greeting = pack({**METADATA, "policy": f"mine {KEY}", KEY: [KEY, {"deep": KEY}]})
    with faulty_server(lambda number, asked: reply(asked), greeting) as url, PolicyClient(url, token=KEY) as client:
        assert hides(repr(client.metadata)) and client.metadata["policy"].startswith("mine ")
        assert client.act(make_observation()).shape == (3, 2)


def test_the_names_of_a_policy_server_s_answer() -> None:
    with (
        faulty_server(lambda number, asked: pack({KEY: np.zeros(2), "seq": 1, "epoch": 0})) as url,
        PolicyClient(url, token=KEY) as client,
        pytest.raises(RuntimeError, match="its response has") as refused,
    ):
        client.act(make_observation())
    assert hides(str(refused.value))


def test_a_handshake_that_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                asked = connection.recv(65536)
                assert KEY.encode() in asked
                body = f"401 you sent {KEY}".encode()
                connection.sendall(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(RuntimeError, match="you sent") as refused:
            PolicyClient(f"ws://127.0.0.1:{listening.getsockname()[1]}", token=KEY, deadline=20)
        thread.join(20)
    assert hides(str(refused.value))


def test_a_filter_leaves_other_texts_alone() -> None:
    text = b"the server answers 429: slow down, 3 requests"
    assert SecretFilter(KEY).clean(text) == text
    assert SecretFilter(None).clean(text) == text
    assert SecretFilter("3").clean(text) == text, "a word so short is no secret, and may be an answer"
    assert len(SecretFilter(KEY).clean(KEY.encode())) == len(KEY)
