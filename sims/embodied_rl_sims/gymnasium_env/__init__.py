"""Any Gymnasium environment with continuous actions. `Gymnasium` is what the engine finds by the name "gymnasium"."""

from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.simulator import Gymnasium

__all__ = ["Gymnasium", "GymnasiumConfig"]
