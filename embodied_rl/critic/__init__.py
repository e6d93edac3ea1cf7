"""The embedded critic: a small network that judges progress through a policy's eyes; its training, and its worth."""

SCORERS = {"embedded": "embodied_rl.critic.scorer:EmbeddedScorer"}
