"""The tabletop on `mujoco_warp`: the same scenes, tasks and pictures; one device steps all environments."""

from embodied_rl_sims.tabletop_warp.simulator import TabletopWarp, TabletopWarpConfig

__all__ = ["TabletopWarp", "TabletopWarpConfig"]
