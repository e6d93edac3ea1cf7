"""A cache for open files and their contents, with a size limit."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Held = TypeVar("Held")


class BoundedCache(Generic[Held]):
    """A cache that keeps the most recently used values, up to a total size.

    Args:
        limit: largest total size of the values; one value is always kept.
        size: a function that returns the size of a value.
        close: a function that is called with each dropped value.
    """

    def __init__(self, limit: float, size: Callable[[Held], float], close: Callable[[Held], None] | None = None):
        self._limit, self._size, self._close = limit, size, close
        self._held: OrderedDict[Any, Held] = OrderedDict()
        self._used = 0.0

    def get(self, key: Any, make: Callable[[], Held]) -> Held:
        """Return the value of a key; make it if it is not cached."""
        if key not in self._held:
            made = make()
            self._held[key] = made
            self._used += self._size(made)
            while self._used > self._limit and len(self._held) > 1:
                self._drop()
        self._held.move_to_end(key)
        return self._held[key]

    def clear(self) -> None:
        """Drop all values."""
        while self._held:
            self._drop()

    def _drop(self) -> None:
        _, held = self._held.popitem(last=False)
        self._used -= self._size(held)
        if self._close is not None:
            self._close(held)
