"""Writer of TensorBoard event files.

PyTorch's SummaryWriter writes from a thread, so that its errors do not reach the caller.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.runs.atomic_write import explain_errors


class EventFile:
    """A new file of events `events.out.tfevents.*`; earlier files of a run stay.

    Args:
        folder: of the run's events; made if missing.
        resumed: last iteration to keep when a run resumes: TensorBoard hides later ones of earlier files.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path, resumed: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # heavy to import, so only on demand
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = event_pb2  # protobuf makes its classes when it is imported
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        with explain_errors(self._path):
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if resumed is not None:
            start = events.SessionLog(status=events.SessionLog.START)
            self._add(step=resumed + 1, session_log=start)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append the scalars of one step; they are in the file when this returns.

        Raises:
            StorageError: the disk is full, or the file is gone.
        """
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file; failed writes are tried once more, and raise as in `write`."""
        with explain_errors(self._path):
            self._file.close()

    def _add(self, **content: Any) -> None:
        with explain_errors(self._path):
            self._path.stat()  # the system writes to a removed file without an error
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
            self._file.flush()
