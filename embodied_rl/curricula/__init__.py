"""What decides which task is drawn, one method a file. `CURRICULA` is what the entry point shows: name → class."""

CURRICULA = {
    "uniform": "embodied_rl.curricula.uniform:Uniform",
    "weighted": "embodied_rl.curricula.weighted:Weighted",
    "success_rate": "embodied_rl.curricula.success_rate:SuccessRate",
}
