"""Which project stored a checkpoint."""

from pathlib import Path

from embodied_rl.checkpoints import lerobot, openpi
from embodied_rl.checkpoints.foreign import Foreign

READERS = {"lerobot": lerobot, "openpi": openpi}
"""In the order they are asked: what has lerobot's configuration is lerobot's."""


def of(path: Path) -> str | None:
    """The format of a folder, or None where it is none of another project."""
    if not path.is_dir():
        return None
    return next((name for name, reader in READERS.items() if reader.recognises(path)), None)


def read(path: Path, asset: str | None = None) -> Foreign:
    """A checkpoint folder of another project.

    Args:
        path: the folder; `of` knows its format.
        asset: whose statistics to take, where it has those of several robots.

    Raises:
        CheckpointError: something is missing, damaged or ambiguous, and what to do.
    """
    name = of(path)
    assert name is not None, "ask `of` first"
    return READERS[name].read(path, asset)
