"""How tests of LIBERO run something in its environment."""

from collections.abc import Callable
from typing import Any

from embodied_rl.interfaces.sim import Array

Call = tuple[str, dict[str, Any]]
"""A function of tests/sims/libero/inside.py and its arguments."""

Run = Callable[..., list[dict[str, Array]]]
