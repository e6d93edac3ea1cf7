"""Wire format: msgpack with NumPy arrays in openpi's form. Only plain values are read; nothing is unpickled.

An array is a map with the entries `__ndarray__`, `data`, `dtype`, `shape`, in openpi with keys of bytes, in the
harness vla-eval with keys of text; both are read. Source of the form: openpi_client/msgpack_numpy.py of openpi.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

DTYPES = frozenset(["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"])
"""Array dtypes that are read: little-endian numbers."""
ARRAY, SCALAR = "__ndarray__", "__npgeneric__"
MOST_DIMENSIONS = 8


class WireError(ValueError):
    """A message is invalid; the text is sent to its sender."""


@dataclass(frozen=True)
class WireLimits:
    """Limits of one message: bytes of the message, of an array, characters of a text, and nesting depth.

    `keys` is the total number of entries of all maps and lists; an empty one counts as one.
    """

    message: int = 16 * 2**20
    array: int = 16 * 2**20
    keys: int = 1024
    text: int = 10_000
    depth: int = 6


LIMITS = WireLimits()


def pack(value: Any, text_keys: bool = False) -> bytes:
    """Return maps, lists, texts, numbers and arrays as a message; `text_keys`: arrays as in the vla-eval harness."""

    def convert(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            ordered = item.astype(item.dtype.newbyteorder("<"), copy=False)
            if ordered.dtype.str not in DTYPES:
                raise TypeError(f"an array of {item.dtype} cannot be sent")
            entries = {ARRAY: True, "data": ordered.tobytes(), "dtype": ordered.dtype.str, "shape": list(item.shape)}
            return entries if text_keys else {name.encode(): value for name, value in entries.items()}
        if isinstance(item, np.generic):
            return item.item()
        raise TypeError(f"{type(item).__name__} cannot be sent")

    packed = msgpack.packb(value, default=convert)
    assert packed is not None, "packb returns bytes by default"
    return packed


def unpack(message: bytes | str, limits: WireLimits = LIMITS) -> Any:
    """Return the value of a message: maps have keys of text, arrays are read-only.

    Raises:
        WireError: the message is not msgpack, exceeds a limit, or has other than plain values.
    """
    if isinstance(message, str):
        raise WireError("a message is msgpack, in a binary frame; this was text.")
    if len(message) > limits.message:
        raise WireError(f"a message has at most {limits.message} bytes; this has {len(message)}.")
    reader = _Reader(limits)
    try:
        value = msgpack.unpackb(message, raw=False, strict_map_key=True, ext_hook=_reject_extension,
                                list_hook=reader.count_list, object_pairs_hook=reader.make_map,
                                max_array_len=limits.keys, max_map_len=limits.keys)  # fmt: skip
    except WireError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, OverflowError) as error:
        raise WireError(f"the message is no msgpack: {type(error).__name__}: {str(error)[:200]}") from None
    return reader.read(value, 0)


def _reject_extension(code: int, data: bytes) -> Any:
    raise WireError(f"the message has an extension of msgpack (type {code}), which may mean anything: leave it out.")


class _Reader:
    """Validates and converts one message. Entries are counted during unpacking: a few bytes can encode many maps."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits, self._entries = limits, 0

    def count_list(self, items: list[Any]) -> list[Any]:
        self._count(len(items))
        return items

    def make_map(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        self._count(len(pairs))
        named: dict[str, Any] = {}
        for key, item in pairs:
            name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
            if not isinstance(name, str) or len(name) > 200:
                raise WireError("keys of maps are texts of at most 200 characters.")
            named[name] = item
        if len(named) != len(pairs):
            raise WireError("two keys of a map are the same text.")
        return named

    def read(self, value: Any, depth: int) -> Any:
        if depth > self._limits.depth:
            raise WireError(f"maps and lists lie at most {self._limits.depth} deep in each other.")
        if isinstance(value, dict) and ARRAY in value:
            return self._read_array(value)
        if isinstance(value, dict) and SCALAR in value:
            if set(value) != {SCALAR, "data", "dtype"} or not isinstance(value["data"], bool | int | float):
                raise WireError(f"a number of NumPy has {SCALAR}, data (a number) and dtype.")
            _find_dtype(value["dtype"])
            return value["data"]
        if isinstance(value, dict):
            return {name: self.read(item, depth + 1) for name, item in value.items()}
        if isinstance(value, list):
            return [self.read(item, depth + 1) for item in value]
        if isinstance(value, str) and len(value) > self._limits.text:
            raise WireError(f"a text has at most {self._limits.text} characters; one has {len(value)}.")
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        raise WireError(f"the message holds a {type(value).__name__}, which is not read.")

    def _read_array(self, entries: Mapping[str, Any]) -> NDArray[Any]:
        if set(entries) != {ARRAY, "data", "dtype", "shape"}:
            raise WireError(f"an array has {ARRAY}, data, dtype and shape; this has {', '.join(map(ascii, entries))}.")
        data, dtype, shape = entries["data"], _find_dtype(entries["dtype"]), entries["shape"]
        if not isinstance(data, bytes) or len(data) > self._limits.array:
            raise WireError(f"an array's data are at most {self._limits.array} bytes.")
        whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
        if not whole or len(shape) > MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != len(data):
            raise WireError(f"an array of {dtype} says shape {str(shape)[:80]} and has {len(data)} bytes.")
        try:
            return np.frombuffer(data, dtype).reshape(shape)
        except ValueError:  # an empty array whose other sizes multiply to more than NumPy counts
            raise WireError(f"an array of {dtype} says shape {str(shape)[:80]}, which is too large.") from None

    def _count(self, entries: int) -> None:
        self._entries += max(entries, 1)
        if self._entries > self._limits.keys:
            raise WireError(f"a message has at most {self._limits.keys} entries.")


def _find_dtype(entries: Any) -> np.dtype[Any]:
    if not isinstance(entries, str) or entries not in DTYPES:
        known = ", ".join(sorted(DTYPES))
        raise WireError(f"an array's dtype is one of {known}; not {ascii(entries)[:60]}. Objects are never read.")
    return np.dtype(entries)
