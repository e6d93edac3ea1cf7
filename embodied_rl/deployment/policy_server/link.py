"""A websocket with a deadline for everything that is done with it. Its loop runs on a thread, which answers pings."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from threading import Thread
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException

from embodied_rl.deployment.policy_server.exchange import RefusedConnection
from embodied_rl.system.untrusted_files import SecretFilter

CLOSING = 1.0
"""Seconds that closing may take."""


class LinkLost(ConnectionError):  # noqa: N818 - it says what happened
    """There is no connection, or it ended; the message says why."""


class Link:
    """At most one connection to an address. Whoever gives up on an answer drops the connection, so that a late answer
    meets nobody.

    Args:
        url: ws:// or wss://.
        headers: of the handshake.
        message: most bytes of a message.
        token: replaced in all that the server says.
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
        """Connect.

        Args:
            until: on the clock `time.monotonic`.

        Raises:
            RefusedConnection: the server does not want it.
            LinkLost: it did not work.
            TimeoutError: not until then.
        """
        self.drop()
        try:
            self._connection = self._run(self._open(), until)
        except TimeoutError:
            raise
        except InvalidStatus as error:
            said = self._filter.clean(bytes(error.response.body or b""))[:300].decode("utf-8", "replace").strip()
            raise RefusedConnection(f"the server refused: {error.response.status_code} {said.rstrip('.')}") from None
        except (OSError, ValueError, InvalidHandshake, InvalidURI, WebSocketException) as error:  # ValueError: the port
            raise self._lose(error) from None

    async def _open(self) -> ClientConnection:
        return await connect(
            self._url, additional_headers=self._headers, compression=None, max_size=self._message, proxy=None,
            open_timeout=None, close_timeout=CLOSING, max_queue=4, user_agent_header=None,
        )  # fmt: skip

    def exchange(self, message: bytes | None, until: float) -> bytes | str:
        """Send a message, if there is one, and return the next that comes.

        Raises:
            LinkLost: the connection ended, or has a message already, which would be taken for the answer.
            TimeoutError: nothing came until then.
        """
        if (connection := self._connection) is None:
            raise LinkLost("there is no connection")

        async def run() -> bytes | str:
            if message is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await connection.recv()
                    raise LinkLost("the server sent a message that answers no question")
                await connection.send(message)
            return await connection.recv()

        try:
            said = self._run(run(), until)
        except (OSError, WebSocketException) as error:
            if isinstance(error, TimeoutError):
                raise
            raise self._lose(error) from None
        return self._filter.clean_text(said) if isinstance(said, str) else self._filter.clean(said)

    def _lose(self, error: Exception) -> LinkLost:
        return LinkLost(self._filter.clean_text(str(error)) or type(error).__name__)

    def drop(self) -> None:
        """Forget the connection: nothing that comes over it is read any more."""
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
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join(2 * CLOSING)
            if not self._thread.is_alive():
                self._loop.close()

    async def _end(self) -> None:
        """End what dropped connections left behind, and the loop: it complains about tasks that never end."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSING)
        self._loop.stop()

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
