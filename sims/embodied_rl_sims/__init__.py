"""Simulators. `SIMS` is what the entry point shows: name → "module:Class"."""

SIMS = {
    "maniskill": "embodied_rl_sims.maniskill:ManiSkill",
    "tabletop": "embodied_rl_sims.tabletop:Tabletop",
}
