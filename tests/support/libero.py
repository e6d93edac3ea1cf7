"""How tests of LIBERO run something in its environment."""

from collections.abc import Callable

from embodied_rl.interfaces.sim import Array

Run = Callable[..., list[dict[str, Array]]]
