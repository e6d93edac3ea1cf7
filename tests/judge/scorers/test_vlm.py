"""The client of OpenAI-compatible servers: what it sends, what it reads, and how it takes every kind of trouble."""

import asyncio
import base64
import io
import json
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.judge.scorers.http_json import LONGEST_ANSWER
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import request, score

URL = "http://server.example/v1"
LONG = {"token": "7", "logprob": -(10**400)}
MODELS = {"object": "list", "data": [{"id": "judge", "object": "model"}]}


def completion(text: str = "7", **probabilities: float) -> dict[str, Any]:
    """An answer in the form of the OpenAI API's reference."""
    top = [{"token": token, "logprob": math.log(each), "bytes": None} for token, each in probabilities.items()]
    told = {"content": [{"token": text, "logprob": -0.1, "bytes": None, "top_logprobs": top}], "refusal": None}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    choice["logprobs"] = told if probabilities else None
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice]}


def ask(
    answer: Callable[[httpx2.Request], httpx2.Response], asked: ScoreRequest | None = None, check: bool = False,
    **config: Any,
) -> Score:  # fmt: skip
    """The score of one request, from a server that is a function."""

    def serve(sent: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=MODELS) if sent.url.path.endswith("/models") else answer(sent)

    scorer = VlmScorer(VlmConfig(**{"url": URL} | config), SPEC, httpx2.MockTransport(serve))
    return score(scorer, asked or request(100), check=check)[0]


def saying(status: int = 200, **options: Any) -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda sent: httpx2.Response(status, **options)


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words, the first picture, the present one; a key only in its header."""
    sent: list[httpx2.Request] = []

    def answer(each: httpx2.Request) -> httpx2.Response:
        sent.append(each)
        return httpx2.Response(200, json=completion("0", **{"0": 1.0}))

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    ask(answer, request(200, words="pick up the red cube"))
    (each,) = sent
    body = json.loads(each.content)
    assert str(each.url) == f"{URL}/chat/completions" and each.headers["Authorization"] == "Bearer sk-secret"
    assert b"sk-secret" not in each.content
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("judge", 1, 0)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    parts = body["messages"][-1]["content"]
    assert "pick up the red cube" in parts[0]["text"]
    pictures = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(pictures) == 2 and all(url.startswith("data:image/jpeg;base64,") for url in pictures)
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[1].partition(",")[2]))))
    assert drawn.shape == (224, 224, 3) and np.abs(drawn.astype(int) - 200).max() <= 3


def test_a_server_without_log_probabilities_is_read_by_text() -> None:
    """It refuses the key once, and is not asked for it again."""
    bodies: list[dict[str, Any]] = []

    def answer(sent: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(sent.content))
        if "logprobs" in bodies[-1]:
            return httpx2.Response(400, json={"error": {"message": "Unsupported fields in the request: logprobs"}})
        return httpx2.Response(200, json=completion("6"))

    assert ask(answer, check=True).value == pytest.approx(6 / 9, abs=1e-6)
    assert ["logprobs" in body for body in bodies] == [True, False, False]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"choices": []}, {"choices": [{}]}, {"choices": [None]}, {"choices": "x"}, completion("no idea"),
        {"choices": [{"message": {"content": None}}]}, {"choices": [{"message": {"content": ["7"]}}]},
        {"choices": [{"message": {"content": "7"}, "logprobs": {"content": []}}]},
        {"choices": [{"message": {"content": "7"}, "logprobs": {"content": [{"top_logprobs": [LONG]}]}}]},
        {"choices": [{"message": {"content": "7"}, "logprobs": {"content": [{"top_logprobs": [{"token": 7}]}]}}]},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_score(body: dict[str, Any]) -> None:
    found = ask(saying(json=body))
    assert found.reason == "unreadable" and math.isnan(found.value)


@pytest.mark.parametrize(
    "response, reason, permanent",
    [
        ({"status": 429, "headers": {"Retry-After": "3"}}, "busy", False),
        ({"status": 500}, "failed", False),
        ({"status": 503}, "failed", False),
        ({"status": 408}, "failed", False),
        ({"status": 400, "text": "no pictures, please"}, "refused", True),
        ({"status": 404, "text": "no such model"}, "refused", True),
        ({"status": 302, "headers": {"Location": "http://elsewhere"}}, "refused", True),
        ({"text": "<html>"}, "failed", False),
        ({"text": "[1]"}, "failed", False),
        ({"content": b"\xff\xfe"}, "failed", False),
        ({"content": b"x" * (LONGEST_ANSWER + 1)}, "failed", False),
        ({"content": b'{"choices": ['}, "failed", False),
        ({"content": b'{"choices": ' + b"[" * 100_000}, "failed", False),
        ({"content": b'{"choices": ' + b"9" * 10_000 + b"}"}, "failed", False),
    ],
)
def test_trouble_has_its_reason(response: dict[str, Any], reason: str, permanent: bool) -> None:
    status = response.pop("status", 200)
    with pytest.raises(ScorerError) as raised:
        ask(saying(status, **response))
    assert (raised.value.reason, raised.value.permanent) == (reason, permanent)
    assert raised.value.retry_after == (3.0 if status == 429 else None)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", "soon"])
def test_a_strange_retry_after_is_left_out(header: str) -> None:
    with pytest.raises(ScorerError) as raised:
        ask(saying(429, headers={"Retry-After": header}))
    assert raised.value.retry_after is None


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("key", [None, "sk-secret"])
def test_a_wrong_key_is_named_and_never_shown(status: int, key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match=r"OPENAI_API_KEY") as raised:
        ask(saying(status, text="bad key sk-secret"), check=True)
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "models, model, named",
    [
        (["a", "b"], None, ("reward.model", "a, b")),
        ([], None, ("no model", "reward.model")),
        (["judge-7b"], "judge-8b", ("'judge-8b'", "judge-7b")),
    ],
)
def test_a_missing_model_is_refused(models: list[str], model: str | None, named: tuple[str, ...]) -> None:
    listed = {"data": [{"id": name} for name in models]}
    transport = httpx2.MockTransport(lambda sent: httpx2.Response(200, json=listed))
    with refuses("scorer-refused", *named):
        score(VlmScorer(VlmConfig(url=URL, model=model), SPEC, transport), check=True)


CACHED = httpx2.Response(200, json={"data": [{"id": "cached"}]})
BUSY = httpx2.Response(503, text="the model is loading")
PINNED = httpx2.Response(400, text="Server is pinned to '/models/other'")


def choose(listed: httpx2.Response, answered: httpx2.Response, model: str) -> None:
    """Choose a model of a server that answers so."""

    def serve(sent: httpx2.Request) -> httpx2.Response:
        said = listed if sent.url.path.endswith("/models") else answered
        return httpx2.Response(said.status_code, content=said.content)

    async def run() -> None:
        scorer = VlmScorer(VlmConfig(url=URL, model=model), SPEC, httpx2.MockTransport(serve))
        await scorer.open()
        await scorer.choose_model()

    asyncio.run(run())


def signed(by: object) -> httpx2.Response:
    return httpx2.Response(200, json=completion() | {"model": by})


@pytest.mark.parametrize("status", [404, 405, 500, 501])
@pytest.mark.parametrize("signature", ["/models/judge", "/models/judge@main"])
def test_a_model_of_a_server_without_a_list(status: int, signature: str) -> None:
    choose(httpx2.Response(status, text="no list"), signed(signature), "/models/judge")


@pytest.mark.parametrize("signature", ["/models/other@main", "/models/judge-2@main", None, 3])
@pytest.mark.parametrize("listed", [httpx2.Response(500, text="no list"), CACHED])
def test_an_answer_of_another_model_is_none_of_this_one(signature: object, listed: httpx2.Response) -> None:
    """In spite of the list, or without one."""
    with pytest.raises(ScorerError, match=r"no model '/models/judge'|no list"):
        choose(listed, signed(signature), "/models/judge")


@pytest.mark.parametrize(("model", "signature"), [("/models/judge", "/models/judge@main"), ("org/judge@v2",) * 2])
def test_transformers_serves_what_it_does_not_list(model: str, signature: str) -> None:
    choose(CACHED, signed(signature), model)


def test_servers_that_answer_with_any_name_are_not_believed() -> None:
    with pytest.raises(ScorerError, match=r"no model 'typo'.*cached"):
        choose(CACHED, signed("typo"), "typo")


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_server_that_does_not_tell_its_models_now_is_no_server_without_a_list(status: int) -> None:
    with pytest.raises(ScorerError, match=str(status)):
        choose(httpx2.Response(status, text="later"), signed("typo"), "typo")


class Swapped:
    """A server whose model can be exchanged, and which can be down; notes which one was shown pictures."""

    def __init__(self, model: str, signature: str | None = None) -> None:
        self.model, self.signature, self.asked, self.down = model, signature, list[str](), False

    def __call__(self, sent: httpx2.Request) -> httpx2.Response:
        if self.down:
            raise httpx2.ConnectError("refused", request=sent)
        if sent.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": self.model}]})
        self.asked += [self.model] if b"image_url" in sent.content else []
        usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}
        return httpx2.Response(200, json=completion() | {"model": self.signature or self.model} | usage)


def test_a_model_that_is_not_there_any_more_is_refused_by_name_until_it_is_back() -> None:
    """Before the first request, as after a resume, and after the server could not be reached."""
    server = Swapped("judge")

    async def run() -> None:
        scorer = VlmScorer(VlmConfig(url=URL, model="judge"), SPEC, httpx2.MockTransport(server))
        await scorer.open()
        for down in (False, True):
            server.model, server.down = "another", down
            if down:
                with pytest.raises(ScorerError) as unreachable:
                    await scorer.score([request(1)])
                assert unreachable.value.reason == "failed"
                server.down = False
            with pytest.raises(ScorerError, match=r"no model 'judge'.*another") as raised:
                await scorer.score([request(1)])
            assert raised.value.reason == "refused" and not raised.value.permanent
            server.model = "judge"
            assert (await scorer.score([request(1)]))[0].valid

    asyncio.run(run())
    assert server.asked == ["judge", "judge"], "another model was never asked"


def test_answers_of_another_model_do_not_count_and_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """What signs otherwise than before is another model, whatever the server's list says."""
    server = Swapped("judge", "judge-0806")

    async def run() -> list[Score]:
        scorer = VlmScorer(VlmConfig(url=URL, model="judge"), SPEC, httpx2.MockTransport(server))
        await scorer.open()
        scores = []
        for server.signature in ("judge-0806", "judge-1120", "judge-1120", "judge-0806"):
            scores += await scorer.score([request(1)])
        return scores

    scores = asyncio.run(run())
    assert [score.reason for score in scores] == ["ok", "refused", "refused", "ok"]
    assert "judge-1120" in scores[1].detail and "judge-0806" in scores[1].detail
    assert all(score.tokens == (9, 1) for score in scores), "they were paid for all the same"
    assert caplog.text.count("judge-1120") == 1


@pytest.mark.parametrize("name", [None, 3, ""])
def test_answers_without_a_name_count(name: object) -> None:
    """Also before one that has a name."""
    answers = iter([completion() | {"model": name}, completion(), completion() | {"model": name}])

    transport = httpx2.MockTransport(
        lambda sent: httpx2.Response(200, json=MODELS if sent.method == "GET" else next(answers))
    )
    assert all(each.valid for each in score(VlmScorer(VlmConfig(url=URL), SPEC, transport), *[request(1)] * 3))


def test_a_long_list_of_models_is_cut() -> None:
    listed = httpx2.Response(200, json={"data": [{"id": f"model-{number}" * 9} for number in range(1000)]})
    with pytest.raises(ScorerError) as raised:
        choose(listed, signed("typo"), "judge")
    assert "no model 'judge'" in str(raised.value) and len(str(raised.value)) < 400


def test_what_keeps_an_unlisted_model_from_answering_is_told() -> None:
    """A while, in which it is asked again, or for good."""
    with pytest.raises(ScorerError, match="is loading") as raised:
        choose(CACHED, BUSY, "/models/judge")
    assert not raised.value.permanent
    with pytest.raises(ScorerError, match=r"no model '/models/judge'.*pinned to '/models/other'") as raised:
        choose(CACHED, PINNED, "/models/judge")
    assert raised.value.permanent


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"url": None}, "reward.url is missing"),
        ({"url": "127.0.0.1:8000"}, "http://"),
        ({"url": URL, "picture_size": 0}, "picture_size"),
        ({"url": URL, "picture_size": 100_000_000}, "picture_size=100000000 .*4096"),
        ({"url": URL, "least_mass": 2.0}, "least_mass"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        VlmConfig(**settings)


@contextmanager
def served(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server on this machine; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(MODELS)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def reply(self, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


async def _ask_at(url: str, timeout: float = 60.0) -> Score:
    scorer = VlmScorer(VlmConfig(url=url), SPEC)
    await scorer.open()
    try:
        return (await asyncio.wait_for(scorer.score([request(3)]), timeout))[0]
    finally:
        await scorer.close()


@pytest.mark.thorough
def test_over_a_connection() -> None:
    with served(lambda handler: handler.reply(completion("9", **{"9": 1.0}))) as url:  # type: ignore[attr-defined]
        assert asyncio.run(_ask_at(url)).value == 1.0


@pytest.mark.thorough
def test_a_server_that_hangs_up_or_hangs() -> None:
    with (
        served(lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)) as url,
        pytest.raises(ScorerError) as raised,
    ):
        asyncio.run(_ask_at(url))
    assert raised.value.reason == "failed"
    release = Event()
    with served(lambda handler: release.wait(60.0) and None) as url:
        try:
            with pytest.raises(TimeoutError):
                asyncio.run(_ask_at(url, timeout=0.3))
        finally:
            release.set()
