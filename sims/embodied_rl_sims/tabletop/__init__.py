"""The embedded tabletop simulator. `Tabletop` is what the engine finds by the name "tabletop"."""

from embodied_rl_sims.tabletop.simulator import Tabletop, TabletopConfig

__all__ = ["Tabletop", "TabletopConfig"]
