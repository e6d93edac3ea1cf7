"""Isaac Lab's environments. `IsaacLab` is the class behind the name "isaaclab".

Experimental: written against Isaac Lab 2.3.2's source and tested with a stand-in; not yet run on Isaac Sim.
"""

from embodied_rl_sims.isaac.settings import IsaacLabConfig
from embodied_rl_sims.isaac.simulator import IsaacLab

__all__ = ["IsaacLab", "IsaacLabConfig"]
