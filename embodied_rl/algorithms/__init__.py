"""One method a file. `ALGORITHMS` is what the entry point shows: name → "module:Class"."""

ALGORITHMS = {
    "ppo": "embodied_rl.algorithms.ppo:PPO",
    "grpo": "embodied_rl.algorithms.grpo:GRPO",
    "sft": "embodied_rl.imitation.cloning:SFT",
}
