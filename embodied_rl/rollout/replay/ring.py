"""Rings of a replay storage: the slot of each row, the rows that can be sampled, and the successor of each row.

A row has a number in its track, 0 for the first one ever; it lies in slot number mod slots. The field `row` holds
number + 1, and 0 while the slot holds no complete row. It is cleared before a slot is changed and set after everything
else, so that the rings stay valid when a process ends between any two stores.
"""

import logging

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.format import FieldKind, ReplayError, ReplayFormat

log = logging.getLogger(__name__)

Values = dict[str, Array | int]

_SAME = {"episode": 0, "seed": 0, "decision": 1}
"""Fields of a row → by how much larger they are in the row that follows it."""


class Ring:
    """The rings of all tracks, `arrays` [tracks, slots, ...] by field. `tracks`, `numbers`, int64 [n], identify rows.

    Attributes:
        count: int64 [tracks], number of rows that a track ever had.
        ready: bool [tracks, slots], the rows that are complete, not too old, and have a known successor or need no
            successor.

    Raises:
        ReplayError: a row is in another row's place.
    """

    def __init__(self, layout: ReplayFormat, arrays: dict[str, Array]):
        self.format, self.arrays = layout, arrays
        rows = np.asarray(arrays["row"])
        if ((rows - 1 - np.arange(layout.slots)) % layout.slots)[rows != 0].any() or rows.min() < 0:
            message = "replay: rows are not where they belong; the storage is damaged and cannot be used"
            raise ReplayError(message, code="replay-damaged")
        self.count = rows.max(axis=1).astype(np.int64)
        self.ready = np.zeros(rows.shape, bool)
        self._usable: Array | None = None
        self._refresh_all()

    def usable(self) -> Array:
        """Return the index track × slots + slot of every row that is ready, int64, ascending."""
        if self._usable is None:
            self._usable = np.flatnonzero(self.ready)
        return self._usable

    def slots(self, numbers: Array) -> Array:
        """Return the slots of rows."""
        return numbers % self.format.slots

    def last(self, tracks: Array) -> tuple[Array, Array]:
        """Return an index of the newest row of each track, for any field's array."""
        return tracks, self.slots(self.count[tracks] - 1)

    def append(self, tracks: Array, numbers: Array, kind: FieldKind, values: Values) -> None:
        """Write new rows; fields that `values` leaves out become zero."""
        where = tracks, self.slots(numbers)
        self.arrays["row"][where] = 0
        for name, array in self.arrays.items():
            if name not in ("row", "kind"):
                array[where] = values.get(name, 0)
        self.arrays["kind"][where] = kind
        self.arrays["row"][where] = numbers + 1
        np.maximum.at(self.count, tracks, numbers + 1)
        self._refresh(tracks, numbers)

    def complete(self, tracks: Array, numbers: Array, values: Values) -> None:
        """Add the results of their decisions to rows."""
        where = tracks, self.slots(numbers)
        assert (self.arrays["kind"][where] == FieldKind.DECIDED).all(), "a result without a decision"
        for name, array in values.items():
            self.arrays[name][where] = array
        self.arrays["kind"][where] = FieldKind.COMPLETE
        self._refresh(tracks, numbers)

    def lose(self, track: int) -> None:
        """Mark all rows of the running episode of a track, if there is one, as lost."""
        numbers = self._running(track)
        tracks = np.full(len(numbers), track)
        self.arrays["kind"][tracks, self.slots(numbers)] = FieldKind.LOST
        self._refresh(tracks, numbers)

    def find_lost(self) -> Array:
        """Return whether the newest row of each track is lost, bool [tracks]."""
        tracks = np.arange(self.format.tracks)
        return (self.count > 0) & (self.arrays["kind"][self.last(tracks)] == FieldKind.LOST)

    def rewind(self, count: Array, lost: Array) -> None:
        """Remove the rows that came after the first `count` (int64 [tracks]) of each track.

        Rows that were lost since, because their episode's worker died later, become complete again; `lost` is
        `find_lost` of that time.
        """
        if (gone := int((self.count - count).max())) > self.format.spare:
            log.warning("replay: up to %d rows of a track are gone; 'spare' rows keep them for a resumed run", gone)
        later = self.arrays["row"] > count[:, None]
        self.arrays["row"][later] = 0
        self.arrays["kind"][later] = FieldKind.EMPTY
        self.count[:] = count
        for track in np.flatnonzero(self.find_lost() & ~lost.astype(bool)).tolist():
            slots = self.slots(self._running(track))
            self.arrays["kind"][track, slots] = FieldKind.COMPLETE
        self._refresh_all()

    def whole_episodes(self, track: int) -> list[Array]:
        """Return the slots of each episode that is complete from its first decision to its end, oldest first."""
        slots, first, found = self.slots(self._numbers(track, self.format.capacity)), None, []
        ends = self.arrays["terminated"][track, slots] | self.arrays["truncated"][track, slots]
        begins, ready = self.arrays["decision"][track, slots] == 0, self.ready[track, slots]
        for position in range(len(slots)):
            if begins[position] or not ready[position]:
                first = position if ready[position] else None
            if first is not None and ends[position]:
                found.append(slots[first : position + 1])
                first = None  # what follows may lack its first decisions
        return found

    def _running(self, track: int) -> Array:
        """Return the numbers of the rows of a track's running episode; none where the last episode is over."""
        numbers = self._numbers(track, self.format.slots)
        if not len(numbers):
            return numbers
        last = track, self.slots(numbers[-1])
        over = self.arrays["terminated"][last] or self.arrays["truncated"][last]
        if over or self.arrays["kind"][last] == FieldKind.FINAL:
            return numbers[:0]
        numbers = numbers[-1 - int(self.arrays["decision"][last]) :]
        return numbers[self.arrays["episode"][track, self.slots(numbers)] == self.arrays["episode"][last]]

    def _numbers(self, track: int, most: int) -> Array:
        """Return the numbers of the newest rows of a track, oldest first."""
        return np.arange(max(0, self.count[track] - most), self.count[track])

    def _refresh_all(self) -> None:
        for track in range(self.format.tracks):
            self._refresh(np.full(self.format.slots, track), np.arange(self.format.slots))

    def _refresh(self, tracks: Array, numbers: Array) -> None:
        """Update `ready` for these rows, the rows before them, and the rows that they push out."""
        arrays, oldest = self.arrays, np.maximum(self.count[tracks] - self.format.capacity, 0)
        for moved in (0, 1, self.format.capacity):
            slots = self.slots(numbers - moved)
            row, following = arrays["row"][tracks, slots], self.slots(slots + 1)
            # The slot after the newest row holds the oldest row: compare row numbers.
            follows = arrays["row"][tracks, following] == row + 1
            for name, larger in _SAME.items():
                follows &= arrays[name][tracks, following] == arrays[name][tracks, slots] + larger
            complete = (arrays["kind"][tracks, slots] == FieldKind.COMPLETE) & (row > oldest)
            self.ready[tracks, slots] = complete & (follows | arrays["terminated"][tracks, slots])
        self._usable = None
