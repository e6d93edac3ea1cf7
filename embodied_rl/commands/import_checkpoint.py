"""`embodied-rl import`: attach another project's checkpoint to a simulator, and write it as a policy file.

`train` and `sft` also read such checkpoints directly; commands that only run a policy (`eval`, `play`, `collect`) need
the policy file.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection, other_files
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.config import assets
from embodied_rl.config.schema import ImportConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.simulators.kind import SimulatorKind


def run(config: ImportConfig) -> None:
    """Attach the checkpoint to the simulator, write the policy file, and print its path.

    Raises:
        UserError: the checkpoint does not exist, or does not fit the simulator; the message names the key to set.
    """
    path, out = check_import(config), Path(config.out)
    kind = SimulatorKind.find(config.sim)
    network, embodiment = build.build_backbone(config.policy, kind.spec)
    extra: dict[str, Any] = {"sim": {"name": config.sim.name, **config.sim.options}}
    found = detection.read_checkpoint(path)
    if found.denoise_steps is not None:
        extra["denoise_steps"] = found.denoise_steps
    save_backbone(out, network, embodiment, config.policy.name, asdict(network.config), extra=extra)
    print(f"{found.format} checkpoint of {config.policy.name}, attached to {config.sim.name}: {out}")
    print(f"Evaluate it: embodied-rl eval policy={out}")


def check_import(config: ImportConfig) -> Path:
    """Check the configured checkpoint folder, and return its path.

    Raises:
        UserError: no folder was given, or it is no checkpoint of another project.
    """
    if config.policy.checkpoint is None:
        raise UserError("policy.checkpoint is missing. Add policy.checkpoint=<folder of lerobot's or openpi's>.")
    path = assets.resolve_path(config.policy.checkpoint)
    if detection.detect_format(path) is None:
        known = f"policy.checkpoint={path} is no checkpoint folder of {' or '.join(detection.READERS)}."
        raise UserError(other_files.explain_path(path) or known)
    return path
