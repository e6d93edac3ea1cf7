"""Serialisation of messages between processes over a network, as bytes that cannot run code.

A message is JSON, followed by the bytes of its arrays. Unlike a pickle it names no function: the reader lists the
dataclasses that may occur. All other values are numbers, texts, lists, tuples, mappings, arrays or tensors.

    4 bytes  "ERL1"
    8 bytes  length of the JSON, little-endian
    JSON     {"value": …, "sizes": [bytes of each array]}
    bytes    of the arrays, in order
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from embodied_rl.interfaces.errors import RunFailed

MARK = b"ERL1"
_LENGTH = struct.Struct("<Q")
_KINDS = "biuf"
"""Kinds of array entries: booleans, integers and floats, which hold no references."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip


class NotSerialisable(RunFailed):
    """The bytes are not a message of this format, or the value cannot be encoded in it."""


def encode(value: Any) -> bytes:
    """Encode a value as bytes.

    Raises:
        NotSerialisable: the value contains something other than numbers, text, lists, tuples, mappings, arrays,
            tensors, or dataclasses of these.
    """
    buffers: list[bytes] = []
    encoded = _encode_value(value, buffers)
    head = json.dumps({"value": encoded, "sizes": [len(buffer) for buffer in buffers]}).encode()
    return b"".join([MARK, _LENGTH.pack(len(head)), head, *buffers])


def decode(data: bytes | memoryview, kinds: Sequence[type[Any]] = ()) -> Any:
    """Decode a value that `encode` encoded; arrays are copies.

    Args:
        data: bytes of a message; the sender need not be trusted.
        kinds: the dataclasses that may occur.

    Raises:
        NotSerialisable: `data` is not a message, or contains a dataclass that is not among `kinds`.
    """
    view = memoryview(data)
    start = len(MARK) + _LENGTH.size
    if bytes(view[: len(MARK)]) != MARK or len(view) < start:
        raise NotSerialisable(f"{len(view)} bytes are not a valid message: they begin with {bytes(view[:8])!r}.")
    end = start + _LENGTH.unpack(view[len(MARK) : start])[0]
    try:
        head = json.loads(bytes(view[start:end]))
        sizes = head["sizes"]
        if any(size < 0 for size in sizes) or sum(sizes) != len(view[end:]):
            raise NotSerialisable(f"a message declares arrays of {sizes} bytes, and holds {len(view[end:])}.")
        ends = list(accumulate(sizes, initial=end))
        buffers = [view[first:last] for first, last in pairwise(ends)]
        return _Reader(buffers, {kind.__name__: kind for kind in kinds}).read(head["value"])
    except NotSerialisable:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise NotSerialisable(f"{len(view)} bytes are not a valid message ({type(error).__name__}: {error}).") from None


def _encode_value(value: Any, buffers: list[bytes]) -> Any:
    """Return `value` as JSON data. A type that JSON lacks becomes an object with the name of the type as its key."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_encode_value(each, buffers) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode_value(each, buffers) for each in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[_encode_value(key, buffers), _encode_value(each, buffers)] for key, each in value.items()]}
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise NotSerialisable(f"a tensor of {name} cannot be sent to another process.")
        buffers.append(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return {"tensor": [name, list(value.shape), len(buffers) - 1]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _KINDS:
        array = np.ascontiguousarray(value).reshape(value.shape)
        buffers.append(array.tobytes())
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: [array.dtype.str, list(value.shape), len(buffers) - 1]}
    if is_dataclass(value) and not isinstance(value, type):
        content = {item.name: _encode_value(getattr(value, item.name), buffers) for item in fields(value)}
        return {"dataclass": [type(value).__name__, content]}
    raise NotSerialisable(f"{type(value).__name__} cannot be sent to another process.")


class _Reader:
    """Restores the values that `_encode_value` converted to JSON data."""

    def __init__(self, buffers: Sequence[memoryview], kinds: Mapping[str, type[Any]]) -> None:
        self._buffers, self._kinds = buffers, kinds

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.read(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind not in _READS:
            raise NotSerialisable("a message holds a value of unknown type.")
        return getattr(self, f"_{kind}")(content)

    def _tuple(self, content: Any) -> tuple[Any, ...]:
        return tuple(self.read(each) for each in content)

    def _mapping(self, content: Any) -> dict[Any, Any]:
        return {self.read(key): self.read(each) for key, each in content}

    def _array(self, content: Any) -> np.ndarray:
        text, shape, place = content
        dtype = np.dtype(str(text))
        if dtype.kind not in _KINDS:
            raise NotSerialisable(f"a message holds an array of {dtype}.")
        return np.frombuffer(self._bytes(place, shape, dtype.itemsize), dtype).reshape(shape).copy()

    def _scalar(self, content: Any) -> Any:
        return self._array(content)[()]

    def _tensor(self, content: Any) -> torch.Tensor:
        name, shape, place = content
        dtype = _DTYPES[name]
        data = bytearray(self._bytes(place, shape, dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)

    def _dataclass(self, content: Any) -> Any:
        name, values = content
        if name not in self._kinds:
            raise NotSerialisable(f"a message holds a {name!r}, which is not expected here.")
        kind = self._kinds[name]
        if values.keys() != {item.name for item in fields(kind)}:
            raise NotSerialisable(f"a message holds a {name!r} with other fields: {', '.join(values)}.")
        return kind(**{key: self.read(each) for key, each in values.items()})

    def _bytes(self, place: int, shape: Sequence[int], each: int) -> memoryview:
        if any(size < 0 for size in shape) or len(self._buffers[place]) != math.prod(shape) * each:
            raise NotSerialisable(f"a message holds {len(self._buffers[place])} bytes for an array of shape {shape}.")
        return self._buffers[place]


_READS = ("tuple", "mapping", "array", "scalar", "tensor", "dataclass")
