"""The recorder process over DDS: killed, orphaned, on a full disk."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.deployment.recording import process as recording_process
from embodied_rl.deployment.recording.bag_writer import RecorderSettings
from embodied_rl.deployment.recording.process import RecorderProcess, start_recorder
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Publisher, Transport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.opening import open_transport
from tests.support.recording import JOINTS, TEXT
from tests.support.refusals import refuses
from tests.support.transports import LONG_S, borrow_environment

pytestmark = [pytest.mark.process, pytest.mark.thorough]
TOPICS = (RecordedTopic("/joints", JOINTS), RecordedTopic("/note", TEXT, latched=True), RecordedTopic("/absent", TEXT))


@pytest.fixture
def environment() -> Iterator[RosEnvironment]:
    with borrow_environment() as environment:
        yield environment


@contextmanager
def open_recorder(folder: Path, environment: RosEnvironment) -> Iterator[tuple[Transport, Publisher, RecorderProcess]]:
    """Open a publisher of joints that is matched with a recorder process."""
    with open_transport("dds", "talker", environment) as talker:
        note = talker.create_publisher("/note", TEXT, "latched")
        note.publish(talker.messages.make(TEXT, data="said before"))
        joints = talker.create_publisher("/joints", JOINTS, "state")
        with start_recorder(TOPICS, folder, RecorderSettings(), environment) as recorder:
            assert talker.spin_until(lambda: bool(joints.count_matched() and note.count_matched()), LONG_S)
            yield talker, joints, recorder


def wait_until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


def test_a_robot_is_recorded_over_dds(tmp_path: Path, environment: RosEnvironment, messages: Messages) -> None:
    folder = tmp_path / "bag"
    with open_recorder(folder, environment) as (talker, joints, recorder):
        for number in range(200):
            joints.publish(talker.messages.make(JOINTS, position=[number]))
            time.sleep(0.001)
        time.sleep(0.5)
        report = recorder.stop()
    assert report.received == {"/joints": 200, "/note": 1, "/absent": 0}
    assert report.silent == ("/absent",) and not report.dropped
    recording = Recording(folder, messages)
    found = {name: [] for name in ("/joints", "/note")}
    for message in recording.read():
        found[message.channel.topic].append(recording.decode(message))
        assert 0 < message.source_ns <= message.received_ns
    assert [joint.position[0] for joint in found["/joints"]] == list(range(200))
    assert [note.data for note in found["/note"]] == ["said before"]


def test_written_chunks_survive_a_kill(tmp_path: Path, environment: RosEnvironment, messages: Messages) -> None:
    folder = tmp_path / "bag"
    with open_recorder(folder, environment) as (talker, joints, recorder):

        def publish_until_written() -> bool:
            joints.publish(talker.messages.make(JOINTS, name=["elbow"], position=[1.0]))
            return any(True for _ in Recording(folder, messages).read({"/joints"}))

        wait_until(publish_until_written)
        os.kill(recorder.pid, signal.SIGKILL)
        wait_until(lambda: not recorder.is_alive())
        joints.publish(talker.messages.make(JOINTS))  # does not raise
        with refuses("recorder-failed", "killed"):
            recorder.stop()
    recording = Recording(folder, messages)
    found = [message for message in recording.read() if message.channel.topic == "/joints"]
    assert found and recording.decode(found[-1]).name == ["elbow"]
    assert recording.cut_off == {folder / "bag_0.mcap"}


def test_a_recorder_finishes_its_file_when_its_parent_dies(
    tmp_path: Path, environment: RosEnvironment, messages: Messages
) -> None:
    program = f"""
import os, signal
from pathlib import Path
from embodied_rl.deployment.recording.process import start_recorder
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.environment import RosEnvironment
recorder = start_recorder([RecordedTopic("/note", "std_msgs/msg/String")], Path({str(tmp_path / "bag")!r}), None,
                          {environment!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LONG_S * 3).returncode == -signal.SIGKILL
    wait_until((tmp_path / "bag" / "metadata.yaml").exists)
    recording = Recording(tmp_path / "bag", messages)
    assert list(recording.read()) == [] and not recording.cut_off


def test_a_full_disk_is_reported(tmp_path: Path, environment: RosEnvironment) -> None:
    with open_recorder(tmp_path / "bag", environment) as (talker, joints, recorder):
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (4000, 4000))

        def publish() -> bool:
            joints.publish(talker.messages.make(JOINTS, position=[1.0] * 100))
            time.sleep(0.005)
            return not recorder.is_alive()

        wait_until(publish)
        with refuses("disk-full", tmp_path / "bag"):
            recorder.stop()


def test_errors_at_the_start_are_reported(tmp_path: Path, environment: RosEnvironment) -> None:
    with refuses("message-type-unknown", "control_msgs/msg/Foo"):
        start_recorder([RecordedTopic("/foo", "control_msgs/msg/Foo")], tmp_path / "bag", None, environment)
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag" / "file").touch()
    with refuses("output-exists", tmp_path / "bag"):
        start_recorder(TOPICS, tmp_path / "bag", None, environment)


def test_a_recorder_that_does_not_answer_is_ended(
    tmp_path: Path, environment: RosEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_process, "START_TIMEOUT_S", 0.01)
    with refuses("recorder-not-responding", tmp_path / "bag"):
        start_recorder(TOPICS, tmp_path / "bag", None, environment)
