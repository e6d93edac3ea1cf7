"""Make the small files of an openpi checkpoint: config.json as openpi's converter writes it, and norm_stats.json."""

import json

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.normalisation import Normalisation
from embodied_rl.checkpoints.openpi import STATS, make_norm_stats
from embodied_rl.checkpoints.weight_names import CheckpointSource, as_foreign
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone

ASSET = "embodied_rl"
"""The asset id of statistics that no openpi checkpoint named."""


def make_files(network: FlowBackbone, robot: Embodiment, policy: str, steps: int) -> dict[str, bytes]:
    """Make the files for a network that was not imported from this format.

    Raises:
        UserError: openpi's format cannot express the statistics.
    """
    config = {
        "action_dim": network.spec.action_dim,
        "action_horizon": network.spec.horizon,
        **as_foreign(network).checkpoint_config("openpi", steps),
    }
    written = {"config.json": json.dumps(config, indent=2).encode(), f"assets/{ASSET}/{STATS}": _stats(robot, policy)}
    return written | ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {})


def keep_files(source: CheckpointSource, robot: Embodiment, policy: str) -> dict[str, bytes]:
    """Return the imported files of a network, with its current statistics if they have changed."""
    files = ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {}) | source.files
    if source.holds(robot.state, robot.action):
        return files
    return files | {source.where or f"assets/{ASSET}/{STATS}": _stats(robot, policy)}


def _stats(robot: Embodiment, policy: str) -> bytes:
    kind = "quantiles" if policy == "pi05" else "mean_std"
    return make_norm_stats(_as(robot.state, kind, "state"), _as(robot.action, kind, "actions")).encode()


def _as(known: Normalisation, kind: str, name: str) -> Normalisation:
    """Return the same affine map as another kind: mean and standard deviation, or two bounds."""
    if known.kind == "identity" and not len(known):
        raise UserError(f"openpi needs statistics of the {name}, and the robot has no such entries.")
    return Normalisation(kind, known.center, known.scale)
