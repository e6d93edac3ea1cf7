"""Messages between a worker and who holds it, which may run another Python and another NumPy. NumPy and the standard
library only.

A connection begins with a greeting in JSON, which says who speaks here before anything is unpickled.
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

PROTOCOL = 3
"""Of the messages below and of the classes in `embodied_rl.interfaces.sim` that they hold; raised with each change."""


@dataclass(frozen=True)
class Unchanged:
    """In place of a list that is what it was in the last call: what environments run next seldom changes."""


class ShortenedLists:
    """The lists among the arguments of the last call of each method; both ends keep the same."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], list[Any]] = {}

    def shorten(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as they are sent."""
        return tuple(self._short((method, place), value) for place, value in enumerate(args))

    def restore(self, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inverse of `shorten`, at the other end."""
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
    """Plainly pickled: `Connection.send` would let torch pass its tensors by file descriptors that live too shortly."""
    connection.send_bytes(pickle_message(message))


def pickle_message(message: Any) -> memoryview:
    """The bytes of a message, which any other NumPy understands."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = {np.ndarray: reduce_array}
    pickler.dump(message)
    return file.getbuffer()


def reduce_array(array: Array) -> Any:
    """How an array is pickled: NumPy's own way names modules that NumPy 1 and 2 do not share."""
    if array.dtype.hasobject:
        return array.__reduce__()
    whole: Any = np.ascontiguousarray(array)
    buffer = pickle.PickleBuffer(whole if whole.flags.writeable else whole.copy())
    return restore_array, (buffer, array.dtype, array.shape)


def restore_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The inverse of `reduce_array`; a new array that can be written."""
    return np.frombuffer(buffer, dtype).reshape(shape)


def receive(connection: Connection) -> Any:
    """The counterpart of `send`."""
    return pickle.loads(connection.recv_bytes())


def send_greeting(connection: Connection) -> None:
    """Say which protocol is spoken here, and by what."""
    said = {"protocol": PROTOCOL, "python": platform.python_version(), "numpy": np.__version__}
    connection.send_bytes(json.dumps(said).encode())


def receive_greeting(connection: Connection) -> dict[str, Any]:
    """The counterpart of `send_greeting`. What is no greeting gives an empty one."""
    message = connection.recv_bytes(4096)
    try:
        said = json.loads(message)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
