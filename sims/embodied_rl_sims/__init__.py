"""Simulators. `SIMS` is what the entry point shows: name → "module:Class"."""

SIMS = {
    "tabletop": "embodied_rl_sims.tabletop:Tabletop",
    "tabletop_warp": "embodied_rl_sims.tabletop_warp:TabletopWarp",
}
