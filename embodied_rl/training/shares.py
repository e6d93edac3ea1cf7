"""Rollouts on their way from those who collect to those who learn, as plain arrays, shared out by environments.

Shapes: T decisions, N environments.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.buffer import Rollout

_OF_ENVIRONMENTS = ("last_value",)
"""What has no axis of decisions before that of environments."""


def to_arrays(rollout: Rollout) -> dict[str, Array]:
    """Views of a rollout's tensors, [T, N, ...] each and [N] for `last_value`; bfloat16 as int16."""
    return {name: _array(tensor) for name, tensor in rollout.tensors().items()}


def fill_rollout(rollout: Rollout, arrays: Mapping[str, Array]) -> None:
    """The inverse of `to_arrays`: copy arrays into a rollout of the same sizes.

    Raises:
        UserError: they are of other sizes.
    """
    for name, tensor in rollout.tensors().items():
        if arrays[name].shape != (view := _plain(tensor)).shape:
            raise UserError(f"a rollout's {name} is {arrays[name].shape}, {tuple(tensor.shape)} was expected")
        view.copy_(torch.from_numpy(np.require(arrays[name], requirements=["C", "W"])))


def divide_anew(parts: Sequence[dict[str, Array]], count: int) -> list[dict[str, Array]]:
    """Arrays of some environments each, in their order, divided anew into `count` equal parts."""
    if len(parts) == count:
        return list(parts)
    shares: list[dict[str, Array]] = [{} for _ in range(count)]
    for name in parts[0]:
        axis = 0 if name in _OF_ENVIRONMENTS else 1
        whole = np.concatenate([part[name] for part in parts], axis)
        for share, piece in zip(shares, np.split(whole, count, axis), strict=True):
            share[name] = piece
    return shares


def _array(tensor: Tensor) -> Array:
    return _plain(tensor.detach().cpu()).numpy()


def _plain(tensor: Tensor) -> Tensor:
    """A view of a type that NumPy has."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
