"""The application: requests, the queue, hang-ups, deadlines, hostile bodies and pictures, and memory."""

import base64
import io
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from embodied_rl.serving.limits import RequestLimits
from tests.support.ended import wait_for
from tests.support.serving import (
    CHAT,
    Running,
    ToldModel,
    ask_critic,
    encode,
    make_critic,
    make_picture,
    refused,
    running,
    say,
)

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def client(told: Running) -> Iterator[httpx2.Client]:
    with told.client() as made:
        yield made


def test_an_answer(client: httpx2.Client) -> None:
    answer = client.post(CHAT, json=say("hello", logprobs=True)).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


@pytest.mark.parametrize(
    "body, says",
    [
        (b"", "not valid JSON"),
        (b'{"model": ', "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe{}", "not valid JSON"),
        (json.dumps(say("x")).encode("utf-16"), "not valid JSON"),
        (b'{"model": "told", "messages": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"max_tokens": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"max_tokens": NaN}', "NaN"),
        (b'{"max_tokens": 1e999, "model": "told", "messages": [{"role": "user", "content": "x"}]}', "max_tokens"),
        (b'{"model": "told", "messages": [{"role": "user", "content": "\\ud800"}]}', "not a text"),
        (b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}', "no model"),
        (b'{"\\ud800": 1}', "not supported"),
    ],
)
def test_what_is_no_request(client: httpx2.Client, body: bytes, says: str) -> None:
    status, message = refused(client.post(CHAT, content=body, headers={"Content-Type": "application/json"}))
    assert status in (400, 404) and says in message and len(message) < 400


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"model": None}, "model is missing"),
        ({"messages": []}, "at least one"),
        ({"messages": "hello"}, "at least one"),
        ({"messages": [1]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url.url is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "not a text"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "tool_calls"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "1"}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": True}, "does not stream"),
        ({"temperature": 1.0}, "greedy"),
        ({"tools": [{}]}, "tools"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a", "a "]}}, "repeated"),
        ({"structured_outputs": {"choice": ["a"] * 21}}, "structured_outputs"),
    ],
)
def test_a_field_that_is_wrong_is_named(client: httpx2.Client, fields: dict[str, Any], says: str) -> None:
    status, message = refused(client.post(CHAT, json={**say("x"), **fields}))
    assert status == 400 and says in message


def test_fields_that_change_nothing_are_taken(client: httpx2.Client) -> None:
    fields = {"temperature": 0.0, "n": 1, "stream": False, "seed": 5, "top_p": 0.9, "user": "me", "stop": None}
    assert client.post(CHAT, json=say("x", **fields)).status_code == 200


def test_a_full_queue_says_when_to_ask_again() -> None:
    gate = threading.Event()
    model = ToldModel(gate)
    with running(model, places=2, batch=1) as server, server.client() as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, CHAT, json=say("a"))
        wait_for(lambda: len(model.batches) == 1)
        others = [pool.submit(client.post, CHAT, json=say(word)) for word in ("b", "c")]
        wait_for(lambda: server.batcher.full)
        busy = client.post(CHAT, json=say("d"))
        assert refused(busy)[0] == 429 and busy.headers["Retry-After"] == "1"
        assert server.meter("queue") == 2 and server.meter('rejected_total{reason="queue_full"}') == 1
        gate.set()
        assert [each.result().status_code for each in (first, *others)] == [200] * 3
        assert client.post(CHAT, json=say("d")).status_code == 200


def test_a_client_that_hangs_up_frees_its_place_and_is_not_asked_about() -> None:
    gate = threading.Event()
    model = ToldModel(gate)
    with running(model, places=1, batch=1) as server, server.client() as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, CHAT, json=say("a"))
        wait_for(lambda: len(model.batches) == 1)
        body = json.dumps(say("gone")).encode()
        with socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port or 0)) as gone:
            gone.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: server.batcher.full)
        wait_for(lambda: not server.batcher.full)
        second = pool.submit(client.post, CHAT, json=say("b"))
        wait_for(lambda: server.batcher.full)
        gate.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
        assert model.batches == [["a"], ["b"]]
        wait_for(lambda: server.meter('rejected_total{reason="gone"}') == 1)


@pytest.mark.thorough
def test_a_request_has_a_deadline() -> None:
    """Also one whose body never comes to its end; the server says that the model does not answer, then recovers."""
    gate = threading.Event()
    with running(ToldModel(gate), limits=RequestLimits(seconds=0.3)) as server, server.client() as client:
        assert refused(client.post(CHAT, json=say("a")))[0] == 504
        with socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port or 0), timeout=60) as slow:
            slow.sendall(f"{HEAD}Content-Length: 99\r\n\r\n{{".encode())
            assert b" 504 " in slow.recv(1000)
        assert client.get("/health").status_code == 503
        gate.set()
        wait_for(lambda: client.get("/health").status_code == 200)
        assert client.post(CHAT, json=say("b")).status_code == 200


@pytest.mark.thorough
def test_counts_are_in_prometheus_form(told: Running, client: httpx2.Client) -> None:
    client.post(CHAT, json=say("x"))
    client.post(CHAT, json=say("x", model="other"))
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in answer.text.splitlines():
        name, _, value = line.rpartition(" ")
        assert line.startswith("# ") or (name.startswith("embodied_rl_") and float(value) >= 0)
    for name in ("requests_total", "batches_total", "batch_size_count", "request_seconds_sum", "rejected_total"):
        assert told.meter(name) > 0, name
    total = told.meter("request_seconds_count")
    assert told.meter('request_seconds_bucket{le="+Inf"}') == total == told.meter('requests_total{status="200"}')


@pytest.mark.parametrize(
    "method, path, status",
    [("GET", "/", 404), ("GET", CHAT, 405), ("POST", "/v1/completions", 404), ("GET", "/v1/x", 404)],
)
def test_other_paths(client: httpx2.Client, method: str, path: str, status: int) -> None:
    assert refused(client.request(method, path))[0] == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_web_page_could_send_is_refused(client: httpx2.Client, kind: str) -> None:
    body = json.dumps(say("x")).encode()
    assert refused(client.post(CHAT, content=body, headers={"Content-Type": kind}))[0] == 415


def test_another_name_for_this_machine_is_refused(client: httpx2.Client) -> None:
    """A web page whose name resolves to this machine (DNS rebinding)."""
    assert client.post(CHAT, json=say("x"), headers={"Host": "evil.example:8077"}).status_code == 400


# whom a question waits for
def test_nobody_waits_for_who_was_answered() -> None:
    """A question that comes while the model computes waits for no other, once that one has its answer."""
    model = ToldModel(gate=threading.Event())
    with running(model, wait=600.0) as server, server.client() as client, ThreadPoolExecutor() as threads:
        first = threads.submit(client.post, CHAT, json=say("first"))
        wait_for(lambda: model.batches == [["first"]])
        second = threads.submit(client.post, CHAT, json=say("second"))
        wait_for(lambda: server.batcher.waiting == 1)
        assert model.gate is not None
        model.gate.set()
        assert [each.result().status_code for each in (first, second)] == [200, 200]


@pytest.mark.thorough
def test_a_batch_does_not_wait_for_an_incomplete_request() -> None:
    """Its headers came, its body did not."""
    with running(ToldModel(), wait=600.0) as server, server.client() as client:
        address = httpx2.URL(server.url)
        with socket.create_connection((address.host, address.port or 80)) as stalled:
            stalled.sendall(f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
            time.sleep(0.2)
            assert client.post(CHAT, json=say("alone")).status_code == 200


def make_png(width: int, height: int) -> bytes:
    """The beginning of a PNG that says it has this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def data_url(file: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def save(picture: Image.Image, kind: str, **options: Any) -> bytes:
    with io.BytesIO() as buffer:
        picture.save(buffer, kind, **options)
        return buffer.getvalue()


FILM = save(Image.new("RGB", (4, 4)), "PNG", save_all=True, append_images=[Image.new("RGB", (4, 4), "red")])
DEEP = save(Image.fromarray(np.zeros((4, 4), np.uint16)), "PNG")


@pytest.mark.parametrize(
    "url, status, says",
    [
        ("http://169.254.169.254/latest", 400, "fetches nothing"),
        ("https://example.org/a.png", 400, "fetches nothing"),
        ("file:///etc/passwd", 400, "fetches nothing"),
        ("/etc/passwd", 400, "fetches nothing"),
        ("data:text/plain;base64,aGVsbG8=", 400, "data:image"),
        ("data:image/png,hello", 400, "data:image"),
        ("data:image/png;base64,%%%", 400, "not base64"),
        ("data:image/png;base64,ä", 400, "not base64"),
        ("data:image/png;base64,aGVsbG8=", 400, "PNG, JPEG or WebP"),
        (data_url(make_png(65_000, 65_000)), 413, "far more pixels"),
        (data_url(make_png(10_000, 10_000)), 413, "10000"),
        (data_url(make_png(3000, 3000)), 413, "3000"),
        (data_url(make_png(0, 10)), 400, "PNG, JPEG or WebP"),
        (data_url(make_png(500, 500)), 400, "PNG, JPEG or WebP"),
        (data_url(save(Image.new("RGB", (8, 8)), "GIF")), 400, "PNG, JPEG or WebP"),
        (data_url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 400, "PNG, JPEG or WebP"),
        (data_url(FILM), 400, "animation"),
        (data_url(DEEP), 400, "8-bit"),
        (encode(make_picture(0))[:-40], 400, ""),
    ],
)
def test_a_picture_that_is_none(critic: Running, url: str, status: int, says: str) -> None:
    body = ask_critic(make_picture(0), make_picture(1))
    body["messages"][0]["content"][-1]["image_url"]["url"] = url
    with critic.client() as client:
        found, message = refused(client.post(CHAT, json=body))
    assert found == status and says in message and len(message) < 300


def test_the_number_of_pictures_is_limited(critic: Running) -> None:
    body = ask_critic(make_picture(0), make_picture(1))
    body["messages"][0]["content"] += body["messages"][0]["content"][-1:] * 20
    with critic.client() as client:
        assert refused(client.post(CHAT, json=body)) == (413, "the request has more than 16 pictures.")


def test_a_body_that_is_too_long() -> None:
    """By its header, and without one; a client that sends it whole gets the answer."""
    with running(ToldModel(), limits=RequestLimits(body=10_000)) as server, server.client() as client:
        assert refused(client.post(CHAT, json=say("x" * 20_000)))[0] == 413
        headers = {"Content-Type": "application/json"}
        assert refused(client.post(CHAT, content=iter([b"x" * 5000] * 10), headers=headers))[0] == 413
        assert client.post(CHAT, json=say("x")).status_code == 200


def test_requests_hold_a_limited_amount_of_memory_together() -> None:
    """One waits with its body; the next one would be too much. When the first is answered, there is room again."""
    gate = threading.Event()
    model = ToldModel(gate)
    with running(model, memory=30_000) as server, server.client() as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, CHAT, json=say("x" * 20_000))
        wait_for(lambda: len(model.batches) == 1)
        busy = client.post(CHAT, json=say("y" * 20_000))
        assert refused(busy)[0] == 429 and busy.headers["Retry-After"] == "1"
        assert refused(client.post(CHAT, json=say("y" * 40_000)))[0] in (413, 429)
        gate.set()
        assert first.result().status_code == 200
        assert client.post(CHAT, json=say("y" * 20_000)).status_code == 200


def test_pictures_count_as_what_they_are_decoded_to() -> None:
    white = np.full((1000, 1000, 3), 255, np.uint8)
    with running(make_critic(), memory=1_000_000) as server, server.client() as client:
        assert refused(client.post(CHAT, json=ask_critic(white, white)))[0] == 413
        assert client.post(CHAT, json=ask_critic(make_picture(1), make_picture(2))).status_code == 200


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_kinds_of_pictures(critic: Running, kind: str) -> None:
    body = ask_critic(make_picture(0), make_picture(1))
    body["messages"][0]["content"][-1]["image_url"]["url"] = encode(make_picture(1), kind)
    with critic.client() as client:
        assert client.post(CHAT, json=body).status_code == 200


@pytest.mark.thorough
def test_a_failure_of_the_model_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with running(ToldModel()) as server, server.client() as client:
        answer = client.post(CHAT, json=say("fail"))
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert "told to fail" not in answer.text and "told to fail" in caplog.text
