"""Tensors that have shapes and no values, to count what a network's work takes.

Torch's `FakeTensorMode` does the same for every device, and takes several times as long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

META = torch.device("meta")
KNOWN: dict[Any, Any] = {}
"""Layouts of results, by operation and layouts of arguments: layers repeat, and torch finds many layouts in Python."""


ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class ShapeTensor(Tensor):
    """A tensor that says it is on the CPU, where `torch.autocast` applies, and holds a tensor on the meta device."""

    shape_only: Tensor

    @staticmethod
    def __new__(cls, shape_only: Tensor) -> "ShapeTensor":
        """Wrap a tensor on the meta device, with its strides and dtype."""
        size, strides = shape_only.size(), shape_only.stride()
        made = Tensor._make_wrapper_subclass(cls, size, strides=strides, dtype=shape_only.dtype, device="cpu")  # type: ignore[attr-defined]
        made.shape_only = shape_only
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse to compute outside of `ShapeMode`."""
        return NotImplemented


class ShapeMode(TorchDispatchMode):
    """A context in which each operation computes only the shapes of its results; it can use modules on the meta device.

    A mode that is entered before it sees each new tensor on the meta device, where tensors share storage as real ones
    do, but not every operation.

    Attributes:
        operations: of matrix products, convolutions and attention so far, in floating point, by torch's formulas.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _change(_unwrap, args), _change(_unwrap, kwargs or {})
        if _takes_device(func):
            kwargs["device"] = META
        key = func, _describe(args), _describe(tuple(kwargs.items()))
        if key in KNOWN:
            result = _change(_Layout.make, KNOWN[key])
        else:
            result = func(*args, **kwargs)
            if not _changes(func) and _is_new(result, (args, kwargs)):
                KNOWN[key] = _change(_Layout.read, result)
        self.operations += _count_operations(func._overloadpacket, args, kwargs, result)
        return _change(ShapeTensor, result)


def _count_operations(packet: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Count operations by torch's formulas; for attention on the CPU, which has none, by those of other devices."""
    if packet is ATTENTION:
        return sdpa_flop_count(*(each.shape for each in args[:3]))
    if packet is ATTENTION_BACKWARD:
        return sdpa_backward_flop_count(*(each.shape for each in args[:4]))
    return flop_registry[packet](*args, **kwargs, out_val=result) if packet in flop_registry else 0


@dataclass(frozen=True)
class _Layout:
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def read(cls, tensor: Tensor) -> "_Layout":
        return cls(tensor.shape, tensor.stride(), tensor.dtype)

    def make(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=META)


def _unwrap(tensor: Tensor) -> Tensor:
    return tensor.shape_only if isinstance(tensor, ShapeTensor) else tensor.to(META)


@cache
def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


@cache
def _changes(func: Any) -> bool:
    """Return whether an operation returns views, or changes tensors in place."""
    return any(argument.alias_info is not None for argument in func._schema.arguments)


def _is_new(result: Any, given: Any) -> bool:
    """Return whether a result is nothing but new dense tensors; some operations share storage undeclared."""
    before, made = list[Tensor](), list[Tensor]()
    _change(before.append, given)
    _change(made.append, result)
    storages = {each.untyped_storage()._cdata for each in before}
    dense = all(each.untyped_storage().nbytes() == each.nbytes for each in made)
    return dense and storages.isdisjoint(each.untyped_storage()._cdata for each in made)


def _change(change: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the tensors, or layouts, of nested lists, tuples and dictionaries."""
    if isinstance(tree, Tensor | _Layout):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([_change(change, each) for each in tree])
    return {name: _change(change, each) for name, each in tree.items()} if isinstance(tree, dict) else tree


def _describe(tree: Any) -> Any:
    """Return what a result's layout depends on: layouts of tensors, and other values with their types."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.stride(), tree.dtype
    return tuple(map(_describe, tree)) if isinstance(tree, list | tuple) else (type(tree), tree)
