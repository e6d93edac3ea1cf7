"""Run a network wholly in float64: two projects with the same formulas then agree to 1e-12."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Wide(TorchFunctionMode):
    """Gives float64 to whatever asks for float32."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = [_widen(value) for value in args]
        if func is torch.Tensor.float:
            return given[0].double()
        return func(*given, **{name: _widen(value) for name, value in (kwargs or {}).items()})


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def in_float64() -> Iterator[None]:
    """Build and run networks in float64, also where their code says float32; tensors from outside stay as they are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(before)
