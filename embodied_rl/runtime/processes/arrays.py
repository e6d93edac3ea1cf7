"""Packs messages into one pickle and plain NumPy arrays, so that they reach another machine without torch's help.

A transport that knows NumPy moves arrays without copying them, and handles torch's tensors several times slower, if at
all. So a tensor of any dtype is sent as the bytes of its numbers, and is restored on the CPU.
"""

import io
import pickle
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.runtime.processes.messages import restore_array


@dataclass(frozen=True)
class Packed:
    """A packed message: `buffers` are uint8 arrays, in the order in which `pickled` refers to them."""

    pickled: bytes
    buffers: tuple[Array, ...]


def pack(value: Any) -> Packed:
    """Pack a picklable value without copying its contiguous arrays and CPU tensors, at any depth.

    Raises:
        Exception: pickling failed, with `pickle.PicklingError`, `TypeError` or `AttributeError`.
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return Packed(file.getvalue(), tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


def unpack(packed: Packed, copy: bool = True) -> Any:
    """Restore the value that `pack` packed.

    Args:
        packed: a message.
        copy: whether arrays and tensors are writable copies that do not keep the message alive; otherwise they are
            views of the message's buffers, and a tensor must not be written where its buffer is read-only.
    """
    return pickle.loads(packed.pickled, buffers=[array.copy() if copy else array for array in packed.buffers])


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")  # without it there are no tensors
        if torch is not None and isinstance(value, torch.Tensor):
            return _reduce_tensor(value)
        if type(value) is np.ndarray and not value.dtype.hasobject:
            whole: Any = np.ascontiguousarray(value)
            return restore_array, (pickle.PickleBuffer(whole), value.dtype, value.shape)
        return NotImplemented


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"a tensor of {tensor.dtype}, {tensor.layout}, cannot be sent: make it dense and plain first")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    bits = plain.reshape(-1).view(torch.uint8).numpy()
    dtype = str(plain.dtype).removeprefix("torch.")
    learned = tensor.requires_grad if isinstance(tensor, torch.nn.Parameter) else None
    return _restore_tensor, (pickle.PickleBuffer(bits), dtype, tuple(plain.shape), learned)


def _restore_tensor(buffer: Any, dtype: str, shape: tuple[int, ...], learned: bool | None) -> Any:
    """Return a tensor of these bytes, or a parameter with `requires_grad=learned` where `learned` is not None."""
    import torch

    kind, array = getattr(torch, dtype), np.frombuffer(buffer, np.uint8)
    with nullcontext() if array.flags.writeable else warnings.catch_warnings(action="ignore"):  # views, as asked for
        tensor = torch.from_numpy(array).view(kind).reshape(shape) if array.size else torch.empty(shape, dtype=kind)
    return tensor if learned is None else torch.nn.Parameter(tensor, requires_grad=learned)
