"""A server of OpenAI's chat completions that goes wrong in a drawn way, from a drawn request on, for a drawn while."""

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Lock, Thread
from typing import Any

STALL = 1.0
"""Seconds for which a server that hangs holds a connection; longer than any client of the tests waits."""
MODELS = {"object": "list", "data": [{"id": "judge", "object": "model"}]}


def describe(digits: dict[str, float]) -> dict[str, Any]:
    """A completion with the probabilities of digits."""
    top = [{"token": digit, "logprob": math.log(share), "bytes": None} for digit, share in digits.items()]
    told = {"content": [{"token": "5", "logprob": -0.1, "bytes": None, "top_logprobs": top}], "refusal": None}
    message = {"role": "assistant", "content": "5"}
    choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": told}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice]}


HONEST = json.dumps(describe({"4": 0.5, "6": 0.5})).encode()
TOKENS = (150, 1)
COUNTED = json.dumps(
    describe({"4": 0.5, "6": 0.5}) | {"usage": {"prompt_tokens": TOKENS[0], "completion_tokens": TOKENS[1]}}
).encode()
"""The honest answer of a server that counts tokens."""
Handler = BaseHTTPRequestHandler


def send(handler: Handler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def hang(handler: Handler) -> None:
    time.sleep(STALL)
    handler.close_connection = True


def stop_half_way(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(HONEST)))
    handler.end_headers()
    handler.wfile.write(HONEST[: len(HONEST) // 2])
    handler.wfile.flush()
    hang(handler)


def hang_up(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


GARBLED = (
    b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}" * 10, b'{"choices": []}', b'{"choices": [{"message": null}]}',
    b"[" * 20_000, b'{"choices": [{"message": {"content": "five"}, "logprobs": null}]}',
    json.dumps(describe({"5": 1.0})).replace("0.0", "NaN").encode(),
    json.dumps(describe({"5": 1.0})).replace("0.0", "1e999").encode(),
    json.dumps(describe({"cat": 0.9, "5": 0.05})).encode(),
)  # fmt: skip
"""Answers that are no score: no JSON, other JSON, JSON of the right form that says something else."""

FAULTS: dict[str, Callable[[Handler, Random], None]] = {
    "hung": lambda handler, _: hang(handler),
    "half open": lambda handler, _: stop_half_way(handler),
    "hanging up": lambda handler, _: hang_up(handler),
    "garbled": lambda handler, random: send(handler, random.choice(GARBLED)),
    "busy": lambda handler, _: send(handler, b'{"error": "later"}', 429, Retry_After="1"),
    "failing": lambda handler, _: send(handler, b"Internal Server Error", 500),
    "refusing": lambda handler, _: send(handler, b'{"error": {"message": "no such model"}}', 404),
}
KILLED, LYING = "killed", "lying"
"""No server any more; a server that says of everything that it is done."""
KINDS = (*FAULTS, KILLED, LYING)
COUNTING = "counting"
"""No fault: tells how many tokens it took."""


class FaultyServer:
    """Answers honestly, always 5/9; between two counts of requests it does what `kind` says.

    Attributes:
        url: where it listens.
        wrong: number of requests that met the fault.
        models: the list of its models.
    """

    def __init__(self, kind: str, random: Random, first: int, count: int | None) -> None:
        self._kind, self._random, self._first, self._count = kind, random, first, count
        self._lock, self._asked, self.wrong, self.models = Lock(), 0, 0, MODELS
        outer = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                send(self, json.dumps(outer.models).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that hangs up is no news
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler: Handler) -> None:
        """Answer one request, honestly or not."""
        with self._lock:
            place, self._asked = self._asked - self._first, self._asked + 1
            wrong = place >= 0 and (self._count is None or place < self._count)
            self.wrong += wrong
            random = Random(self._random.random())
        if not wrong:
            send(handler, HONEST)
        elif self._kind == COUNTING:
            send(handler, COUNTED)
        elif self._kind == LYING:
            send(handler, json.dumps(describe({"9": 1.0})).encode())
        elif self._kind == KILLED:
            Thread(target=self.close, daemon=True).start()
            hang_up(handler)
        else:
            FAULTS[self._kind](handler, random)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def served(kind: str, random: Random, first: int, count: int | None) -> Iterator[FaultyServer]:
    """A server that goes wrong at its request `first`, for `count` requests or for good."""
    server = FaultyServer(kind, random, first, count)
    try:
        yield server
    finally:
        server.close()
