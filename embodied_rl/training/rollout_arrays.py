"""Conversion of rollouts to plain arrays for transfer from collectors to learners, and their division by environments.

Shapes: T decisions, N environments.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.buffer import OF_ENVIRONMENTS, Rollout


def to_arrays(rollout: Rollout) -> dict[str, Array]:
    """Return a rollout's tensors as array views, [T, N, ...] each and [N] for `last_value`; bfloat16 as int16."""
    return {name: _plain(tensor.detach().cpu()).numpy() for name, tensor in rollout.tensors().items()}


def fill_rollout(rollout: Rollout, arrays: Mapping[str, Array]) -> None:
    """Copy arrays of `to_arrays` into a rollout of the same sizes.

    Raises:
        UserError: the arrays have other sizes.
    """
    for name, tensor in rollout.tensors().items():
        if arrays[name].shape != (view := _plain(tensor)).shape:
            message = f"a rollout's {name} is {arrays[name].shape}, {tuple(tensor.shape)} was expected"
            raise UserError(message, code="rollout-shape-mismatch")
        view.copy_(torch.from_numpy(np.require(arrays[name], requirements=["C", "W"])))


def redistribute(parts: Sequence[dict[str, Array]], count: int) -> list[dict[str, Array]]:
    """Join parts of consecutive environments, and divide them by environments into `count` equal parts."""
    if len(parts) == count:
        return list(parts)
    shares: list[dict[str, Array]] = [{} for _ in range(count)]
    for name in parts[0]:
        axis = 0 if name in OF_ENVIRONMENTS else 1
        whole = np.concatenate([part[name] for part in parts], axis)
        for share, piece in zip(shares, np.split(whole, count, axis), strict=True):
            share[name] = piece
    return shares


def _plain(tensor: Tensor) -> Tensor:
    """Return a view with a dtype that NumPy supports: int16 for bfloat16."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
