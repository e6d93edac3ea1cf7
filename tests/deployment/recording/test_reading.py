"""Untrusted and truncated files: damage is an error, sizes are limited, whole chunks are read."""

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
from tests.support.recording import TEXT, open_bench
from tests.support.refusals import refuses


def write_texts(folder: Path, messages: Messages, count: int = 40) -> Path:
    """Write a recording of texts, one per chunk; return its file."""
    with open_bench(folder, [RecordedTopic("/note", TEXT)], messages) as bench:
        note = bench.talker.create_publisher("/note", TEXT, "state")
        for number in range(count):
            note.publish(messages.make(TEXT, data=f"{number} " + "x" * 100))
            bench.listener.spin_once()
            bench.recorder.write_waiting(0.001)
            bench.recorder.write_waiting(0.001)  # the queue is empty: the chunk is closed
        bench.finish()
    return folder / f"{folder.name}_0.mcap"


def write_foreign(path: Path, encoding: str = "cdr", **notes: str) -> Path:
    """Write a file without chunks by another writer."""
    with path.open("wb") as file:
        writer = Writer(file, use_chunking=False)
        writer.start("ros2")
        schema = writer.register_schema(TEXT, "ros2msg", b"string data\n")
        channel = writer.register_channel("/note", encoding, schema, notes)
        writer.add_message(channel, 1, b"\0\1\0\0\2\0\0\0a\0", 2)
        writer.finish()
    return path


def test_a_truncated_recording_is_read_up_to_its_end(tmp_path: Path, messages: Messages) -> None:
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


def test_a_truncated_recording_is_recovered(tmp_path: Path, messages: Messages) -> None:
    file = write_texts(tmp_path / "bag", messages)
    with refuses("recording-finished", tmp_path / "bag", kind=RecordingError):
        recover_recording(tmp_path / "bag", tmp_path / "out", messages)
    (tmp_path / "bag" / "metadata.yaml").unlink()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    count = recover_recording(tmp_path / "bag", tmp_path / "out", messages)
    with Reader(tmp_path / "out") as reader:
        assert sum(1 for _ in reader.messages()) == count > 5
    with refuses("output-exists", tmp_path / "out"):
        recover_recording(tmp_path / "bag", tmp_path / "out", messages)
    file.write_bytes(file.read_bytes()[:40])
    with refuses("recording-empty", tmp_path / "bag", kind=RecordingError):
        recover_recording(tmp_path / "bag", tmp_path / "again", messages)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("size", [0, 5, 8])
def test_a_file_without_records_is_truncated(tmp_path: Path, messages: Messages, size: int) -> None:
    (tmp_path / "a.mcap").write_bytes(mcap_reader.MAGIC[:size])
    recording = Recording(tmp_path, messages)
    assert list(recording.read()) == [] and recording.cut_off == {tmp_path / "a.mcap"}


def test_a_file_without_chunks_is_read(tmp_path: Path, messages: Messages) -> None:
    recording = Recording(write_foreign(tmp_path / "foreign.mcap"), messages)
    (message,) = recording.read()
    assert recording.decode(message).data == "a" and (message.received_ns, message.source_ns) == (1, 2)


@pytest.mark.parametrize(
    ("encoding", "notes", "code", "data"),
    [
        ("json", {}, "recording-encoding-unsupported", ["'/note'", "'json'"]),
        ("cdr", {"topic_type_hash": "RIHS01_00"}, "recording-of-another-release", ["/note", TEXT, "ROS_DISTRO"]),
    ],
)
def test_other_encodings_and_definitions_are_refused(
    tmp_path: Path, messages: Messages, encoding: str, notes: dict[str, str], code: str, data: list[str]
) -> None:
    recording = Recording(write_foreign(tmp_path / "foreign.mcap", encoding, **notes), messages)
    with refuses(code, "foreign.mcap", *data, kind=RecordingError):
        list(recording.read())


@pytest.mark.parametrize(
    ("files", "code", "data"),
    [
        ({}, "recording-missing", ".db3"),
        ({"a.zstd": b""}, "recording-missing", "a.zstd"),
        ({"a.db3": b""}, "recording-damaged", "a.db3"),
        ({"a.mcap": b"hello"}, "recording-damaged", "a.mcap"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, messages: Messages, files: dict[str, bytes], code: str, data: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with refuses(code, data, kind=RecordingError):
        list(Recording(tmp_path, messages).read())
    with refuses("recording-missing", tmp_path / "absent", kind=RecordingError):
        Recording(tmp_path / "absent", messages)


def make_chunk(data: bytes, size: int, compression: bytes = b"", crc: int = 0) -> bytes:
    body = struct.pack("<QQQI", 0, 0, size, crc) + struct.pack("<I", len(compression)) + compression
    body += struct.pack("<Q", len(data)) + data
    return struct.pack("<BQ", mcap_reader.CHUNK, len(body)) + body


def bomb(size: int) -> bytes:
    import zstandard

    return zstandard.compress(bytes(size))


@pytest.mark.parametrize(
    ("record", "data"),
    [
        (make_chunk(b"", 2**40), "1099511627776"),
        (make_chunk(bomb(2**22), 100, b"zstd"), "101 bytes instead of 100"),
        (make_chunk(b"nonsense", 8, b"zstd"), ""),
        (make_chunk(b"nonsense", 8, b"lz4"), ""),
        (make_chunk(b"nonsense", 8, b"rar"), "'rar'"),
        (make_chunk(b"nonsense", 8, crc=1), "checksum"),
        (make_chunk(b"\x05" + b"\xff" * 8 + b"x", 10), "its chunk"),
        (make_chunk(b"\x05" + b"\0" * 7, 8), ""),
        (struct.pack("<BQ", mcap_reader.MESSAGE, 22) + bytes(22), "channel 0"),
        (struct.pack("<BQ", mcap_reader.MESSAGE, 1) + b"x", ""),
        (struct.pack("<BQ", mcap_reader.CHANNEL, 8) + b"\1\0\1\0\xff\xff\xff\x7f", ""),
        (struct.pack("<BQ", mcap_reader.SCHEMA, 9) + b"\1\0\3\0\0\0\xff\xfe\xfd", ""),
    ],
    ids=[
        "large",
        "bomb",
        "zstd",
        "lz4",
        "rar",
        "checksum",
        "long record",
        "half head",
        "no channel",
        "short message",
        "long name",
        "no text",
    ],
)
def test_damage_is_refused(tmp_path: Path, record: bytes, data: str) -> None:
    file = tmp_path / "damaged.mcap"
    file.write_bytes(mcap_reader.MAGIC + record)
    code = "recording-encoding-unsupported" if b"rar" in record else "recording-damaged"
    with refuses(code, file, data, kind=RecordingError):
        list(McapFile(file).messages())


def test_large_records_are_refused_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "large.mcap"
    with file.open("wb") as sparse:
        sparse.write(mcap_reader.MAGIC + struct.pack("<BQ", mcap_reader.CHUNK, 2**33))
        sparse.truncate(2**33 + 100)
    with refuses("recording-damaged", "8589934592", kind=RecordingError):
        list(McapFile(file).messages())


@pytest.mark.thorough
@given(st.data())
def test_damage_raises_no_other_exception(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
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
