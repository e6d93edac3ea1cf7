"""LIBERO, as its own evaluation runs it. `Libero` is what the engine finds by the name "libero"."""

from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.libero.simulator import Libero

__all__ = ["Libero", "LiberoConfig"]
