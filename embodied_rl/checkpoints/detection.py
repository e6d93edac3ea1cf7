"""Which project stored a checkpoint."""

from pathlib import Path

from embodied_rl.checkpoints import lerobot, openpi
from embodied_rl.checkpoints.foreign import FoundCheckpoint

READERS = {"lerobot": lerobot, "openpi": openpi}
"""In the order they are asked: what has lerobot's configuration is lerobot's."""


def detect_format(path: Path) -> str | None:
    """The format of a folder, or None where it is none of another project."""
    if not path.is_dir():
        return None
    return next((name for name, reader in READERS.items() if reader.recognise_folder(path)), None)


def read_checkpoint(path: Path, asset: str | None = None) -> FoundCheckpoint:
    """A checkpoint folder of another project.

    Args:
        path: the folder; `detect_format` knows its format.
        asset: whose statistics to take, where it has those of several robots.

    Raises:
        CheckpointError: something is missing, damaged or ambiguous, and what to do.
    """
    name = detect_format(path)
    assert name is not None, "ask `detect_format` first"
    return READERS[name].read_folder(path, asset)
