"""Writer of the small files of a GR00T's folder: those it was imported with, and what a run changed in them."""

import json
from typing import Any

import numpy as np

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.checkpoints import gr00t_lerobot, lerobot
from embodied_rl.checkpoints.gr00t import CONFIG, PROCESSOR, STATISTICS
from embodied_rl.checkpoints.weight_names import CheckpointSource
from embodied_rl.interfaces.errors import UserError

STEPS, EXECUTED = "num_inference_timesteps", "n_action_steps"
DEFAULT_STEPS = 4
"""Of Isaac-GR00T and of lerobot."""


def keep_files(source: CheckpointSource, robot: Embodiment, steps: int, tag: str) -> dict[str, bytes]:
    """Return the imported files of a network, with its current statistics and numbers of denoise steps and actions.

    `tag` is the robot's, in these files.

    Raises:
        UserError: the statistics have changed, and the files cannot hold the current ones.
    """
    config = json.loads(source.files[CONFIG])
    changed: dict[str, Any] = {STEPS: steps} if (config.get(STEPS) or DEFAULT_STEPS) != steps else {}
    if source.format == "lerobot" and config.get(EXECUTED) != robot.executed:
        changed[EXECUTED] = robot.executed
    files = source.files | ({CONFIG: json.dumps(config | changed, indent=2).encode()} if changed else {})
    if source.holds(robot.state, robot.action):
        return files
    return files | _write_statistics(source, robot, tag)


def read_gripper(source: CheckpointSource) -> str:
    """Return the convention of gripper actions in the imported files; only lerobot's can hold another than "same"."""
    steps = json.loads(source.files.get(lerobot.AFTER, b"{}")).get("steps", [])
    found = (gr00t_lerobot.read_gripper(step.get("config") or {}) for step in steps)
    return next((convention for convention in found if convention != "same"), "same")


def _write_statistics(source: CheckpointSource, robot: Embodiment, tag: str) -> dict[str, bytes]:
    """Return statistics.json with the bounds of the current statistics for the robot that the network was made for."""
    home = source.where.removesuffix(STATISTICS)
    kinds = {known.kind for known in (robot.state, robot.action, source.state, source.action) if known is not None}
    if source.format != "gr00t" or len(kinds) != 1 or not kinds <= {"quantiles", "min_max"}:
        raise UserError(
            "The policy's statistics are not those of the checkpoint it came from, and the files of a GR00T in "
            f"{source.format}'s format cannot be given the current ones: import it with its own statistics.",
            code="export-not-expressible",
        )
    robots = json.loads(source.files[home + PROCESSOR])["processor_kwargs"]["modality_configs"]
    known = json.loads(source.files[source.where])
    names = ("q01", "q99") if kinds == {"quantiles"} else ("min", "max")
    for kind, normal in (("state", robot.state), ("action", robot.action)):
        center, scale, start = np.asarray(normal.center), np.asarray(normal.scale), 0
        for group in robots[tag][kind]["modality_keys"]:
            entry = known[tag][kind][group]
            part = slice(start, start := start + len(entry[names[0]]))
            entry |= dict(zip(names, ((center - scale)[part].tolist(), (center + scale)[part].tolist()), strict=True))
    return {source.where: json.dumps(known, indent=2).encode()}
