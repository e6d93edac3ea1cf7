"""HTTP listener: socket, uvicorn, and shutdown within seconds of a signal."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.signals import note_stop

CONNECTIONS = 1024
"""Maximum of open connections; further ones are answered 503."""
GRACE = 3
"""Seconds until open requests are cancelled after a signal."""


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port.

    Raises:
        UserError: the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        # inherited by connections: asyncio leaves it out for sockets that do not name their protocol, and then an
        # answer's body waits 40 ms until the client has acknowledged its head
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(
            f"host={host} port={port} cannot be listened on: {said}. port=0 takes a free one.", code="address-unusable"
        ) from None


def format_url(host: str, listening: socket.socket) -> str:
    """Return the address of the API for clients."""
    port = listening.getsockname()[1]
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{name}]:{port}/v1" if ":" in name else f"http://{name}:{port}/v1"


def serve(application: ASGIApp, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM; a second SIGINT does not wait for requests that are being answered.

    Args:
        application: the ASGI application.
        listening: from `open_socket`; it is closed at the end.
        ready: called once the server accepts requests.
    """
    config = uvicorn.Config(
        application, http="h11", loop="asyncio", ws="none", lifespan="on", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, limit_concurrency=CONNECTIONS, timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    asyncio.run(_Server(config, ready).serve([listening]))


class _Server(uvicorn.Server):
    """uvicorn server that does not raise the signal again at shutdown, and reports when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        note_stop(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
