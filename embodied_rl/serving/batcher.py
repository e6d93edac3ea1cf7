"""Micro-batcher: groups requests into batches for the model. Standard library only.

A request waits at most `wait` seconds for others of the same shape; a full batch is computed at once. While the model
computes, requests wait in a bounded queue.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar


class Shaped(Protocol):
    """Request that can be batched with others of the same shape."""

    @property
    def shape(self) -> Hashable: ...


Asked = TypeVar("Asked", bound=Shaped)
Answer = TypeVar("Answer")


class QueueFullError(Exception):
    """The queue is full."""


@dataclass(eq=False)
class _Place(Generic[Asked, Answer]):
    asked: Asked
    answer: "asyncio.Future[Answer]"
    arrived: float = field(default_factory=time.monotonic)


class MicroBatcher(Generic[Asked, Answer]):
    """Queue that computes requests in batches, one batch at a time, in a separate thread.

    Args:
        compute: answers requests of one shape, in order; called in the thread.
        batch: maximum batch size.
        wait: seconds that a request waits for others.
        places: capacity of the queue.
        watch: called with the size and duration in seconds of each batch.
        expected: number of open requests; a batch starts early once all of them are in the queue.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Asked]], Sequence[Answer]],
        batch: int,
        wait: float,
        places: int,
        watch: Callable[[int, float], None] = lambda size, seconds: None,
        expected: Callable[[], int] | None = None,
    ) -> None:
        self._compute, self._batch, self._wait, self._places, self._watch = compute, batch, wait, places, watch
        self._expected = expected
        self._waiting: OrderedDict[int, _Place[Asked, Answer]] = OrderedDict()  # by arrival
        self._changed = asyncio.Event()
        self._busy_since: float | None = None

    @property
    def waiting(self) -> int:
        """Return the number of queued requests, without the batch in progress."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Return whether the queue is full."""
        return len(self._waiting) >= self._places

    @property
    def busy(self) -> float:
        """Return the seconds since the current batch started; 0 if there is none."""
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def ask(self, asked: Asked) -> "asyncio.Future[Answer]":
        """Enqueue a request, or raise `QueueFullError`; return its answer's future. Cancel that to free the place."""
        if self.full:
            raise QueueFullError
        place: _Place[Asked, Answer] = _Place(asked, asyncio.get_running_loop().create_future())
        self._waiting[id(place)] = place
        place.answer.add_done_callback(lambda _: self._waiting.pop(id(place), None))
        self._changed.set()
        return place.answer

    def look_again(self) -> None:
        """Check again whether a batch is due, after `expected` decreased."""
        self._changed.set()

    async def run(self) -> None:
        """Compute batches until cancelled."""
        thread = _Thread()
        try:
            while True:
                self._changed.clear()
                places, due = self._find_batch()
                if places and due <= 0:
                    for place in places:
                        del self._waiting[id(place)]
                    await self._answer(thread, places)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(due if places else None):
                        await self._changed.wait()
        finally:
            thread.close()

    def _find_batch(self) -> "tuple[list[_Place[Asked, Answer]], float]":
        """Return the batch that is due first, and the seconds until it is due.

        The oldest request goes first, so that no shape starves another; until it is due, a full batch goes first.
        """
        by_shape: dict[Hashable, list[_Place[Asked, Answer]]] = {}
        for place in self._waiting.values():
            line = by_shape.setdefault(place.asked.shape, [])
            if len(line) < self._batch:
                line.append(place)
        if not by_shape:
            return [], 0.0
        oldest = next(iter(by_shape.values()))
        due = self._wait - (time.monotonic() - oldest[0].arrived)
        if self._expected is not None and len(self._waiting) >= self._expected():
            due = 0.0
        whole = next((line for line in by_shape.values() if len(line) == self._batch), None)
        return (whole, 0.0) if due > 0 and whole is not None else (oldest, due)

    async def _answer(self, thread: "_Thread", places: "list[_Place[Asked, Answer]]") -> None:
        """Answer a batch; if that fails, answer each request alone, so that one error does not fail the others."""
        self._busy_since = began = time.monotonic()
        try:
            outcome = await thread.call(self._compute, [place.asked for place in places])
        finally:
            self._busy_since = None
        self._watch(len(places), time.monotonic() - began)
        if not isinstance(outcome, Exception) and len(outcome) != len(places):
            outcome = RuntimeError(f"the model gave {len(outcome)} answers to {len(places)} questions")
        if not isinstance(outcome, Exception):
            for place, answer in zip(places, outcome, strict=True):
                if not place.answer.done():
                    place.answer.set_result(answer)
        elif len(places) == 1:
            if not places[0].answer.done():
                places[0].answer.set_exception(outcome)
        else:
            for place in places:
                if not place.answer.done():  # the client may have disconnected
                    await self._answer(thread, [place])


class _Thread:
    """Daemon thread of the model: shutdown does not wait for a long batch."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._run, name="model", daemon=True).start()

    async def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Return what the function returns, or the exception that it raised."""
        loop = asyncio.get_running_loop()
        outcome = loop.create_future()
        self._calls.put((loop, outcome, function, argument))
        return await outcome

    def close(self) -> None:
        """End the thread after its current call."""
        self._calls.put(None)

    def _run(self) -> None:
        def settle(outcome: "asyncio.Future[Any]", result: Any) -> None:
            if not outcome.done():
                outcome.set_result(result)

        while (called := self._calls.get()) is not None:
            loop, outcome, function, argument = called
            try:
                result = function(argument)
            except Exception as error:  # noqa: BLE001 - passed on to the caller
                result = error
            try:
                loop.call_soon_threadsafe(settle, outcome, result)
            except RuntimeError:  # the event loop has been closed
                return
