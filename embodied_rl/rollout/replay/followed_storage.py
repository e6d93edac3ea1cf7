"""A replay storage that another process of this machine writes to while this one learns from it.

The files are mapped into memory, so nothing is copied but `row` and `kind`, one number each: what the other process
writes later is not seen, and what it marks as lost later is still read as it was.
"""

from pathlib import Path

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.format import REMEDY, ReplayError, ReplayFormat
from embodied_rl.rollout.replay.replay_files import TEXTS, Texts, make_folder, read_format
from embodied_rl.rollout.replay.ring import Ring
from embodied_rl.rollout.replay.storage import ReplayStorage


class FollowedStorage(ReplayStorage):
    """A storage for reading, empty until `advance`. Open it before the other process writes.

    Raises:
        ReplayError: the folder holds no storage, or one of another version.
    """

    def __init__(self, folder: Path) -> None:
        self._attach(read_format(folder), folder, write=False)
        self._path = folder
        self._written = {name: self._arrays[name] for name in ("row", "kind")}
        self._arrays |= {name: np.zeros(array.shape, array.dtype) for name, array in self._written.items()}
        self._ring = Ring(self.format, self._arrays)

    def advance(self, state: dict[str, Array]) -> None:
        """Show the rows of a `state` of the other process's storage, and none that it writes later.

        They stay as they are until it has written more than the format's `spare` further rows of a track.

        Raises:
            ReplayError: the files lack rows of this state, so they belong to another storage.
        """
        for name, written in self._written.items():
            self._arrays[name][:] = written
        if (self._arrays["row"].max(axis=1) < state["replay/rows"]).any():
            message = f"{self._path} lacks rows that its rollout worker wrote, as if it was replaced. {REMEDY}"
            raise ReplayError(message, code="replay-checkpoint-mismatch")
        self._texts = Texts(self._path / TEXTS, write=False)
        self._ring.rewind(state["replay/rows"], state["replay/lost"])


def follow_storage(layout: ReplayFormat, folder: Path, number: int) -> FollowedStorage:
    """Open the storage of rollout worker `number` in `folder`, and make it if it is missing; see `FollowedStorage`."""
    make_folder(folder / f"collector_{number}", layout)
    return FollowedStorage(folder / f"collector_{number}")
