"""Websocket client with a deadline for each operation. Its event loop runs in a thread, which answers pings."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from threading import Thread
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException

from embodied_rl.deployment.policy_client.client_messages import RefusedConnection
from embodied_rl.system.untrusted_files import SecretFilter

CLOSING = 1.0
"""Timeout of closing a connection in seconds."""


class ConnectionLost(ConnectionError):  # noqa: N818 - it says what happened
    """There is no connection, or it ended; the message has the cause."""


class WebSocketClient:
    """At most one connection to an address. After a timeout the caller drops it, so that late answers are discarded.

    Args:
        url: ws:// or wss://. headers: of the handshake. message: maximum bytes of a message.
        token: removed from the messages of the server.
    """

    def __init__(self, url: str, headers: Mapping[str, str], message: int, token: str | None = None) -> None:
        self._filter = SecretFilter(token)
        self._url, self._headers, self._message = url, headers, message
        self._connection: ClientConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="policy client", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def connect(self, until: float) -> None:
        """Connect until a deadline of the clock `time.monotonic`.

        Raises:
            RefusedConnection: the server refused it. ConnectionLost: it failed. TimeoutError: the deadline passed.
        """
        self.drop()

        async def open_connection() -> ClientConnection:
            return await connect(
                self._url, additional_headers=self._headers, compression=None, max_size=self._message, proxy=None,
                open_timeout=None, close_timeout=CLOSING, max_queue=4, user_agent_header=None,
            )  # fmt: skip

        try:
            self._connection = self._run(open_connection(), until)
        except TimeoutError:
            raise
        except InvalidStatus as error:
            body = self._filter.clean(bytes(error.response.body or b""))[:300].decode("utf-8", "replace").strip()
            raise RefusedConnection(f"the server refused: {error.response.status_code} {body.rstrip('.')}") from None
        except (OSError, ValueError, InvalidHandshake, InvalidURI, WebSocketException) as error:  # ValueError: the port
            raise self._make_error(error) from None

    def exchange(self, message: bytes | None, until: float) -> bytes | str:
        """Send a message unless it is None, and return the next received message.

        Raises:
            ConnectionLost: the connection ended, or a message came unrequested. TimeoutError: the deadline passed.
        """
        if (connection := self._connection) is None:
            raise ConnectionLost("there is no connection")

        async def run() -> bytes | str:
            if message is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await connection.recv()
                    raise ConnectionLost("the server sent an unrequested message")
                await connection.send(message)
            return await connection.recv()

        try:
            received = self._run(run(), until)
        except (OSError, WebSocketException) as error:
            if isinstance(error, TimeoutError):
                raise
            raise self._make_error(error) from None
        return self._filter.clean_text(received) if isinstance(received, str) else self._filter.clean(received)

    def _make_error(self, error: Exception) -> ConnectionLost:
        return ConnectionLost(self._filter.clean_text(str(error)) or type(error).__name__)

    def drop(self) -> None:
        """Abort the connection; messages that arrive later are discarded."""
        connection, self._connection = self._connection, None
        if connection is not None:
            transport: Any = connection.transport
            self._loop.call_soon_threadsafe(transport.abort)

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            if (connection := self._connection) is not None:
                with contextlib.suppress(TimeoutError, OSError, WebSocketException):
                    self._run(connection.close(), time.monotonic() + CLOSING)
            self.drop()

            async def stop_loop() -> None:
                left = asyncio.all_tasks() - {asyncio.current_task()}  # the tasks of dropped connections
                for task in left:
                    task.cancel()
                if left:
                    await asyncio.wait(left, timeout=CLOSING)
                self._loop.stop()

            asyncio.run_coroutine_threadsafe(stop_loop(), self._loop)
            self._thread.join(2 * CLOSING)
            if not self._thread.is_alive():
                self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any], until: float) -> Any:
        left = until - time.monotonic()
        if left <= 0 or not self._thread.is_alive():
            work.close()
            raise TimeoutError
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, left), self._loop)
        try:
            return future.result(left + CLOSING)
        except TimeoutError:
            future.cancel()
            raise
