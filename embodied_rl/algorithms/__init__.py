"""The learning algorithms, one per file. `ALGORITHMS` is the entry point's table: name → "module:Class"."""

ALGORITHMS = {
    "ppo": "embodied_rl.algorithms.ppo:PPO",
    "grpo": "embodied_rl.algorithms.grpo:GRPO",
    "sft": "embodied_rl.imitation.cloning:SFT",
}
