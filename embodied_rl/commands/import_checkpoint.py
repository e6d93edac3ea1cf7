"""`embodied-rl import`: attach another project's checkpoint to a simulator, and write it as a policy file.

`train` and `sft` also read such checkpoints directly; commands that only run a policy (`eval`, `play`, `collect`) need
the policy file.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.assembly import build
from embodied_rl.checkpoints import detection
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.config import assets
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import other_files
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import ImportConfig


def run(config: ImportConfig) -> None:
    """Attach the checkpoint to the simulator, write the policy file, and print its path.

    Raises:
        UserError: the checkpoint does not exist, or does not fit the simulator; the message names the key to set.
    """
    path, out = check_import(config)
    kind = SimulatorKind.find(config.sim)
    network, embodiment = build.build_backbone(config.policy, kind.spec)
    origin = {"name": config.sim.name, **config.sim.options}
    extra: dict[str, Any] = {"sim": origin, "control_hz": kind.spec.control_hz}
    found = detection.read_checkpoint(path)
    if found.denoise_steps is not None:
        extra["denoise_steps"] = found.denoise_steps
    save_backbone(out, network, embodiment, config.policy.name, asdict(network.config), extra=extra)
    print(f"{found.format} checkpoint of {config.policy.name}, attached to {config.sim.name}: {out}")
    print(f"Evaluate it: embodied-rl eval policy={out}")


def check_start(config: ImportConfig) -> list[tuple[str, str]]:
    """Check the configured paths; return what is read and written, as rows of text."""
    path, out = check_import(config)
    return [("checkpoint", str(path)), ("out", str(out))]


def check_import(config: ImportConfig) -> tuple[Path, Path]:
    """Check the configured paths; return the checkpoint folder and the policy file to write.

    Raises:
        UserError: no folder was given, it is not a checkpoint of another project, `out` exists or is not the name of a
            policy file, or a setting belongs to `train`.
    """
    if config.policy.delay:
        raise UserError(
            f"policy.delay={config.policy.delay} is a setting of `train`; a file stores the delay that its policy was "
            f"trained with. Leave it out; `eval delay={config.policy.delay}` measures under a delay.",
            code="key-unused",
        )
    if config.policy.checkpoint is None:
        raise UserError(
            "policy.checkpoint is missing. Add policy.checkpoint=<folder of lerobot's, openpi's or OpenVLA's>.",
            code="key-missing",
        )
    path = assets.resolve_path(config.policy.checkpoint)
    if detection.detect_format(path) is None:
        known = f"policy.checkpoint={path} is not a checkpoint folder of {' or '.join(detection.READERS)}."
        raise UserError(other_files.explain_path(path) or known, code="checkpoint-format-unknown")
    out = Path(config.out)
    if out.suffix != ".safetensors":
        raise UserError(
            f"out={out} should be the name of a policy file: its name ends in .safetensors.", code="output-name-invalid"
        )
    if out.exists():
        other = out.with_name(f"{config.policy.name}_{config.sim.name}.safetensors")
        remedy = f"such as out={other}" if not other.exists() else "or remove that one"
        raise UserError(f"out={out} is there already; give another file, {remedy}.", code="output-exists")
    return path, out
