"""Tensors of a checkpoint that follow from its step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def tensors(step: int) -> dict[str, Any]:
    """Of every kind that a checkpoint takes."""
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(5, 3, generator=generator)
    return {
        "weight": weight,
        "tied": weight,
        "part": weight[1:, :2],
        "half": weight.half(),
        "count": np.arange(step, step + 4),
        "scalar": np.full((), 0.1),
        "flag": torch.tensor([True, False]),
    }


def assert_equal(found: Mapping[str, torch.Tensor], step: int) -> None:
    """They are those of this step, to the bit."""
    expected = {name: torch.as_tensor(value) for name, value in tensors(step).items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
