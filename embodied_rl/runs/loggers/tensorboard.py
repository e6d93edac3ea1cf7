"""Logger that writes the events of TensorBoard into the run's folder.

PyTorch's SummaryWriter writes from a thread, so that its errors do not reach the caller.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from embodied_rl.interfaces.logger import LoggedRun, Logger, NoKeys
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import check_inside


class TensorBoard(Logger):
    """A new file `tensorboard/events.out.tfevents.*`; TensorBoard hides what earlier files hold after the resumed step.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, config: NoKeys, run: LoggedRun) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # heavy to import, so only on demand
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = event_pb2  # protobuf makes its classes when it is imported
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        folder = run.folder / "tensorboard"
        check_inside(run.folder, folder)
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        with explain_errors(self._path):
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if run.resumed is not None:
            start = events.SessionLog(status=events.SessionLog.START)
            self._add(step=run.resumed + 1, session_log=start)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append the scalars of one step; they are in the file when this returns, or `StorageError` is raised."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(step=step, summary=self._summary(value=values))

    def close(self, success: bool) -> None:
        """Close the file; failed writes are tried once more, and raise as in `write`."""
        with explain_errors(self._path):
            self._file.close()

    def _add(self, **content: Any) -> None:
        with explain_errors(self._path):
            self._path.stat()  # the system writes to a removed file without an error
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
            self._file.flush()
