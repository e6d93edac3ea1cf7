"""Messages as one pickle and plain arrays, tensors among them: what crosses to another machine without torch's help.

A transport that knows NumPy moves arrays without copying them, and handles torch's tensors several times slower, if at
all. So tensors cross as the bytes of their numbers, of whatever dtype; they come back on the CPU.
"""

import io
import pickle
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.processes.messages import restore_array


@dataclass(frozen=True)
class Packed:
    """A message: `buffers` are uint8 arrays, in the order in which `pickled` asks for them."""

    pickled: bytes
    buffers: tuple[Array, ...]


def pack(value: Any) -> Packed:
    """Anything that pickles; its arrays and tensors, at any depth, are not copied where they are contiguous.

    Raises:
        Exception: what pickling raises: `pickle.PicklingError`, `TypeError`, `AttributeError`.
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return Packed(file.getvalue(), tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


def unpack(packed: Packed, copy: bool = True) -> Any:
    """The inverse of `pack`.

    Args:
        packed: a message.
        copy: whether arrays and tensors are new ones, that can be written and hold on to nothing; otherwise they are
            views of the message's buffers, and a tensor must not be written where its buffer cannot.
    """
    return pickle.loads(packed.pickled, buffers=[array.copy() if copy else array for array in packed.buffers])


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")  # there are no tensors where nobody imported it
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
    """A tensor of these bytes; a parameter where `learned` says whether it is learned."""
    import torch

    kind, array = getattr(torch, dtype), np.frombuffer(buffer, np.uint8)
    tensor = _bits(array).view(kind).reshape(shape) if array.size else torch.empty(shape, dtype=kind)
    return tensor if learned is None else torch.nn.Parameter(tensor, requires_grad=learned)


def _bits(array: Array) -> Any:
    import torch

    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # who asked for views knows that they cannot be written
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
