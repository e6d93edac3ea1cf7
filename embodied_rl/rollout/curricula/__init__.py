"""The built-in curricula, one per file. The entry point refers to `CURRICULA`: name → class."""

CURRICULA = {
    "uniform": "embodied_rl.rollout.curricula.uniform:Uniform",
    "weighted": "embodied_rl.rollout.curricula.weighted:Weighted",
    "success_rate": "embodied_rl.rollout.curricula.success_rate:SuccessRate",
}
