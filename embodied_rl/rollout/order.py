"""The order in which a collector infers its simulators."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from embodied_rl.rollout.handle_parts import HandlePart
from embodied_rl.runtime.processes.handle import Future, wait_for_any

Order = Literal["exact", "ready"]


def take_in_turn(slices: Sequence[list[HandlePart]], decisions: int) -> Iterator[list[HandlePart]]:
    """Yield one slice after the other, once per decision: the order does not depend on time."""
    for _ in range(decisions):
        yield from slices


def take_ready_first(
    parts: Sequence[HandlePart], decisions: int, most: int, wait: Callable[[Sequence[Future]], None] = wait_for_any
) -> Iterator[list[HandlePart]]:
    """Yield the handles that are ready, at most `most` at a time, those furthest behind first, so that none starves.

    More than half of all handles at a time would keep them in lockstep. Readiness is checked when the next turn is
    requested.
    """
    while left := sorted((part for part in parts if part.decided < decisions), key=lambda part: part.decided):
        ready = [part for part in left if part.is_ready]
        if not ready:
            wait([part.future for part in left if part.future is not None])
            ready = [part for part in left if part.is_ready] or left[:1]  # its deadline detects a hanging one
        yield ready[:most]
