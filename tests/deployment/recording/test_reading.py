"""Files of strangers: garbage is an error in words, sizes are limits, what is whole of a file is read."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcap.writer import CompressionType, Writer
from rosbags.rosbag2 import Reader

from embodied_rl.deployment.recording import mcap_reader
from embodied_rl.deployment.recording.mcap_reader import McapFile, RecordingError
from embodied_rl.deployment.recording.recording_folder import Recording, recover_recording
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from tests.support.recording import TEXT, open_studio


def write_texts(folder: Path, messages: Messages, count: int = 40) -> Path:
    """A recording of texts, each in a chunk of its own; return its file."""
    with open_studio(folder, [RecordedTopic("/note", TEXT)], messages) as studio:
        note = studio.talker.create_publisher("/note", TEXT, "state")
        for number in range(count):
            note.publish(messages.make(TEXT, data=f"{number} " + "x" * 100))
            studio.listener.spin_once()
            studio.recorder.write_waiting(0.001)
            studio.recorder.write_waiting(0.001)  # nothing waits: the chunk is closed
        studio.finish()
    return folder / f"{folder.name}_0.mcap"


def write_foreign(path: Path, encoding: str = "cdr", **notes: str) -> Path:
    """A file of another writer, without chunks."""
    with path.open("wb") as file:
        writer = Writer(file, use_chunking=False)
        writer.start("ros2")
        schema = writer.register_schema(TEXT, "ros2msg", b"string data\n")
        channel = writer.register_channel("/note", encoding, schema, notes)
        writer.add_message(channel, 1, b"\0\1\0\0\2\0\0\0a\0", 2)
        writer.finish()
    return path


def test_a_recording_that_was_cut_off_is_read_up_to_there(tmp_path: Path, messages: Messages) -> None:
    file = write_texts(tmp_path / "bag", messages)
    whole = file.read_bytes()
    counts = set()
    for size in range(len(whole) // 3, len(whole) * 3 // 4, 97):
        file.write_bytes(whole[:size])
        recording = Recording(tmp_path / "bag", messages)
        found = [recording.decode(message).data for message in recording.read()]
        assert [int(text.split()[0]) for text in found] == list(range(len(found)))
        assert recording.cut_off == {file}
        counts.add(len(found))
    assert min(counts) > 5 and len(counts) > 5


def test_what_was_cut_off_is_recovered_for_others(tmp_path: Path, messages: Messages) -> None:
    file = write_texts(tmp_path / "bag", messages)
    with pytest.raises(RecordingError, match="was finished"):
        recover_recording(tmp_path / "bag", tmp_path / "out", messages)
    (tmp_path / "bag" / "metadata.yaml").unlink()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    count = recover_recording(tmp_path / "bag", tmp_path / "out", messages)
    with Reader(tmp_path / "out") as reader:
        assert sum(1 for _ in reader.messages()) == count > 5
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RecordingError, match="no whole chunk"):
        recover_recording(tmp_path / "bag", tmp_path / "again", messages)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("size", [0, 5, 8])
def test_a_file_in_which_nothing_was_written_yet_is_cut_off(tmp_path: Path, messages: Messages, size: int) -> None:
    (tmp_path / "a.mcap").write_bytes(mcap_reader.MAGIC[:size])
    recording = Recording(tmp_path, messages)
    assert list(recording.read()) == [] and recording.cut_off == {tmp_path / "a.mcap"}


def test_a_file_without_chunks_is_read(tmp_path: Path, messages: Messages) -> None:
    recording = Recording(write_foreign(tmp_path / "foreign.mcap"), messages)
    (message,) = recording.read()
    assert recording.decode(message).data == "a" and (message.received_ns, message.source_ns) == (1, 2)


@pytest.mark.parametrize(
    ("encoding", "notes", "reason"),
    [
        ("json", {}, "'/note' is encoded as 'json', not as cdr"),
        ("cdr", {"topic_type_hash": "RIHS01_00"}, "/note is a std_msgs/msg/String of another definition.*ROS_DISTRO"),
    ],
)
def test_what_cannot_be_decoded_is_refused(
    tmp_path: Path, messages: Messages, encoding: str, notes: dict[str, str], reason: str
) -> None:
    recording = Recording(write_foreign(tmp_path / "foreign.mcap", encoding, **notes), messages)
    with pytest.raises(RecordingError, match=f"foreign.mcap.*{reason}"):
        list(recording.read())


@pytest.mark.parametrize(
    ("files", "reason"),
    [({}, "no .mcap and no .db3 file"), ({"a.db3": b""}, "a.db3 is no rec"), ({"a.mcap": b"hello"}, "no MCAP file")],
)
def test_what_is_no_recording_is_refused(
    tmp_path: Path, messages: Messages, files: dict[str, bytes], reason: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordingError, match=reason):
        list(Recording(tmp_path, messages).read())
    with pytest.raises(RecordingError, match="is not there"):
        Recording(tmp_path / "absent", messages)


def make_chunk(data: bytes, size: int, compression: bytes = b"", crc: int = 0) -> bytes:
    body = struct.pack("<QQQI", 0, 0, size, crc) + struct.pack("<I", len(compression)) + compression
    body += struct.pack("<Q", len(data)) + data
    return struct.pack("<BQ", mcap_reader.CHUNK, len(body)) + body


def bomb(size: int) -> bytes:
    import zstandard

    return zstandard.compress(bytes(size))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (make_chunk(b"", 2**40), "a chunk of 1099511627776 bytes"),
        (make_chunk(bomb(2**22), 100, b"zstd"), "holds 101 bytes and says that it holds 100"),
        (make_chunk(b"nonsense", 8, b"zstd"), "damaged"),
        (make_chunk(b"nonsense", 8, b"lz4"), "damaged"),
        (make_chunk(b"nonsense", 8, b"rar"), "compressed by 'rar'"),
        (make_chunk(b"nonsense", 8, crc=1), "checksum"),
        (make_chunk(b"\x05" + b"\xff" * 8 + b"x", 10), "does not fit into its chunk"),
        (make_chunk(b"\x05" + b"\0" * 7, 8), "damaged"),
        (struct.pack("<BQ", mcap_reader.MESSAGE, 22) + bytes(22), "channel 0, which it does not describe"),
        (struct.pack("<BQ", mcap_reader.MESSAGE, 1) + b"x", "damaged"),
        (struct.pack("<BQ", mcap_reader.CHANNEL, 8) + b"\1\0\1\0\xff\xff\xff\x7f", "damaged"),
        (struct.pack("<BQ", mcap_reader.SCHEMA, 9) + b"\1\0\3\0\0\0\xff\xfe\xfd", "damaged"),
    ],
    ids=[
        "large",
        "bomb",
        "no zstd",
        "no lz4",
        "rar",
        "checksum",
        "long record",
        "half a head",
        "no channel",
        "short message",
        "long name",
        "no text",
    ],
)
def test_garbage_is_an_error_in_words(tmp_path: Path, record: bytes, reason: str) -> None:
    file = tmp_path / "garbage.mcap"
    file.write_bytes(mcap_reader.MAGIC + record)
    with pytest.raises(RecordingError, match=reason) as error:
        list(McapFile(file).messages())
    assert "garbage.mcap" in str(error.value)


def test_large_records_are_refused_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "large.mcap"
    with file.open("wb") as sparse:
        sparse.write(mcap_reader.MAGIC + struct.pack("<BQ", mcap_reader.CHUNK, 2**33))
        sparse.truncate(2**33 + 100)
    with pytest.raises(RecordingError, match="a record of 8589934592 bytes"):
        list(McapFile(file).messages())


@given(st.data())
def test_no_damage_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    compression = data.draw(st.sampled_from(list(CompressionType)))
    content = bytearray(make_sound_file(folder / "a.mcap", compression))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(8, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "a.mcap").write_bytes(bytes(content))
    recording = Recording(folder, MESSAGES)
    try:
        for message in recording.read():
            recording.decode(message)
    except UserError:
        pass


MESSAGES: Any = Messages("jazzy")


def make_sound_file(path: Path, compression: CompressionType) -> bytes:
    with path.open("wb") as file:
        writer = Writer(file, compression=compression)
        writer.start("ros2")
        channel = writer.register_channel("/note", "cdr", writer.register_schema(TEXT, "ros2msg", b"string data\n"))
        for number in range(3):
            raw = MESSAGES.encode(TEXT, MESSAGES.make(TEXT, data="text " * number))
            writer.add_message(channel, number, raw, number)
        writer.finish()
    return path.read_bytes()
