"""The built-in scorers, one per file. The entry point refers to `SCORERS`: name → class."""

SCORERS = {
    "scripted": "embodied_rl.scorers.scripted:ScriptedScorer",
    "replay": "embodied_rl.scorers.replay:ReplayScorer",
}
