"""Embodiment of a checkpoint in a simulator, from its statistics and views. A mismatch is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import lerobot, openpi, openvla
from embodied_rl.checkpoints.foreign import FoundCheckpoint, FoundStatistics, parse_json
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.system.untrusted_files import shorten

KINDS = {"STATE": lerobot.STATE, "ACTION": lerobot.ACTION}


def match_views(found: FoundCheckpoint, spec: SimulatorSpec, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the simulator camera for each view of the policy, without the views that stay empty.

    `given` is `policy.cameras`, view → camera, or null for a view that stays empty.

    Raises:
        UserError: a view has no camera, or a view or camera name is unknown; the message names the key to set.
    """
    cameras = [camera.name for camera in spec.cameras if camera.role == "policy"]
    known = f"The policy sees {', '.join(found.cameras)}; the simulator shows {', '.join(cameras) or 'nothing'}."
    for view, camera in given.items():
        if view not in found.cameras:
            raise UserError(f"policy.cameras: the policy has no view {view!r}. {known}", code="view-unknown")
        if camera is not None and camera not in cameras:
            raise UserError(
                f"policy.cameras.{view}={camera}: the simulator has no such camera. {known}", code="camera-unknown"
            )
    chosen = {view: given.get(view, view if view in cameras else None) for view in found.cameras}
    undecided = [view for view in found.cameras if view not in given and view not in cameras]
    if undecided:
        free = [camera for camera in cameras if camera not in chosen.values()]
        guess = {view: chosen[view] or (free.pop(0) if free else "null") for view in found.cameras}
        typed = ", ".join(f"{view}: {camera}" for view, camera in guess.items())
        raise UserError(
            f"{known} Assign cameras (null for a view that stays empty), such as policy.cameras='{{{typed}}}'.",
            code="views-undecided",
        )
    seen = {view: camera for view, camera in chosen.items() if camera is not None}
    if not seen:
        raise UserError(f"policy.cameras leaves the policy without any view. {known}", code="views-all-empty")
    return seen


def choose_statistics(
    found: FoundCheckpoint, spec: SimulatorSpec, file: str | None
) -> tuple[Normalisation, Normalisation]:
    """Return the normalisation of state and action, from the checkpoint or from a file.

    `file`: a norm_stats.json, a LeRobotDataset's folder or its meta/stats.json, or for OpenVLA a
    dataset_statistics.json; None for the checkpoint's own.

    Raises:
        UserError: no statistics are found, or they belong to another embodiment.
    """
    known = found.statistics if file is None else _read_statistics(Path(file), found)
    entries = len(spec.state_names)
    state = known.state if found.reads_state else Normalisation.identity(entries)
    return (
        _check_size(state, "state", entries, known.where, known.problem),
        _check_size(known.action, "action", len(spec.action_names), known.where, known.problem),
    )


def make_embodiment(
    found: FoundCheckpoint,
    spec: SimulatorSpec,
    seen: Mapping[str, str],
    known: tuple[Normalisation, Normalisation],
    *,
    horizon: int,
    token_length: int,
    tokenizer: str | None,
) -> Embodiment:
    """Return the embodiment that attaches a checkpoint to a simulator; `tokenizer` is None if it reads no words.

    Raises:
        UserError: the checkpoint has no tokenizer, or the cameras have different sizes.
    """
    if tokenizer == "":
        raise UserError(
            f"{found.folder} has no tokenizer.json: give policy.tokenizer=<file or folder>, that of the language "
            "model the policy was made from.",
            code="tokenizer-missing",
        )
    cameras = {camera.name: camera for camera in spec.cameras}
    spec = replace(spec, cameras=tuple(cameras[name] for name in seen.values()))
    plain = Embodiment.of_simulator(spec, min(found.executed or horizon, horizon), token_length)
    entries = range(len(plain.action_names))
    names = found.action_names if len(found.action_names) == len(entries) else plain.action_names
    absolute = [any(part.lower() in name.lower() for part in found.exceptions) for name in names]
    relative = tuple(-1 if absolute[entry] else entry for entry in entries) if found.relative else ()
    attached = replace(
        plain, views=tuple(seen), state=known[0], action=known[1], relative=relative, clipped=found.clipped
    )
    return attached if tokenizer is None else replace(attached, tokenizer=tokenizer, vocabulary=())


def find_relative(spec: SimulatorSpec, names: Sequence[str]) -> tuple[int, ...]:
    """Return `Embodiment.relative` for named actions, each relative to the state entry at the same position.

    Raises:
        UserError: the simulator has no such action, or the state has no entry at the action's position.
    """
    for name in names:
        if name not in spec.action_names:
            raise UserError(
                f"policy.relative: the simulator has no action '{name}'.{suggest_name(name, spec.action_names)}",
                code="action-unknown",
            )
        if (entry := spec.action_names.index(name)) >= len(spec.state_names):
            raise UserError(
                f"policy.relative: '{name}' is action {entry}, and the simulator's state has "
                f"{len(spec.state_names)} entries: it cannot be relative to one of them.",
                code="action-without-state",
            )
    return tuple(entry if name in names else -1 for entry, name in enumerate(spec.action_names)) if names else ()


def _read_statistics(path: Path, found: FoundCheckpoint) -> FoundStatistics:
    if found.format == "openvla":
        return openvla.read_statistics(path, reads_state=found.reads_state)
    kind = "quantiles" if _mode(found, "ACTION") == "QUANTILES" else "mean_std"
    file = next((place for place in (path / "meta/stats.json", path / openpi.STATS, path) if place.is_file()), None)
    if file is None:
        raise UserError(
            f"policy.statistics={path} has no statistics; give a LeRobotDataset or a norm_stats.json.",
            code="statistics-missing",
        )
    if "norm_stats" in parse_json(file):
        return openpi.read_statistics(file, kind)
    try:
        values = {
            f"{feature}.{name}": torch.tensor(value, dtype=torch.float64)
            for feature, entries in parse_json(file).items()
            if feature in KINDS.values()
            for name, value in entries.items()
        }
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise CheckpointError(f"{file} is damaged: {shorten(error)}.", code="statistics-damaged") from error
    both = (lerobot.read_normalisation(values, name, _mode(found, key), 1e-8, file) for key, name in KINDS.items())
    return FoundStatistics(*both, where=str(file))


def _mode(found: FoundCheckpoint, key: str) -> str:
    """Return lerobot's name of the normalisation mode of a feature."""
    default = "QUANTILES" if found.policy == "pi05" else "MEAN_STD"
    return str(found.config.get("normalization_mapping", {}).get(key, default))


def _check_size(known: Normalisation | None, name: str, entries: int, where: str, problem: str) -> Normalisation:
    if known is None:
        raise CheckpointError(
            problem
            or f"{where} has no statistics of the {name}, and without them the policy would act in wrong units: give "
            "policy.statistics=<LeRobotDataset folder, or norm_stats.json>.",
            code="statistics-missing",
        )
    known = known.unpadded(entries)
    if len(known) != entries:
        raise CheckpointError(
            f"{where} holds statistics of {len(known)} {name} entries, the simulator has {entries}: choose the "
            "simulator's settings that the policy was trained with, or give policy.statistics=<of this robot>.",
            code="statistics-size-mismatch",
        )
    return known
