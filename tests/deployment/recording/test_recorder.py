"""The recorder in lockstep: written and dropped messages, files and errors."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.rosbag2 import Reader

from embodied_rl.deployment.recording.bag_writer import BagWriter, RecorderSettings
from embodied_rl.deployment.recording.recording_folder import Recording
from embodied_rl.deployment.recording.topics import RecordedTopic, merge_topics
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import StorageError
from tests.support.recording import IMAGE, JOINTS, TEXT, open_bench
from tests.support.refusals import refuses
from tests.support.transports import START_NS

TOPICS = (RecordedTopic("/image", IMAGE), RecordedTopic("/joints", JOINTS), RecordedTopic("/note", TEXT, latched=True))


def test_messages_are_read_back_unchanged(tmp_path: Path, messages: Messages) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages) as bench:
        joints = bench.talker.create_publisher("/joints", JOINTS, "state")
        sent = []
        for number in range(5):
            bench.pass_time(0.002)
            sent.append(messages.encode(JOINTS, messages.make(JOINTS, name=["a"], position=[number / 3])))
            joints.send(sent[-1])
        report = bench.finish()
    recording = Recording(tmp_path / "bag", messages)
    found = list(recording.read())
    assert [each.raw for each in found] == sent
    assert [each.source_ns for each in found] == [START_NS + 2_000_000 * (n + 1) for n in range(5)]
    assert recording.decode(found[2]).position[0] == 2 / 3
    assert report.received == {"/image": 0, "/joints": 5, "/note": 0} and report.silent == ("/image", "/note")
    assert not report.dropped and not recording.cut_off


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_other_libraries_read_recordings(tmp_path: Path, messages: Messages, compression: str) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages, RecorderSettings(compression=compression)) as bench:  # pyright: ignore[reportArgumentType]
        image = bench.talker.create_publisher("/image", IMAGE, "sensor_data")
        picture = np.random.default_rng(0).integers(0, 256, 48, dtype=np.uint8)
        image.publish(messages.make(IMAGE, height=4, width=4, encoding="rgb8", step=12, data=picture))
        bench.finish()
    with Reader(tmp_path / "bag") as reader:
        ((connection, time_ns, raw),) = reader.messages()
        assert (connection.topic, connection.msgtype, time_ns) == ("/image", IMAGE, START_NS)
        assert np.array_equal(messages.decode(IMAGE, raw).data, picture)
        assert reader.topics["/joints"].msgcount == 0
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        mcap = make_reader(file, validate_crcs=True)
        assert mcap.get_header().profile == "ros2"
        ((schema, channel, message),) = mcap.iter_messages()
        assert schema is not None and (schema.encoding, channel.message_encoding) == ("ros2msg", "cdr")
        assert b"MSG: std_msgs/Header" in schema.data and message.publish_time == START_NS
    (again,) = Recording(tmp_path / "bag", messages).read()
    assert again.raw == bytes(raw)


def test_a_best_effort_publisher_is_recorded(tmp_path: Path, messages: Messages) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages) as bench:
        note = bench.talker.create_publisher("/note", TEXT, "sensor_data")
        while bench.recorder.relax_requests() or not note.count_matched():
            pass
        note.publish(messages.make(TEXT, data="now"))
        assert bench.finish().received["/note"] == 1


def test_latched_messages_are_recorded(tmp_path: Path, messages: Messages) -> None:
    with open_bench(tmp_path / "bag", (), messages) as bench:
        note = bench.talker.create_publisher("/note", TEXT, "latched")
        note.publish(messages.make(TEXT, data="before"))
        bag = BagWriter(tmp_path / "late", TOPICS, messages)
        late = type(bench.recorder)(bench.listener, TOPICS, bag)
        bench.listener.spin_once()
        assert late.finish().received["/note"] == 1


def test_messages_beyond_the_queue_are_dropped_and_counted(tmp_path: Path, messages: Messages) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages, queue_bytes=5000) as bench:
        note = bench.talker.create_publisher("/note", TEXT, "latched")
        joints = bench.talker.create_publisher("/joints", JOINTS, "state")
        joints.publish(messages.make(JOINTS))
        for _ in range(10):
            note.publish(messages.make(TEXT, data="x" * 1000))
            bench.listener.spin_once()
        report = bench.finish()
    assert report.dropped == {"/note": 7} and report.received["/note"] == 10
    assert "7 of /note" in "\n".join(report.list_lines())
    assert len(list(Recording(tmp_path / "bag", messages).read())) == 4
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        (notes,) = make_reader(file).iter_metadata()
    assert notes.metadata["dropped"] == '{"/note": 7}'
    assert "/note" in (tmp_path / "bag" / "metadata.yaml").read_text()


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (RecorderSettings(split_bytes=2**20), 4),
        (RecorderSettings(split_s=0.5), 3),
        (RecorderSettings(split_s=0.05), 12),
    ],
)
def test_files_are_split_and_read_in_numerical_order(
    tmp_path: Path, messages: Messages, settings: RecorderSettings, files: int
) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages, settings) as bench:
        image = bench.talker.create_publisher("/image", IMAGE, "sensor_data")
        for number in range(12):
            picture = np.full(480_000, number, np.uint8)
            image.publish(messages.make(IMAGE, height=400, width=400, encoding="rgb8", step=1200, data=picture))
            bench.pass_time(0.1)
            bench.write()
        bench.finish()
    recording = Recording(tmp_path / "bag", messages)
    assert len(recording.files) == files
    assert [recording.decode(each).data[0] for each in recording.read()] == list(range(12))
    with Reader(tmp_path / "bag") as reader:
        assert reader.message_count == 12 == sum(1 for _ in reader.messages())


def test_a_full_disk_ends_the_recording(
    tmp_path: Path, messages: Messages, files_up_to: Callable[[int], AbstractContextManager[None]]
) -> None:
    with open_bench(tmp_path / "bag", TOPICS, messages) as bench:
        image = bench.talker.create_publisher("/image", IMAGE, "sensor_data")
        bench.recorder.start()
        with files_up_to(2**22):
            for _ in itertools.takewhile(lambda _: bench.recorder.failure is None, range(10_000)):
                image.publish(messages.make(IMAGE, data=np.zeros(2**20, np.uint8)))
                bench.listener.spin_once()
            with refuses("disk-full", tmp_path / "bag", "out", kind=StorageError):
                bench.recorder.finish()
    found = list(Recording(tmp_path / "bag", messages).read())
    assert found and not (tmp_path / "bag" / "metadata.yaml").exists()


def test_unknown_types_and_two_types_are_refused(tmp_path: Path, messages: Messages) -> None:
    with refuses("message-type-unknown", "control_msgs/msg/Foo"):
        BagWriter(tmp_path / "bag", [RecordedTopic("/foo", "control_msgs/msg/Foo")], messages)
    assert not (tmp_path / "bag").exists()
    with refuses("topic-types-differ", "/foo", "std_msgs/msg/Bool", TEXT):
        merge_topics([RecordedTopic("/foo", "std_msgs/msg/Bool"), RecordedTopic("/foo", TEXT)])


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/bag"):
        BagWriter(tmp_path / "file" / "bag", TOPICS, messages)
