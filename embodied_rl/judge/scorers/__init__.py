"""The built-in scorers. The entry point refers to `SCORERS`: name → class."""

SCORERS = {
    "vlm": "embodied_rl.judge.scorers.vlm:VlmScorer",
    "clip": "embodied_rl.judge.scorers.clip:ClipScorer",
    "clip_action": "embodied_rl.judge.scorers.clip:ClipActionScorer",
    "robometer": "embodied_rl.judge.scorers.robometer:RobometerScorer",
    "scripted": "embodied_rl.judge.scorers.scripted:ScriptedScorer",
    "replay": "embodied_rl.judge.scorers.score_log:ReplayScorer",
}
