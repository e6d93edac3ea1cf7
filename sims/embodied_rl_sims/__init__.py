"""Simulators. `SIMS` is what the entry point shows: name → "module:Class"."""

SIMS = {
    "gymnasium": "embodied_rl_sims.gymnasium_env:Gymnasium",
    "tabletop": "embodied_rl_sims.tabletop:Tabletop",
}
