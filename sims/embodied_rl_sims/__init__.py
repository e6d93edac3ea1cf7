"""Built-in simulators. The entry point exports `SIMS`: name → "module:Class"."""

SIMS = {
    "tabletop": "embodied_rl_sims.tabletop:Tabletop",
    "tabletop_warp": "embodied_rl_sims.tabletop_warp:TabletopWarp",
    "libero": "embodied_rl_sims.libero:Libero",
    "gymnasium": "embodied_rl_sims.gymnasium_env:Gymnasium",
    "isaaclab": "embodied_rl_sims.isaaclab:IsaacLab",
    "maniskill": "embodied_rl_sims.maniskill:ManiSkill",
    "vla_eval": "embodied_rl_sims.vla_eval:VlaEval",
    "metaworld": "embodied_rl_sims.metaworld:MetaWorld",
}
