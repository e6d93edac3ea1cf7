"""Policy server: openpi's protocol at `/`, vLLM-Omni's variant at `/v1/realtime/robot/openpi`, the protocol of the
vla-eval harness at `/vla-eval`, health checks at `/healthz`.

A connection has one request at a time. While it is pending, at most `READ_AHEAD` bytes plus one read of the next are
received; then TCP flow control stops the client. Requests of several connections are batched.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import logging
import signal
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from socket import socket
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import Event

from embodied_rl.deployment.policy_client.request import (
    PROTOCOL,
    PROTOCOL_VERSION,
    ROWS,
    PolicyRequest,
    is_reset,
    read_request,
)
from embodied_rl.deployment.policy_client.wire import WireError, WireLimits, pack, unpack
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.version import __version__
from embodied_rl.policy_server.served import InferenceFailed, PolicyResponse, PolicyServerSettings, ServedPolicy
from embodied_rl.policy_server.vla_eval import VlaEvalSession
from embodied_rl.serving.batcher import MicroBatcher, QueueFullError
from embodied_rl.system.signals import note_stop

log = logging.getLogger(__name__)

OPENPI, VLLM_OMNI, HARNESS = "/", "/v1/realtime/robot/openpi", "/vla-eval"
RESET = "reset successful"
"""Response of RoboArena's and vLLM-Omni's servers to a reset."""
GRACE = 3.0
"""Timeout of closing connections after a signal, in seconds."""
PING = 20.0
"""Seconds between pings, and timeout of their replies."""
READ_AHEAD = 65536
"""Bytes that a connection may send beyond a pending request."""
BAD_DATA, REFUSED, FAILED, LATER = 1007, 1008, 1011, 1013
"""Websocket close codes of RFC 6455."""


class _Connection(ServerConnection):
    """A connection that stops reading while a request is pending; pings are still answered."""

    _read_ahead: int | None = None  # bytes since the last message; None while waiting for one
    _held = False

    async def recv(self, decode: bool | None = None) -> Any:
        self._read_ahead = None
        if self._held:
            self._held = False
            self.transport.resume_reading()
        try:
            return await super().recv(decode)
        finally:
            self._read_ahead = 0

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame):  # the parser keeps its last frame; without its data, messages are freed
            parsed, event = event, dataclasses.replace(event)
            parsed.data = b""
        super().process_event(event)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._read_ahead is None:
            return
        self._read_ahead += len(data)
        if self._read_ahead > READ_AHEAD and self.transport.is_reading():  # otherwise the message queue has paused it
            self._held = True
            self.transport.pause_reading()


class PolicyServer:
    """Server of a policy; `token` is the access token of clients, or None."""

    def __init__(self, served: ServedPolicy, settings: PolicyServerSettings, token: str | None) -> None:
        self._served, self._settings = served, settings
        self._limits = WireLimits(settings.message, settings.message)
        self._digests = None if token is None else [_digest(f"{kind} {token}") for kind in ("Bearer", "Api-Key")]
        self._connections = 0

        def compute(requests: Sequence[PolicyRequest]) -> list[PolicyResponse]:
            return served.infer(requests, fill=settings.batch > 1 and self._connections > 1)

        self.batcher: MicroBatcher[PolicyRequest, PolicyResponse] = MicroBatcher(
            compute, settings.batch, settings.wait, settings.clients, expected=lambda: self._connections
        )
        settings.names.check(served.weights.spec.keys, "keys")

    def describe(self) -> dict[str, Any]:
        """Return the metadata for a new client."""
        weights, names = self._served.weights, self._settings.names
        return {
            **weights.spec.to_dict(),
            **(weights.identity or {}),
            "protocol": PROTOCOL,
            "protocol_version": PROTOCOL_VERSION,
            "embodied_rl": __version__,
            "version": weights.version,
            "observation_keys": [names.given.get(key, key) for key in weights.spec.keys],
            "rows": ROWS,
            "message_bytes": self._settings.message,
        }

    async def run(self, listening: socket, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serve until `stop` is set."""
        quiet = logging.getLogger(f"{__name__}.websockets")
        quiet.setLevel(logging.CRITICAL)  # it logs a traceback for each invalid handshake
        answering = asyncio.create_task(self.batcher.run())
        try:
            async with serve(
                self._handle, sock=listening, process_request=self._process_request, origins=[None], compression=None,
                max_size=self._settings.message, max_queue=1, ping_interval=PING,
                ping_timeout=PING + self._settings.deadline,  # a pong may be queued behind the next request
                close_timeout=GRACE, server_header=None, logger=quiet, create_connection=_Connection,
            ) as server:  # fmt: skip
                ready()
                await asyncio.wait({answering, asyncio.create_task(stop.wait())}, return_when="FIRST_COMPLETED")
                server.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(server.wait_closed(), GRACE)
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering

    def _process_request(self, connection: ServerConnection, handshake: Handshake) -> Response | None:
        """Answer health checks; reject unknown paths, wrong tokens and too many connections."""
        path = handshake.path.partition("?")[0]
        if path in ("/healthz", "/health"):
            return connection.respond(HTTPStatus.OK, "OK\n")
        if path not in (OPENPI, VLLM_OMNI, HARNESS):
            return connection.respond(HTTPStatus.NOT_FOUND, f"{path[:80]}: {OPENPI} is openpi's protocol, {VLLM_OMNI} "
                                      f"vLLM-Omni's, {HARNESS} that of the harness vla-eval.\n")  # fmt: skip
        if self._digests is not None:
            sent = _digest(handshake.headers.get("Authorization", ""))
            if not any([hmac.compare_digest(sent, digest) for digest in self._digests]):
                return connection.respond(HTTPStatus.UNAUTHORIZED, "The token is missing or wrong.\n")
        if self._connections >= self._settings.clients:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections: try again later.\n")
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None, "the handshake is over"
        self._connections += 1
        try:
            path = connection.request.path.partition("?")[0]
            if path == HARNESS:
                spec, names = self._served.weights.spec, self._settings.names
                await VlaEvalSession(connection, spec, names, self._limits, self.infer).run()
            else:
                await self._serve_openpi(connection, bare=path == VLLM_OMNI)
        except ConnectionClosed:
            pass
        except Exception:
            log.exception("A connection ended by an error of the server")
            raise
        finally:
            self._connections -= 1

    async def _serve_openpi(self, connection: ServerConnection, bare: bool) -> None:
        """Serve a client of openpi's protocol: send the metadata, then a response to each observation.

        If `bare`, respond with the action array only, and to a reset with a map, as vLLM-Omni does.
        """
        spec, settings = self._served.weights.spec, self._settings
        await connection.send(pack(dict(self._settings.metadata) or self.describe()))
        before: dict[str, float] = {}
        while True:
            message = await connection.recv()
            began = time.perf_counter()
            try:
                content, request, response = unpack(message, self._limits), None, None
                if not is_reset(content):  # policies keep no state between requests
                    request = read_request(content, spec, settings.names, settings.send == "horizon")
                del message, content  # the request holds copies of its arrays
                if request is not None:
                    response = await self.infer(request)
            except (WireError, UserError, InferenceFailed) as error:
                code = BAD_DATA if isinstance(error, WireError) else REFUSED
                code = error.close_code if isinstance(error, InferenceFailed) else code
                log.info("%s: %s", connection.remote_address, error)
                await connection.send(str(error))  # openpi's clients raise a text message as an error
                await connection.close(code, "refused; the reason is in the last message")
                return
            if request is None or response is None:
                await connection.send(pack({"status": RESET}) if bare else RESET)
                continue
            timing = {"infer_ms": response.seconds * 1e3}
            answer = {
                "actions": response.actions, "policy_timing": timing, "server_timing": timing | before,
                "version": response.version, **request.echoed,
            }  # fmt: skip
            await connection.send(pack(response.actions if bare else answer))
            before = {"prev_total_ms": (time.perf_counter() - began) * 1e3}

    async def infer(self, request: PolicyRequest) -> PolicyResponse:
        """Return the response of the policy.

        Raises:
            UserError: the request does not fit the policy.
            InferenceFailed: the policy failed, timed out, or the queue is full.
        """
        try:
            async with asyncio.timeout(self._settings.deadline):
                return await self.batcher.ask(request)
        except UserError:
            raise
        except QueueFullError:
            raise InferenceFailed("The request queue of the server is full: try again later.", LATER) from None
        except TimeoutError:
            raise InferenceFailed(f"The policy did not respond within {self._settings.deadline:g} s.", LATER) from None
        except Exception as error:
            log.exception("The policy failed")
            raise InferenceFailed(f"The policy failed: {type(error).__name__}: {str(error)[:500]}", FAILED) from error


def serve_policy(
    served: ServedPolicy, settings: PolicyServerSettings, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve a policy until SIGINT or SIGTERM; call `ready` with the address when the server is ready.

    Raises:
        UserError: the address is in use, or needs a token.
    """
    from embodied_rl.serving.listening import find_token, format_url, open_socket

    server = PolicyServer(served, settings, find_token(settings.host, settings.token_variable))
    listening = open_socket(settings.host, settings.port)
    url = format_url(settings.host, listening).replace("http://", "ws://", 1).removesuffix("/v1")

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end(number: int) -> None:
            note_stop(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        await server.run(listening, stop, lambda: ready(url))

    asyncio.run(run())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
