"""Simulators. `SIMS` is what the entry point shows: name → "module:Class"."""

SIMS = {
    "tabletop": "embodied_rl_sims.tabletop:Tabletop",
    "libero": "embodied_rl_sims.libero:Libero",
    "gymnasium": "embodied_rl_sims.gymnasium_env:Gymnasium",
    "isaaclab": "embodied_rl_sims.isaac:IsaacLab",
}
