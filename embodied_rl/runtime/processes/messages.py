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

PROTOCOL = 4
"""Of the messages below and of the classes in `embodied_rl.interfaces.sim` that they hold; raised with each change."""


@dataclass(frozen=True)
class Unchanged:
    """A placeholder for a list that equals the one of the last call; the list of next episodes seldom changes."""


class ShortenedLists:
    """Remembers the list arguments of each method's last call, in the same way at both ends of a connection."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], list[Any]] = {}

    def shorten(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments to send, with `Unchanged` in place of each unchanged list."""
        return tuple(self._short((method, place), value) for place, value in enumerate(args))

    def restore(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the original arguments of a call whose arguments `shorten` shortened at the other end."""
        return tuple(self._whole((method, place), value) for place, value in enumerate(args))

    def _short(self, key: tuple[str, int], value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if self._last.get(key) == value:
            return Unchanged()
        self._last[key] = list(value)
        return value

    def _whole(self, key: tuple[str, int], value: Any) -> Any:
        if isinstance(value, Unchanged):
            return list(self._last[key])
        if isinstance(value, list):
            self._last[key] = list(value)
        return value


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
    said = {"protocol": PROTOCOL, "python": platform.python_version(), "numpy": np.__version__}
    connection.send_bytes(json.dumps(said).encode())


def receive_greeting(connection: Connection) -> dict[str, Any]:
    """Receive the greeting of `send_greeting`. Return an empty dictionary if the message is not a greeting."""
    message = connection.recv_bytes(4096)
    try:
        said = json.loads(message)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
