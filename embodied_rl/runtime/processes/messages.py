"""Messages between a worker and its handle, which may run different versions of Python and NumPy.

A connection begins with a greeting in JSON, which names the protocol version before anything is unpickled. This module
imports only NumPy and the standard library.
"""

import io
import json
import pickle
import platform
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array

PROTOCOL = 6
"""Version of the messages and of the classes that they hold; raised with each change."""


@dataclass(frozen=True)
class Unchanged:
    """A placeholder for a list that equals the one of the last call; the next episodes seldom change."""


class ShortenedLists:
    """Remembers the list arguments of each method's last call, in the same way at both ends of a connection."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], list[Any]] = {}

    def shorten(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments to send, with `Unchanged` in place of each unchanged list."""
        shortened: list[Any] = list(args)
        for place, value in enumerate(args):
            if isinstance(value, list):
                if _are_same(self._last.get((method, place)), value):
                    shortened[place] = Unchanged()
                else:
                    self._last[method, place] = list(value)
        return tuple(shortened)

    def restore(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments that were given to `shorten` at the other end."""
        restored: list[Any] = list(args)
        for place, value in enumerate(args):
            if isinstance(value, Unchanged):
                restored[place] = list(self._last[method, place])
            elif isinstance(value, list):
                self._last[method, place] = list(value)
        return tuple(restored)


def _are_same(last: list[Any] | None, value: list[Any]) -> bool:
    """Return whether lists are equal; the histories of episodes, which do not compare, must be the same array."""
    return last == value and all(
        getattr(old, "history", None) is getattr(new, "history", None)
        for old, new in zip(last or (), value, strict=True)
    )


def send(connection: Connection, message: Any) -> None:
    """Send a plain pickle; `Connection.send` would let torch send tensors as descriptors, which close too early."""
    connection.send_bytes(pickle_message(message))


def pickle_message(message: Any) -> memoryview:
    """Return the pickle of a message, readable by any NumPy version."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = {np.ndarray: reduce_array}
    pickler.dump(message)
    return file.getbuffer()


def reduce_array(array: Array) -> Any:
    """Return how to pickle an array; NumPy's own pickles name modules that NumPy 1 and 2 do not share."""
    if array.dtype.hasobject:
        return array.__reduce__()
    whole: Any = np.ascontiguousarray(array)
    buffer = pickle.PickleBuffer(whole if whole.flags.writeable else whole.copy())
    return restore_array, (buffer, array.dtype, array.shape)


def restore_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a new, writable array from the parts that `reduce_array` made."""
    return np.frombuffer(buffer, dtype).reshape(shape)


def receive(connection: Connection) -> Any:
    """Receive and unpickle a message of `send`."""
    return pickle.loads(connection.recv_bytes())


def send_greeting(connection: Connection) -> None:
    """Send the protocol version, and the versions of Python and NumPy."""
    greeting = {"protocol": PROTOCOL, "python": platform.python_version(), "numpy": np.__version__}
    connection.send_bytes(json.dumps(greeting).encode())


def receive_greeting(connection: Connection) -> dict[str, Any]:
    """Receive the greeting of `send_greeting`. Return an empty dictionary if the message is not a greeting."""
    message = connection.recv_bytes(4096)
    try:
        greeting = json.loads(message)
    except ValueError:
        return {}
    return greeting if isinstance(greeting, dict) else {}
