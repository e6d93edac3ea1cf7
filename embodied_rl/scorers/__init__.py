"""The built-in scorers, one per file. The entry point refers to `SCORERS`: name → class."""

SCORERS = {
    "vlm": "embodied_rl.scorers.vlm:VlmScorer",
    "embedded": "embodied_rl.critic.scorer:EmbeddedScorer",
    "clip": "embodied_rl.scorers.clip:ClipScorer",
    "clip_action": "embodied_rl.scorers.clip_action:ClipActionScorer",
    "robometer": "embodied_rl.scorers.robometer:RobometerScorer",
    "scripted": "embodied_rl.scorers.scripted:ScriptedScorer",
    "replay": "embodied_rl.scorers.replay:ReplayScorer",
}
