"""Reader and writer of openpi's PyTorch checkpoints: model.safetensors, and assets/<asset id>/norm_stats.json.

A checkpoint converted from JAX has a config.json with sizes. A checkpoint of openpi's trainer has metadata.pt, a
pickle, which is never opened. Neither names cameras: openpi has three fixed cameras.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error
from embodied_rl.checkpoints import foreign, unsupported
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics
from embodied_rl.checkpoints.weight_names import CheckpointSource, as_foreign
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
EPSILON = 1e-6
"""`openpi.transforms.Normalize` adds it to deviations, and to the distance of quantiles."""
STATS = "norm_stats.json"
ASSET = "embodied_rl"
"""Asset id of new statistics."""
KNOWN = frozenset(
    {"action_dim", "action_expert_variant", "action_horizon", "dtype", "max_token_len", "paligemma_variant",
     "precision", "pytorch_compile_mode", "vision_heads"}
)  # fmt: skip
"""Keys of config.json that are read, or say what the tensors do, or where and how openpi computes."""


def recognise_folder(folder: Path) -> bool:
    """Return whether a folder holds weights; `detection` tries lerobot's reader first."""
    return any((folder / name).is_file() for name in (foreign.SINGLE, foreign.INDEX, *foreign.PICKLES))


def read_folder(folder: Path, asset: str | None = None) -> FoundCheckpoint:
    """Read the openpi checkpoint folder of one training step, with the statistics of `asset` if there are several.

    Raises:
        CheckpointError: a file is missing or damaged, the asset does not exist, or the weights are of another project.
    """
    config = foreign.parse_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    unsupported.check_openpi(folder, config)
    found = foreign.find_tensors(folder)
    unsupported.check_openpi_tensors(folder, found)
    policy = "pi05" if any(name.endswith("time_mlp_in.weight") and "action" not in name for name in found) else "pi0"
    only = {"pi05": policy == "pi05", "discrete_state_input": (policy == "pi05", None)}
    foreign.check_keys(config, KNOWN, only, str(folder / "config.json"))
    tokenizer = folder / "tokenizer.json"
    return FoundCheckpoint(
        format="openpi",
        folder=folder,
        policy=policy,
        config=config,
        tensors=found,
        statistics=_statistics(folder, asset, "quantiles" if policy == "pi05" else "mean_std"),
        cameras=CAMERAS,
        tokenizer=foreign.read_text(tokenizer) if tokenizer.is_file() else "",
        files=foreign.read_contents(folder, [*folder.glob("*.json"), *folder.glob("assets/**/*.json")]),
    )


def _statistics(folder: Path, asset: str | None, kind: str) -> FoundStatistics:
    files = {
        str(file.parent.relative_to(folder / "assets")): file for file in sorted(folder.glob(f"assets/**/{STATS}"))
    }
    if asset is not None and asset not in files:
        listed = ", ".join(files) or "none"
        raise CheckpointError(
            f"policy.statistics={asset}: no such file, and {folder / 'assets'} has {listed}.", code="statistics-missing"
        )
    if not files:
        return FoundStatistics(None, None, str(folder / "assets"))
    if asset is None and len(files) > 1:
        listed = ", ".join(files)
        problem = f"has statistics of several robots: choose one of {listed} with policy.statistics=<asset>"
        problem += ", or in inspect with embodiment=<asset>."
        return FoundStatistics(None, None, str(folder / "assets"), f"{folder / 'assets'} {problem}")
    return read_statistics(files[asset or next(iter(files))], kind)


def read_statistics(file: Path, kind: str) -> FoundStatistics:
    """Read the statistics of a norm_stats.json; `kind` is "mean_std" for π0, "quantiles" for π0.5.

    Raises:
        CheckpointError: the file is damaged, or lacks a statistic that the kind needs.
    """
    data = foreign.parse_json(file).get("norm_stats")
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        raise damaged_error(f"{file} is damaged: its 'norm_stats' should be a mapping of mappings.")
    return FoundStatistics(
        *(_normalisation(data[name], name, kind, file) if name in data else None for name in ("state", "actions")),
        where=str(file),
    )


def _normalisation(entry: dict[str, Any], name: str, kind: str, file: Path) -> Normalisation:
    first, second = ("mean", "std") if kind == "mean_std" else ("q01", "q99")
    if missing := [key for key in (first, second) if entry.get(key) is None]:
        raise CheckpointError(
            f"{file} has no {missing[0]!r} of {name}, which this policy is normalised with.", code="statistics-missing"
        )
    try:
        a, b = np.asarray(entry[first], np.float64), np.asarray(entry[second], np.float64)
        if kind == "mean_std":
            return Normalisation(kind, tuple(a.tolist()), tuple((b + EPSILON).tolist()))
        return Normalisation.from_bounds(kind, a, b + EPSILON)
    except (ValueError, TypeError) as error:
        raise damaged_error(f"{file}, {name}: {shorten(error)}.") from error


def make_norm_stats(state: Normalisation, action: Normalisation) -> str:
    """Return the text of a norm_stats.json with means and standard deviations, or with quantiles.

    openpi always reads mean and std; with quantiles they are those of a uniform distribution over the range.
    """
    return json.dumps({"norm_stats": {"state": _entry(state), "actions": _entry(action)}}, indent=2)


def _entry(known: Normalisation) -> dict[str, list[float] | None]:
    center, scale = np.asarray(known.center), np.asarray(known.scale)
    if known.kind == "mean_std":
        return {"mean": center.tolist(), "std": (scale - EPSILON).tolist(), "q01": None, "q99": None}
    low, high = center - scale, center + scale - EPSILON
    return {
        "mean": center.tolist(), "std": (scale / 3**0.5).tolist(), "q01": low.tolist(), "q99": high.tolist()
    }  # fmt: skip


def make_files(network: FlowBackbone, robot: Embodiment, policy: str, steps: int) -> dict[str, bytes]:
    """Return the small files for a network that was not imported from this format, as openpi's converter writes them.

    Raises:
        UserError: openpi's format cannot express the statistics.
    """
    config = {
        "action_dim": network.spec.action_dim,
        "action_horizon": network.spec.horizon,
        **as_foreign(network).checkpoint_config("openpi", steps),
    }
    written = {
        "config.json": json.dumps(config, indent=2).encode(),
        f"assets/{ASSET}/{STATS}": _make_statistics(robot, policy),
    }
    return written | ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {})


def keep_files(source: CheckpointSource, robot: Embodiment, policy: str) -> dict[str, bytes]:
    """Return the imported files of a network, with its current statistics if they have changed."""
    files = ({"tokenizer.json": robot.tokenizer.encode()} if robot.tokenizer else {}) | source.files
    if source.holds(robot.state, robot.action):
        return files
    return files | {source.where or f"assets/{ASSET}/{STATS}": _make_statistics(robot, policy)}


def _make_statistics(robot: Embodiment, policy: str) -> bytes:
    kind = "quantiles" if policy == "pi05" else "mean_std"
    for known, name in ((robot.state, "state"), (robot.action, "actions")):
        if known.kind == "identity" and not len(known):
            message = f"openpi needs statistics of the {name}, and the robot has no such entries."
            raise UserError(message, code="export-not-expressible")
    # each kind describes the same affine map
    state, action = (Normalisation(kind, known.center, known.scale) for known in (robot.state, robot.action))
    return make_norm_stats(state, action).encode()
