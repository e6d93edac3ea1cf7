"""`embodied-rl export`: write a policy of this library as a checkpoint of lerobot or openpi."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection, export_tensors, lerobot, lerobot_files, openpi_files
from embodied_rl.checkpoints.policy_file import read_metadata
from embodied_rl.checkpoints.tensor_files import SINGLE
from embodied_rl.checkpoints.weight_names import CheckpointSource
from embodied_rl.config import assets, plugins
from embodied_rl.config.schema import ExportConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.learning.checkpoint import explain_failed_writes
from embodied_rl.runs.atomic_write import explain_errors, set_usual_mode
from embodied_rl.runs.untrusted_files import name_file

FULL_PRECISION = {"dtype": "float32", "precision": "float32", "load_vlm_weights": False}
"""What keeps lerobot and openpi from rounding weights to bfloat16 as they load them."""

DENOISE_STEPS = 10
"""Where a policy file does not say: what both projects use."""


def run(config: ExportConfig) -> None:
    """Export a policy file to a checkpoint folder; merge adapters into the weights.

    Raises:
        UserError: the checkpoint does not exist, the format does not support the policy, or `out` is not empty.
    """
    file, out = check_export(config)
    network, robot = build.load_backbone(file)
    metadata = read_metadata(file)
    steps = int(metadata.extra.get("denoise_steps", DENOISE_STEPS))
    if config.dtype == "float32" and network.source is not None:
        widen_source(network.source)
    write_checkpoint(out, network, robot, policy=metadata.policy, form=config.format, steps=steps)
    print(f"{config.format} checkpoint of {metadata.policy} in {out}")
    for note in list_untold(robot, config.format):
        print(f"Not in it, for the format has no place for it: {note}")


def widen_source(source: CheckpointSource) -> None:
    """Let a source be stored in float32: its tensors, and what its configuration says of them."""
    source.dtypes = dict.fromkeys(source.dtypes, torch.float32)
    config = json.loads(source.files.get(lerobot.CONFIG, b"{}"))
    changed = {key: value for key, value in FULL_PRECISION.items() if config.get(key, value) != value}
    if changed:
        source.files[lerobot.CONFIG] = json.dumps(config | changed, indent=4).encode()


def list_untold(robot: Embodiment, form: str) -> Iterator[str]:
    """Yield notes on properties of the policy that the format `form` cannot store."""
    if form == "openpi" and any(source >= 0 for source in robot.relative):
        names = [name for name, source in zip(robot.action_names, robot.relative, strict=True) if source >= 0]
        yield f"actions relative to the state: {', '.join(names)} (openpi's training configuration says that)"
    if robot.gripper != "same":
        yield f"gripper actions of the convention policy.gripper={robot.gripper}"


def check_export(config: ExportConfig) -> tuple[Path, Path]:
    """Check that an export is possible; return the policy file and the output folder.

    Raises:
        UserError: see `run`.
    """
    given = assets.resolve_path(config.checkpoint)
    if (form := detection.detect_format(given)) is not None:
        raise UserError(
            f"checkpoint={given} is a folder of {form}'s: what is exported is a policy file of embodied-rl, which "
            f"knows its robot. Make one with: embodied-rl import policy.checkpoint={given} sim=<simulator>"
        )
    file, out = build.resolve_policy_file(config.checkpoint), Path(config.out or f"{config.format}_checkpoint")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={out} is there already and not empty; give another folder.")
    metadata = read_metadata(file)
    with name_file(file):
        cls = plugins.find_plugin("policies", metadata.policy)
    if not issubclass(cls, ForeignCheckpoint):
        raise UserError(
            f"{file} holds policy {metadata.policy!r}, which {config.format} does not know; it goes on with "
            "embodied-rl alone."
        )
    return file, out


def write_checkpoint(
    out: Path, network: FlowBackbone, robot: Embodiment, *, policy: str, form: str, steps: int
) -> None:
    """Write a network and its embodiment as a checkpoint folder of the format `form`."""
    tensors = export_tensors.name_tensors(network, form)
    contents = _files(network, robot, policy, form, steps)
    with explain_errors(out, "out"):
        out.mkdir(parents=True, exist_ok=True)
        partial = out / f".tmp-{SINGLE}-{os.getpid()}"
        with explain_failed_writes(partial):
            save_file(tensors, partial, export_tensors.make_header(network, tensors, form))
        for name, content in contents.items():
            lerobot_files.make_folder_of(name, out).write_bytes(content)
        set_usual_mode(partial)
        partial.replace(out / SINGLE)  # last: a folder with weights is complete


def _files(network: FlowBackbone, robot: Embodiment, policy: str, form: str, steps: int) -> dict[str, bytes]:
    source = network.source
    if source is None or source.format != form:
        files = lerobot_files if form == "lerobot" else openpi_files
        return files.make_files(network, robot, policy, steps)
    if form == "lerobot":
        return lerobot_files.keep_files(network, source, robot, policy, steps)
    return openpi_files.keep_files(source, robot, policy)
