"""What a policy server serves, made of a policy file; and the newest file of a run that trains."""

import hashlib
import re
from pathlib import Path

from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.assembly.loaded import load_policy
from embodied_rl.config import assets
from embodied_rl.deployment.policy_server.served import ServedWeights
from embodied_rl.interfaces.errors import UserError

_STEP = re.compile(r"\d{8,}")


def weigh_policy(file: Path, device: str = "cpu") -> ServedWeights:
    """Load a policy file for a server. Its version is the iteration of its checkpoint; 0 outside of a run.

    Raises:
        UserError: the file is damaged, or of a policy that is not installed.
    """
    loaded = load_policy(str(file), device=device)
    version = int(file.parent.name) if _STEP.fullmatch(file.parent.name) else 0
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return ServedWeights(loaded.actor, loaded.spec, version, {"policy": loaded.metadata.policy, "sha256": digest})


def find_newest_file(run: str) -> Path:
    """Return the newest policy file of a run.

    Raises:
        UserError: it is no run folder, or has no checkpoint yet.
    """
    folder = assets.resolve_path(run) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"follow=true: {run} is no run folder. Give one below run.root, or leave follow out.")
    try:
        return checkpoint.resolve_checkpoint(folder / "last") / build.POLICY
    except CheckpointError:
        raise UserError(f"follow=true: {run} has no checkpoint yet; checkpoint.every says when it gets one.") from None
