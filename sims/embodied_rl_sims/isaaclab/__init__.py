"""Isaac Lab 3's environments. `IsaacLab` is the class behind the name "isaaclab"."""

from embodied_rl_sims.isaaclab.settings import IsaacLabConfig
from embodied_rl_sims.isaaclab.simulator import IsaacLab

__all__ = ["IsaacLab", "IsaacLabConfig"]
