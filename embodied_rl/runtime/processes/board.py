"""Board in shared memory: it holds the newest message of this process, which its workers can read at any time.

Memory: a header of two records, one per slot, then messages. A record holds the number of the message in its slot, or
zeros while one is written. Messages alternate between the slots, so that the last one stays complete while the next is
written. If two messages were published while a reader copied, it sees that the record has changed, and reads again.
"""

import mmap
import os
import pickle
import struct
import time
from typing import Any

from embodied_rl.runtime.processes.handle import NoAnswer
from embodied_rl.runtime.processes.messages import pickle_message
from embodied_rl.runtime.processes.process import make_anonymous_memory

_RECORD = struct.Struct("=qqqq")
"""Number of the message, counted from 1 (0: none, or one is being written); version; offset; bytes."""
_HEADER = mmap.PAGESIZE
READ_TIMEOUT_S = 60.0
"""Seconds in which a reader must have copied a complete message."""


class SharedBoard:
    """A `Board` on this machine. Its memory has no name, so the system frees it when its last user ends.

    Attributes:
        descriptor: file descriptor of the memory; reading processes inherit it under the same number.
    """

    def __init__(self) -> None:
        self.descriptor = make_anonymous_memory()
        os.ftruncate(self.descriptor, _HEADER)
        self._number = 0
        self._slots = [(0, 0), (0, 0)]  # offset and bytes of each slot

    def publish(self, version: int, message: Any) -> None:
        """Replace the message; see `Board.publish`."""
        data = pickle_message(message)
        self._number += 1
        slot = self._number % 2
        if len(data) > self._slots[slot][1]:
            end = os.fstat(self.descriptor).st_size
            self._slots[slot] = end, len(data)
            os.ftruncate(self.descriptor, end + len(data))
        offset, _ = self._slots[slot]
        with mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size) as memory:
            _RECORD.pack_into(memory, slot * _RECORD.size, 0, 0, 0, 0)
            memory[offset : offset + len(data)] = data
            _RECORD.pack_into(memory, slot * _RECORD.size, self._number, version, offset, len(data))

    def reader(self) -> "SharedBoardReader":
        """Return a reader; see `Board.reader`."""
        return SharedBoardReader(self.descriptor)

    def close(self) -> None:
        """Release the board; see `Board.close`. Processes that have the memory can still read the last message."""
        os.close(self.descriptor)


class SharedBoardReader:
    """A reader of a `SharedBoard`, in the publishing process or in one that inherited the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Return the version and the newest message, or None; see `BoardReader.newest`."""
        until = time.monotonic() + READ_TIMEOUT_S
        while (record := max(self._records())) != (0, 0, 0, 0):
            number, version, offset, size = record
            if version <= above:
                return None
            with mmap.mmap(self._descriptor, offset + size, prot=mmap.PROT_READ) as memory:
                data = memory[offset : offset + size]
            if record in self._records():
                return version, pickle.loads(data)
            if time.monotonic() > until:
                raise NoAnswer(f"message {number} was overwritten each time it was read, for {READ_TIMEOUT_S:g} s.")
        return None

    def close(self) -> None:
        """Do nothing."""

    def _records(self) -> list[tuple[int, int, int, int]]:
        with mmap.mmap(self._descriptor, _HEADER, prot=mmap.PROT_READ) as memory:
            return [_RECORD.unpack_from(memory, slot * _RECORD.size) for slot in range(2)]
