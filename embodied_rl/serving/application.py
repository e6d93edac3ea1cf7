"""The HTTP application: chat completions of one model, model list, health, and metrics in Prometheus' format."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, exposition
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.batcher import MicroBatcher, QueueFullError
from embodied_rl.serving.chat import ChatRequest, parse_request
from embodied_rl.serving.limits import Memory, ServerSettings
from embodied_rl.serving.listening import guard
from embodied_rl.serving.model import ChatModel, ChatReply, ModelInput, describe_reply
from embodied_rl.serving.refusal import Refusal, quote

GONE = 499
"""Status recorded for requests that the client cancelled (nginx's 499)."""

NAMESPACE = "embodied_rl"
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Meters:
    """Metrics of a server since its start.

    Attributes:
        answered: completion requests by HTTP status.
        rejected: requests that were not enqueued, or were removed from the queue, by reason.
        request_seconds: of each answered request, from its first byte to the answer.
        open: completion requests that were received completely and not answered yet.
    """

    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = registry = CollectorRegistry()
        self.answered = Counter(
            "requests", "Requests for completions, by status.", ["status"], NAMESPACE, registry=registry
        )
        self.rejected = Counter(
            "rejected", "Requests that were not answered, by reason.", ["reason"], NAMESPACE, registry=registry
        )
        self._batches = Counter("batches", "Calls of the model.", (), NAMESPACE, registry=registry)
        self._queue = Gauge("queue", "Questions that wait.", (), NAMESPACE, registry=registry)
        self.open = 0
        Gauge("open", "Requests without an answer yet.", (), NAMESPACE, registry=registry).set_function(
            lambda: self.open
        )
        self._batch_sizes = Histogram(
            "batch_size", "Questions of a call of the model.", (), NAMESPACE, registry=registry, buckets=SIZES
        )
        self._batch_seconds = Histogram(
            "batch_seconds", "Seconds of a call of the model.", (), NAMESPACE, registry=registry, buckets=SECONDS
        )
        self.request_seconds = Histogram(
            "request_seconds", "Seconds from a request to its answer.", (), NAMESPACE, registry=registry,
            buckets=SECONDS,
        )  # fmt: skip

    def watch_batch(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.inc()
        self._batch_sizes.observe(size)
        self._batch_seconds.observe(seconds)

    def write(self, waiting: int) -> bytes:
        """Return all metrics and the queue length as text."""
        self._queue.set(waiting)
        return exposition.generate_latest(self._registry)


class ChatServer:
    """Server of chat completions of a model.

    Attributes:
        batcher: its queue; a batch does not wait once all open requests are in it.
    """

    def __init__(self, model: ChatModel, settings: ServerSettings) -> None:
        self._model, self._limits, self._memory = model, settings.limits, Memory(settings.memory)
        self._meters, self._started = Meters(), int(time.time())
        self.batcher: MicroBatcher[ModelInput, ChatReply] = MicroBatcher(
            model.answer,
            settings.batch,
            settings.wait,
            settings.places,
            self._meters.watch_batch,
            lambda: self._meters.open,
        )

    def make_application(self, token: str | None) -> ASGIApp:
        """Return the ASGI application, behind the token if there is one."""
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.show_model),
            Route("/health", self.show_health),
            Route("/metrics", self.show_metrics),
        ]
        handlers: Any = {Refusal: _refuse, HTTPException: _refuse, Exception: _refuse}

        @asynccontextmanager
        async def live(_: Starlette) -> AsyncIterator[None]:
            running = asyncio.create_task(self.batcher.run())
            try:
                yield
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

        return guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=live), token)

    async def list_models(self, _: Request) -> Response:
        """Answer with the model's name."""
        return JSONResponse({"object": "list", "data": [self._describe_model()]})

    async def show_model(self, request: Request) -> Response:
        """Answer with the model of that name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._describe_model())

    async def show_health(self, _: Request) -> Response:
        """Answer 200, or 503 if the current batch has taken longer than the request timeout."""
        stuck = self.batcher.busy > self._limits.seconds
        content = {"status": "the model does not answer" if stuck else "ok", "waiting": self.batcher.waiting}
        return JSONResponse({**content, "answering": self.batcher.busy > 0}, 503 if stuck else 200)

    async def show_metrics(self, _: Request) -> Response:
        """Answer with all metrics."""
        text = self._meters.write(self.batcher.waiting)
        return Response(text, media_type=exposition.CONTENT_TYPE_PLAIN_0_0_4)

    def _describe_model(self) -> dict[str, Any]:
        owner = {"owned_by": "embodied-rl", "identity": self._model.identity, "asked_with": self._model.asked_with}
        return {"id": self._model.name, "object": "model", "created": self._started, **owner}

    def _check_name(self, name: str) -> None:
        if name != self._model.name:
            raise Refusal(
                404, f"there is no model {quote(name)}; it is called '{self._model.name}'.", "model", "model_not_found"
            )

    async def complete(self, request: Request) -> Response:
        """Answer a request for a completion."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.seconds):
                with self._memory.reserve() as reserve:
                    answer = await self._complete(request, reserve)
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

    async def _complete(self, request: Request, reserve: Callable[[int], None]) -> dict[str, Any]:
        full = Refusal(429, "the queue is full; ask again in a moment.", code="queue_full", retry_after=1)
        body = await _read_body(request, self._limits.body, reserve)
        if self.batcher.full:  # before anything is decoded
            raise full
        self._meters.open += 1  # until it is answered or refused, so that partial batches wait for it
        try:
            asked, question = await asyncio.to_thread(self._prepare, body, reserve)
            del body
            try:
                answer = self.batcher.ask(question)
            except QueueFullError:
                raise full from None
            gone = asyncio.ensure_future(request.receive())  # the body was read: the next message is the disconnect
            try:
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise ClientDisconnect
                return describe_reply(answer.result(), asked)
            except UserError as error:
                raise Refusal(400, str(error), "messages") from None
            finally:
                gone.cancel()
                answer.cancel()
        finally:
            self._meters.open -= 1
            self.batcher.look_again()

    def _prepare(self, body: bytes, reserve: Callable[[int], None]) -> tuple[ChatRequest, ModelInput]:
        asked = parse_request(body, self._limits, reserve)
        self._check_name(asked.model)
        return asked, self._model.prepare(asked)


async def _read_body(request: Request, most: int, reserve: Callable[[int], None]) -> bytes:
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
        reserve(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def _refuse(_: Request, error: Exception) -> Response:
    """Answer with a refusal; unknown paths and methods with their status; other exceptions with 500."""
    headers = {}
    if isinstance(error, Refusal):
        refusal = error
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, HTTPException):
        known = "this server has /v1/chat/completions, /v1/models, /health, /metrics."
        refusal, headers = Refusal(error.status_code, f"{error.detail}: {known}"), dict(error.headers or {})
    else:  # uvicorn logs the traceback
        refusal = Refusal(500, "the server failed on this request; its log says why.", code="failed")
    return JSONResponse(refusal.describe(), refusal.status, headers)
