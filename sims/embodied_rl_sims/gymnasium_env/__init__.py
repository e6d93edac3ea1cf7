"""Gymnasium environments with continuous actions. `Gymnasium` is the class behind the name "gymnasium"."""

from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.simulator import Gymnasium

__all__ = ["Gymnasium", "GymnasiumConfig"]
