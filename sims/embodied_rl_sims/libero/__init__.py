"""LIBERO, run as in its own evaluation. `Libero` is the class behind the name "libero"."""

from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.libero.simulator import Libero

__all__ = ["Libero", "LiberoConfig"]
