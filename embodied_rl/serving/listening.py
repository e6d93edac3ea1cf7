"""Listening address of a server, access to it, and shutdown within seconds of a signal.

Access is limited to loopback clients, or to clients with the token.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.refusal import Refusal
from embodied_rl.system.signals import note_stop

CONNECTIONS = 1024
"""Maximum of open connections; further ones are answered 503."""
GRACE = 3
"""Seconds until open requests are cancelled after a signal."""
OPEN = ("/health",)
"""Paths that need no token."""
SHORTEST_TOKEN = 16


def find_token(host: str, variable: str | None) -> str | None:
    """Return the token of an environment variable that requests must have; None if none is needed.

    Raises:
        UserError: other machines reach the host and no token is named; or that token is not a valid one.
    """
    if variable is None:
        try:
            local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = host == "localhost"
        if local:
            return None
        raise UserError(
            f"host={host} can be reached from other machines, so a token is needed: put one into an environment "
            "variable, and name it, token_variable=<NAME>. Or leave host=127.0.0.1.",
            code="token-missing",
        )
    token = os.environ.get(variable, "")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UserError(
            f"token_variable={variable}: the environment variable must hold at least {SHORTEST_TOKEN} printable ASCII "
            "characters. One can be made with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            code="token-invalid",
        )
    return token


def guard(application: ASGIApp, token: str | None) -> ASGIApp:
    """Wrap the application in a token check or, without a token, in a check of the `Host` header.

    A web page in a browser of this machine can send requests to loopback addresses, but not with their name as `Host`.
    """
    if token is not None:
        return _TokenGuard(application, token)
    return TrustedHostMiddleware(application, ["localhost", "127.0.0.1", "[::1]"], www_redirect=False)


class _TokenGuard:
    """Middleware that answers 401 to requests without the token."""

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application, self._digest = application, _digest(f"Bearer {token}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            sent = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(_digest(sent), self._digest):
                refusal = Refusal(401, "the token is missing or wrong: send it as API key.", code="invalid_api_key")
                answer = JSONResponse(refusal.describe(), 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self._application(scope, receive, send)


def _digest(text: str) -> bytes:
    """Return a digest of constant length."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise `UserError`; port 0 takes a free port."""
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

    `ready` is called once the server accepts requests. The socket is closed at the end.
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
