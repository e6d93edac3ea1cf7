"""The built-in curricula, one per file. The entry point refers to `CURRICULA`: name → class."""

CURRICULA = {
    "uniform": "embodied_rl.curricula.uniform:Uniform",
    "weighted": "embodied_rl.curricula.weighted:Weighted",
    "success_rate": "embodied_rl.curricula.success_rate:SuccessRate",
}
