"""Simulators. `SIMS` is what the entry point shows: name → "module:Class"."""

SIMS = {"tabletop": "embodied_rl_sims.tabletop:Tabletop"}
