"""MetaWorld's fifty tasks of a Sawyer arm. `MetaWorld` is the class behind the name "metaworld"."""

from embodied_rl_sims.metaworld.settings import MetaWorldConfig
from embodied_rl_sims.metaworld.simulator import MetaWorld

__all__ = ["MetaWorld", "MetaWorldConfig"]
