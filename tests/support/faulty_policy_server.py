"""A policy server that goes wrong in a way that a test names."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from embodied_rl.deployment.policy_client.wire import pack, unpack
from tests.support.policy_serving import SPEC

METADATA = {**SPEC.to_dict(), "protocol": "embodied-rl", "protocol_version": 1, "version": 7, "rows": 256,
            "message_bytes": 2**20, "action_low": (-1e6, -1e6), "action_high": (1e6, 1e6)}  # fmt: skip
GREETING = pack(METADATA)
Answer = bytes | str | None
"""What is sent; None sends nothing."""


def reply(asked: Mapping[str, Any], **changed: Any) -> bytes:
    """A right answer, whose actions are the question's number, with entries changed."""
    rows = np.shape(asked["state"])[:-1]
    actions = np.full((*rows, 3, 2), asked.get("seq", 0), np.float32)
    said = {"actions": actions, "version": 7, "seq": asked.get("seq"), "epoch": asked.get("epoch"), **changed}
    return pack({name: value for name, value in said.items() if value is not None})


@contextmanager
def faulty_server(
    answer: Callable[[int, dict[str, Any]], Answer | list[Answer]], greeting: Answer = GREETING, port: int = 0
) -> Iterator[str]:
    """Serve in a thread while the context lasts; yield the address.

    Args:
        answer: number of the question since the server began, and the question → what is sent; ConnectionError hangs
            up.
        greeting: the first message of each connection.
        port: 0 is a free one.
    """
    count, lock = [0], threading.Lock()

    def handle(connection: ServerConnection) -> None:
        if greeting is not None:
            connection.send(greeting)
        try:
            while True:
                asked = unpack(connection.recv())
                with lock:
                    number, count[0] = count[0], count[0] + 1
                said = answer(number, asked)
                for message in said if isinstance(said, list) else [said]:
                    if message is not None:
                        connection.send(message)
        except ConnectionError:
            connection.socket.close()
        except ConnectionClosed:
            pass

    with serve(handle, "127.0.0.1", port, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(10)
