"""The embedded tabletop simulator. `Tabletop` is the class behind the name "tabletop"."""

from embodied_rl_sims.tabletop.settings import TabletopConfig
from embodied_rl_sims.tabletop.simulator import Tabletop

__all__ = ["Tabletop", "TabletopConfig"]
