"""Bit-exact comparison of two values, with a message that names the difference."""

from dataclasses import fields
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Observation


def assert_same(left: Any, right: Any, message: str) -> None:
    """Check that two observations, results, arrays, mappings, tuples or scalars are equal; NaN equals NaN.

    Raises:
        AssertionError: they differ; the text is `message` and the part that differs.
    """
    difference = find_first_difference(left, right)
    assert difference is None, f"{message}: {difference} differs"


def find_first_difference(left: Any, right: Any, name: str = "value") -> str | None:
    """Return the name of the first part that differs, or None."""
    if type(left) is not type(right):
        return f"the type of {name} ({type(left).__name__}, {type(right).__name__})"
    if hasattr(left, "__dataclass_fields__"):
        left, right = ({f.name: getattr(side, f.name) for f in fields(side)} for side in (left, right))
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return f"the set of keys of {name}"
        parts = (find_first_difference(left[key], right[key], str(key)) for key in left)
        return next((part for part in parts if part is not None), None)
    if isinstance(left, np.ndarray):
        same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        return None if same else name
    return None if left == right else name


def copy_observation(observation: Observation) -> Observation:
    """Return a copy that the simulator cannot change."""
    return observation.select(range(len(observation)))
