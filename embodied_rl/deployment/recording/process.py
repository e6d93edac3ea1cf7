"""A recorder in a separate process, so that it does not delay the control loop of a robot.

The process reads its request as one line of JSON, answers {"ready": true} once it has subscribed, and records until its
input closes, which also happens when the parent dies. It then answers {"report": …} or {"failed": message, …}.
"""

import json
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from embodied_rl.deployment.recording.bag_writer import RecorderSettings, check_new
from embodied_rl.deployment.recording.recorder import DRAIN_TIMEOUT_S, RecordingReport, record_topics
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.topics import RecordedTopic, list_topics
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.environment import RosEnvironment, read_environment
from embodied_rl.interfaces.errors import TransportError, UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.system.untrusted_files import parse_json

START_TIMEOUT_S = 30.0
"""Longest time until a recorder has subscribed."""
MAX_ANSWER_BYTES = 2**20


class RecorderProcess:
    """A running recorder, see `start_recorder`. Use it in a `with` statement, or call `stop`."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.folder, self._process = folder, process
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def stop(self, timeout_s: float = DRAIN_TIMEOUT_S + 10) -> RecordingReport:
        """End the recording and return its report.

        Raises:
            UserError: recording failed, for example on a full disk; the process was killed, or does not end in time.
        """
        self._close_input()
        try:
            answer = self.read_answer(timeout_s)
        finally:
            self._end()
        found = answer.get("report")
        if found is None:
            message = f"The recorder failed: {answer.get('failed', 'it was killed')}"
            raise UserError(message, code=answer.get("code") or "recorder-failed")
        return RecordingReport(**found | {"silent": tuple(found["silent"])})

    def read_answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the recorder's next answer, empty if it has exited; raise `UserError` after the deadline."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._end()
                    raise UserError(
                        f"The recorder of {self.folder} has not answered for {timeout_s:.0f} s: it was ended",
                        code="recorder-not-responding",
                    )
                piece = self._process.stdout.read1(MAX_ANSWER_BYTES)  # pyright: ignore[reportAttributeAccessIssue]
                if not piece:
                    return {}
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return parse_json(line, "the recorder's answer")

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has exited already
            self._process.stdin.close()

    def _end(self, timeout_s: float = 1) -> None:
        self._close_input()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def __enter__(self) -> "RecorderProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_alive():
            self._end(DRAIN_TIMEOUT_S + 10)


def start_recorder(
    robot: RobotDescription | Sequence[RecordedTopic],
    folder: Path,
    settings: RecorderSettings | None = None,
    environment: RosEnvironment | None = None,
) -> RecorderProcess:
    """Start a process that records a robot, and return when it has subscribed.

    Args:
        robot: its topics and those of the bridge are recorded; or a sequence of topics.
        folder: of the recording, created here.
        environment: of ROS 2; by default from the environment variables.

    Raises:
        UserError: the folder is not new, a topic's type is unknown, or the recorder has not subscribed within 30 s.
        Unavailable: a package is missing.
    """
    known = isinstance(robot, RobotDescription)
    topics, settings = list_topics(robot) if known else tuple(robot), settings or RecorderSettings()
    check_new(folder)
    request = {
        "topics": [asdict(topic) for topic in topics], "folder": str(folder.absolute()), "settings": asdict(settings),
        "environment": asdict(environment or read_environment()),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    recorder = RecorderProcess(process, folder)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer = recorder.read_answer(START_TIMEOUT_S)
    if "ready" not in answer:
        recorder._end()
        message = f"The recorder did not start: {answer.get('failed', 'see its output above')}"
        raise (
            Unavailable(message)
            if answer.get("missing")
            else UserError(message, code=answer.get("code") or "recorder-failed")
        )
    if known:
        write_description(robot, folder)
    return recorder


def main(commands: IO[bytes], answers: IO[bytes]) -> int:
    """Record as requested on `commands`; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent ends the recording
        signal.signal(number, signal.SIG_IGN)

    def answer(values: dict[str, object]) -> None:
        try:
            answers.write(json.dumps(values).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:  # the parent has died; the recording is finished anyway
            pass

    closed = threading.Event()

    def ready() -> None:
        answer({"ready": True})
        threading.Thread(target=lambda: (commands.read(), closed.set()), daemon=True).start()

    try:
        request = parse_json(commands.readline(), "the recorder's request")
        settings = RecorderSettings(**request["settings"])
        topics = [RecordedTopic(**each) for each in request["topics"]]
        environment = RosEnvironment(**request["environment"] | {"peers": tuple(request["environment"]["peers"])})
        say = lambda line: print(f"recorder: {line}", file=sys.stderr, flush=True)  # noqa: E731
        report = record_topics(topics, Path(request["folder"]), settings, environment, closed.is_set, say, ready)
    except (UserError, Unavailable, OSError, TransportError) as error:
        code = error.code if isinstance(error, UserError) else ""
        answer({"failed": str(error), "code": code, "missing": isinstance(error, Unavailable)})
        return 1
    answer({"report": asdict(report)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
