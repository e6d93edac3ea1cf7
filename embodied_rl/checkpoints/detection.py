"""Detection of the project that stored a checkpoint, and its reader."""

from pathlib import Path

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.checkpoints import gr00t, lerobot, openpi, openvla
from embodied_rl.checkpoints.foreign import FoundCheckpoint
from embodied_rl.checkpoints.weight_names import explain_damage
from embodied_rl.runs import other_files

READERS = {"lerobot": lerobot, "gr00t": gr00t, "openvla": openvla, "openpi": openpi}
"""In the order of detection: a folder with lerobot's configuration is lerobot's, and openpi's folders are recognised by
their weights alone."""


def detect_format(path: Path) -> str | None:
    """Return the name of a folder's checkpoint format, or None if no reader recognises the folder."""
    if not path.is_dir():
        return None
    return next((name for name, reader in READERS.items() if reader.recognise_folder(path)), None)


def read_checkpoint(path: Path, asset: str | None = None) -> FoundCheckpoint:
    """Read a checkpoint folder of another project; `detect_format` must know its format.

    `asset` is the id of the robot to use, if the checkpoint has several robots, or statistics of several.

    Raises:
        CheckpointError: something is missing, damaged or ambiguous; the message gives a remedy.
    """
    name = detect_format(path)
    assert name is not None, "call `detect_format` first"
    if (adapters := other_files.explain_adapters(path)) is not None:
        raise CheckpointError(adapters, code="checkpoint-adapters-only")
    with explain_damage(path):
        return READERS[name].read_folder(path, asset)
