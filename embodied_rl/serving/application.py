"""The HTTP application: chat completions of one model, model list, health and metrics."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.access import guard
from embodied_rl.serving.batcher import MicroBatcher, QueueFullError
from embodied_rl.serving.chat import ChatRequest, parse_request
from embodied_rl.serving.limits import Memory, RequestLimits, Reservation
from embodied_rl.serving.meters import MEDIA_TYPE, Meters
from embodied_rl.serving.model import ChatModel, ModelInput
from embodied_rl.serving.refusal import Refusal, quote
from embodied_rl.serving.reply import ChatReply, describe_reply

GONE = 499
"""Status recorded for requests that the client cancelled (nginx's 499)."""


class ChatServer:
    """Server of chat completions.

    Args:
        model: the model.
        batcher: its request queue.
        limits: of one request.
        memory: byte budget shared by all requests.
        meters: the server's metrics.
    """

    def __init__(
        self,
        model: ChatModel,
        batcher: MicroBatcher[ModelInput, ChatReply],
        limits: RequestLimits,
        memory: Memory,
        meters: Meters,
    ) -> None:
        self._model, self._batcher, self._limits, self._memory, self._meters = model, batcher, limits, memory, meters
        self._started = int(time.time())

    def make_application(self, token: str | None) -> ASGIApp:
        """Return the ASGI application, behind the token if there is one."""
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.show_model),
            Route("/health", self.show_health),
            Route("/metrics", self.show_metrics),
        ]
        handlers: Any = {Refusal: _answer_refusal, HTTPException: _answer_http, Exception: _answer_failure}
        return guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=self._live), token)

    @asynccontextmanager
    async def _live(self, _: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(self._batcher.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    # -- models, health, metrics -----------------------------------------------------------------------------------

    async def list_models(self, _: Request) -> Response:
        """Answer with the model's name."""
        return JSONResponse({"object": "list", "data": [self._describe_model()]})

    async def show_model(self, request: Request) -> Response:
        """Answer with the model of that name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._describe_model())

    async def show_health(self, _: Request) -> Response:
        """Answer 200, or 503 if the current batch has taken longer than the request timeout."""
        stuck = self._batcher.busy > self._limits.seconds
        content = {"status": "the model does not answer" if stuck else "ok", "waiting": self._batcher.waiting}
        return JSONResponse({**content, "answering": self._batcher.busy > 0}, 503 if stuck else 200)

    async def show_metrics(self, _: Request) -> Response:
        """Answer with all metrics."""
        return Response(self._meters.write(self._batcher.waiting), media_type=MEDIA_TYPE)

    def _describe_model(self) -> dict[str, Any]:
        owner = {"owned_by": "embodied-rl", "identity": self._model.identity, "asked_with": self._model.asked_with}
        return {"id": self._model.name, "object": "model", "created": self._started, **owner}

    def _check_name(self, name: str) -> None:
        if name != self._model.name:
            raise Refusal(
                404, f"there is no model {quote(name)}; it is called '{self._model.name}'.", "model", "model_not_found"
            )

    # -- completions ------------------------------------------------------------------------------------------------

    async def complete(self, request: Request) -> Response:
        """Answer a request for a completion."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.seconds):
                with self._memory.reserve() as memory:
                    answer = await self._complete(request, memory)
        except TimeoutError:
            self._count(504, "deadline")
            raise Refusal(504, f"there was no answer within {self._limits.seconds:g} s.", code="timeout") from None
        except ClientDisconnect:
            self._count(GONE, "gone")
            return Response(status_code=GONE)
        except Refusal as refusal:
            self._count(refusal.status, refusal.code or "invalid")
            raise
        except Exception:
            self._count(500, "failed")
            raise
        self._count(200)
        self._meters.request_seconds.observe(time.monotonic() - began)
        return Response(json.dumps(answer, allow_nan=False), media_type="application/json")

    def _count(self, status: int, reason: str | None = None) -> None:
        self._meters.answered.labels(status).inc()
        if reason is not None:
            self._meters.rejected.labels(reason).inc()

    async def _complete(self, request: Request, memory: Reservation) -> dict[str, Any]:
        body = await _read_body(request, self._limits.body, memory)
        if self._batcher.full:  # before anything is decoded
            _refuse_full()
        with self._count_open():
            asked, question = await asyncio.to_thread(self._prepare, body, memory)
            del body
            try:
                answer = self._batcher.ask(question)
            except QueueFullError:
                _refuse_full()
            try:
                await _wait_for(answer, request)
                return describe_reply(answer.result(), asked)
            except UserError as error:
                raise Refusal(400, str(error), "messages") from None
            finally:
                answer.cancel()

    @contextmanager
    def _count_open(self) -> Iterator[None]:
        """Count the request as open until it is answered or refused, so that partial batches wait for it."""
        self._meters.open += 1
        try:
            yield
        finally:
            self._meters.open -= 1
            self._batcher.look_again()

    def _prepare(self, body: bytes, memory: Reservation) -> tuple[ChatRequest, ModelInput]:
        asked = parse_request(body, self._limits, memory)
        self._check_name(asked.model)
        return asked, self._model.prepare(asked)


async def _read_body(request: Request, most: int, memory: Reservation) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "send JSON, with Content-Type: application/json.")  # which web pages cannot, unasked
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise Refusal(413, f"the body has {quote(length)} bytes; the limit is {most}.", code="too_large")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise Refusal(413, f"the body has more than {most} bytes.", code="too_large")
        memory.add(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def _wait_for(answer: "asyncio.Future[ChatReply]", request: Request) -> None:
    """Wait for the answer.

    Raises:
        ClientDisconnect: the client disconnected first.
    """
    gone = asyncio.ensure_future(request.receive())  # the body was read: the next message is the disconnect
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if not answer.done():
        raise ClientDisconnect


def _refuse_full() -> NoReturn:
    raise Refusal(429, "the queue is full; ask again in a moment.", code="queue_full", retry_after=1)


async def _answer_refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    return JSONResponse(refusal.describe(), refusal.status, headers)


async def _answer_http(_: Request, error: Exception) -> Response:
    """Answer requests for unknown paths and methods."""
    assert isinstance(error, HTTPException)
    content = Refusal(
        error.status_code, f"{error.detail}: this server has /v1/chat/completions, /v1/models, /health, /metrics."
    )
    return JSONResponse(content.describe(), error.status_code, error.headers)


async def _answer_failure(_: Request, __: Exception) -> Response:
    """Answer 500 after an unexpected exception; uvicorn logs the traceback."""
    content = Refusal(500, "the server failed on this request; its log says why.", code="failed")
    return JSONResponse(content.describe(), 500)
