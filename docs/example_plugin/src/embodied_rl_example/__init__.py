"""Plug-ins of another distribution. The entry points export these tables: name → "module:Class"."""

SIMS = {"reacher": "embodied_rl_example.reacher:Reacher"}
POLICIES = {"small_flow": "embodied_rl_example.small_flow:SmallFlow"}
ALGORITHMS = {"reinforce": "embodied_rl_example.reinforce:Reinforce"}
CURRICULA = {"hardest": "embodied_rl_example.hardest:Hardest"}
