"""`embodied-rl export`: a policy of ours as a checkpoint of lerobot's or openpi's, for who loads it there."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.assembly import build
from embodied_rl.checkpoints import finding, lerobot_files, openpi_files, weights
from embodied_rl.checkpoints.native import read_metadata
from embodied_rl.checkpoints.tensors import SINGLE
from embodied_rl.config import assets, plugins
from embodied_rl.config.schema import ExportConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.learning.checkpoint import failed_writes
from embodied_rl.runs.storage import explained

DENOISE_STEPS = 10
"""Where a policy file does not say: what both projects use."""


def run(config: ExportConfig) -> None:
    """Write the folder; adapters become part of the weights they adapt.

    Raises:
        UserError: no such checkpoint, a policy without such a format, or a folder that is not empty.
    """
    file, out = check(config)
    network, robot = build.stored_backbone(file)
    metadata = read_metadata(file)
    steps = int(metadata.extra.get("denoise_steps", DENOISE_STEPS))
    if config.dtype == "float32" and network.source is not None:
        network.source.dtypes = dict.fromkeys(network.source.dtypes, torch.float32)
    write(out, network, robot, policy=metadata.policy, form=config.format, steps=steps)
    print(f"{config.format} checkpoint of {metadata.policy} in {out}")
    for note in untold(robot, config.format):
        print(f"Not in it, for the format has no place for it: {note}")


def untold(robot: Embodiment, form: str) -> Iterator[str]:
    """What the policy is used with here that a folder of `form` does not say."""
    if form == "openpi" and any(source >= 0 for source in robot.relative):
        names = [name for name, source in zip(robot.action_names, robot.relative, strict=True) if source >= 0]
        yield f"actions relative to the state: {', '.join(names)} (openpi's training configuration says that)"
    if robot.gripper != "same":
        yield f"gripper actions of the convention policy.gripper={robot.gripper}"


def check(config: ExportConfig) -> tuple[Path, Path]:
    """The policy file, and the folder it goes to.

    Raises:
        UserError: see `run`.
    """
    given = assets.resolve(config.checkpoint)
    if (form := finding.of(given)) is not None:
        raise UserError(
            f"checkpoint={given} is a folder of {form}'s: what is exported is a policy file of embodied-rl, which "
            f"knows its robot. Make one with: embodied-rl import policy.checkpoint={given} sim=<simulator>"
        )
    file, out = build.policy_file(config.checkpoint), Path(config.out or f"{config.format}_checkpoint")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={out} is there already and not empty; give another folder.")
    metadata = read_metadata(file)
    if not issubclass(plugins.find("policies", metadata.policy), ForeignCheckpoint):
        raise UserError(
            f"{file} holds policy {metadata.policy!r}, which {config.format} does not know; it goes on with "
            "embodied-rl alone."
        )
    return file, out


def write(out: Path, network: FlowBackbone, robot: Embodiment, *, policy: str, form: str, steps: int) -> None:
    """Write a network and what it is attached to as a checkpoint folder of `form`."""
    tensors = weights.named(network, form)
    contents = _files(network, robot, policy, form, steps)
    with explained(out, "out"):
        out.mkdir(parents=True, exist_ok=True)
        partial = out / f".tmp-{SINGLE}-{os.getpid()}"
        with failed_writes(partial):
            save_file(tensors, partial, weights.header(network, tensors, form))
        for name, content in contents.items():
            lerobot_files.folder_of(name, out).write_bytes(content)
        partial.replace(out / SINGLE)  # last: a folder with weights is whole


def _files(network: FlowBackbone, robot: Embodiment, policy: str, form: str, steps: int) -> dict[str, bytes]:
    source = network.source
    if source is None or source.format != form:
        files = lerobot_files if form == "lerobot" else openpi_files
        return files.made(network, robot, policy, steps)
    if form == "lerobot":
        return lerobot_files.kept(network, source, robot, policy, steps)
    return openpi_files.kept(source, robot, policy)
