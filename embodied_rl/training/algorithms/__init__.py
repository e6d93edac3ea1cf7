"""The learning algorithms, one per file. `ALGORITHMS` is the entry point's table: name → "module:Class"."""

ALGORITHMS = {
    "ppo": "embodied_rl.training.algorithms.ppo:PPO",
    "awr": "embodied_rl.training.algorithms.awr:AWR",
    "dsrl": "embodied_rl.training.algorithms.dsrl:DSRL",
    "filtered": "embodied_rl.training.algorithms.filtered:Filtered",
    "recap": "embodied_rl.training.algorithms.recap:Recap",
    "grpo": "embodied_rl.training.algorithms.grpo:GRPO",
    "nft": "embodied_rl.training.algorithms.nft:NFT",
    "sft": "embodied_rl.training.algorithms.imitation.cloning:SFT",
}
