"""ManiSkill 3. `ManiSkill` is the class behind the name "maniskill"."""

from embodied_rl_sims.maniskill.settings import ManiSkillConfig
from embodied_rl_sims.maniskill.simulator import ManiSkill

__all__ = ["ManiSkill", "ManiSkillConfig"]
