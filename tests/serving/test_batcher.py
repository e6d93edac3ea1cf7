"""The micro-batcher: which requests share a batch, when, and that one cannot harm others."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from embodied_rl.serving.batcher import MicroBatcher, QueueFullError

LONG = 3600.0
"""Seconds that no test lasts."""


@dataclass(frozen=True)
class Item:
    """A question of a shape."""

    number: int
    shape: str = ""


class Computer:
    """Answers with the numbers, and notes its calls; a gate holds it, numbers below 0 make it fail."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.calls, self.gate, self.began = list[list[int]](), gate, threading.Event()

    def __call__(self, items: Sequence[Item]) -> Sequence[int]:
        assert len({item.shape for item in items}) == 1
        self.calls.append([item.number for item in items])
        self.began.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        if any(item.number < 0 for item in items):
            raise KeyError("no negative numbers")
        return [item.number for item in items]


def run(
    computer: Computer,
    body: Any,
    batch: int = 4,
    wait: float = 0.005,
    places: int = 100,
    expected: Callable[[], int] | None = None,
) -> Any:
    """Run a coroutine that asks a batcher."""

    async def whole() -> Any:
        batcher = MicroBatcher(computer, batch, wait, places, expected=expected)
        running = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(60):
                return await body(batcher)
        finally:
            running.cancel()

    return asyncio.run(whole())


def test_where_all_who_can_ask_have_asked_nobody_waits() -> None:
    async def body(batcher: MicroBatcher) -> list[int]:
        return await asyncio.gather(*(batcher.ask(Item(number)) for number in range(3)))

    computer = Computer()
    assert run(computer, body, wait=LONG, expected=lambda: 3) == [0, 1, 2]
    assert computer.calls == [[0, 1, 2]]


def test_a_full_batch_does_not_wait() -> None:
    async def body(batcher: MicroBatcher) -> list[int]:
        return await asyncio.gather(*(batcher.ask(Item(number)) for number in range(4)))

    computer = Computer()
    assert run(computer, body, wait=LONG) == [0, 1, 2, 3]
    assert computer.calls == [[0, 1, 2, 3]]


def test_those_that_came_while_the_model_computed_go_together() -> None:
    gate = threading.Event()
    computer = Computer(gate)

    async def body(batcher: MicroBatcher) -> list[int]:
        first = batcher.ask(Item(0))
        await asyncio.to_thread(computer.began.wait, 60)
        others = [batcher.ask(Item(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0.02)
        gate.set()
        return await asyncio.gather(first, *others)

    assert run(computer, body) == [0, 1, 2, 3]
    assert computer.calls == [[0], [1, 2, 3]]


def test_shapes_are_not_mixed_and_none_waits_for_ever() -> None:
    """The lonely shape goes after its wait, although the other one fills batch after batch."""

    async def body(batcher: MicroBatcher) -> int:
        lonely, running = batcher.ask(Item(99, "b")), True

        async def flood() -> None:
            while running:
                await asyncio.gather(*(batcher.ask(Item(number, "a")) for number in range(8)))

        flooding = [asyncio.create_task(flood()) for _ in range(3)]
        answer = await lonely
        running = False
        await asyncio.gather(*flooding)
        return answer

    assert run(Computer(), body, wait=0.02) == 99


def test_one_fails_alone() -> None:
    async def body(batcher: MicroBatcher) -> list[Any]:
        return await asyncio.gather(*(batcher.ask(Item(n)) for n in (1, -2, 3, 4)), return_exceptions=True)

    computer = Computer()
    found = run(computer, body, wait=LONG)
    assert [found[0], *found[2:]] == [1, 3, 4] and isinstance(found[1], KeyError)
    assert computer.calls == [[1, -2, 3, 4], [1], [-2], [3], [4]]


def test_too_few_answers_are_a_failure() -> None:
    async def body(batcher: MicroBatcher) -> int:
        return await batcher.ask(Item(1))

    with pytest.raises(RuntimeError, match="0 answers to 1 questions"):
        run(lambda items: [], body)  # pyright: ignore[reportArgumentType]


def test_the_queue_is_bounded_and_a_place_is_freed_by_cancelling() -> None:
    gate = threading.Event()
    computer = Computer(gate)

    async def body(batcher: MicroBatcher) -> list[int]:
        first = batcher.ask(Item(0))
        await asyncio.to_thread(computer.began.wait, 60)
        waiting = [batcher.ask(Item(1)), batcher.ask(Item(2))]
        with pytest.raises(QueueFullError):
            batcher.ask(Item(3))
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 1 and not batcher.full
        last = batcher.ask(Item(4))
        gate.set()
        return [await each for each in (first, waiting[1], last)]

    assert run(computer, body, places=2) == [0, 2, 4]
    assert computer.calls == [[0], [2, 4]], "the cancelled one was not computed"


def test_cancelling_what_is_being_computed_harms_nobody() -> None:
    gate = threading.Event()
    computer = Computer(gate)

    async def body(batcher: MicroBatcher) -> int:
        both = [batcher.ask(Item(1)), batcher.ask(Item(2))]
        await asyncio.to_thread(computer.began.wait, 60)
        assert batcher.busy > 0
        both[0].cancel()
        gate.set()
        return await both[1]

    assert run(computer, body) == 2


def test_a_batch_that_never_ends_does_not_keep_the_batcher_from_ending() -> None:
    gate = threading.Event()
    computer = Computer(gate)

    async def body(batcher: MicroBatcher) -> None:
        batcher.ask(Item(1))
        await asyncio.to_thread(computer.began.wait, 60)

    began = time.monotonic()
    run(computer, body)
    assert time.monotonic() - began < 50, "it waited for the gate"
    gate.set()
