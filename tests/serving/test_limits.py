"""What a request to the application may hold: which pictures, how many, and how much memory."""

import base64
import io
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_kinds_of_pictures(critic: Running, kind: str) -> None:
    body = ask_critic(make_picture(0), make_picture(1))
    body["messages"][0]["content"][-1]["image_url"]["url"] = encode(make_picture(1), kind)
    with critic.client() as client:
        assert client.post(CHAT, json=body).status_code == 200


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
