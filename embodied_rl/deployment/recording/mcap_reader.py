"""Read untrusted MCAP files: declared sizes are limited, and damage raises an error.

A truncated file, for example of a killed recorder, is read up to its last whole chunk. `mcap` parses single records;
its readers do not limit the size of unpacked chunks.
"""

import io
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from embodied_rl.deployment.transport.extras import require
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import name_file, shorten

MAGIC = b"\x89MCAP0\r\n"
MAX_RECORD_BYTES = 128 * 2**20
"""Largest record and unpacked chunk; a 4K image has 25 MB, and a chunk ends after a message."""
MAX_TIME_NS = 2**63 - 1
"""Largest time of ROS 2."""
SCHEMA, CHANNEL, MESSAGE, CHUNK, FOOTER = 0x03, 0x04, 0x05, 0x06, 0x02
_HEAD, _MESSAGE = struct.Struct("<BQ"), struct.Struct("<HIQQ")


class RecordingError(UserError):
    """A recording cannot be read; the message names the file, the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class RecordedChannel:
    """A topic of a file: name, type, encoding, and type hash if the file has it."""

    topic: str
    type_name: str
    encoding: str
    type_hash: str


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message: unchecked CDR bytes, and times of receiving and publishing, in nanoseconds since 1970."""

    channel: RecordedChannel
    raw: bytes
    received_ns: int
    source_ns: int


class McapFile:
    """One MCAP file.

    Attributes:
        channels: by number, as far as the file has been read.
        complete: whether the file was read to its footer.

    Raises:
        Unavailable: the package mcap is missing.
    """

    def __init__(self, path: Path) -> None:
        require("mcap", "reading a recording")
        self.path, self.complete = path, False
        self.channels: dict[int, RecordedChannel] = {}
        self._schemas: dict[int, str] = {}

    def messages(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, by default of all, in the order of the file.

        Raises:
            RecordingError: the file cannot be read, is not an MCAP file, or is damaged.
        """
        import zstandard
        from mcap.exceptions import McapError

        damage = struct.error, McapError, UnicodeDecodeError, zstandard.ZstdError, RuntimeError, EOFError, MemoryError
        try:
            with name_file(self.path), self.path.open("rb") as file:
                begin = file.read(len(MAGIC))
                if not MAGIC.startswith(begin):
                    raise RecordingError(f"{self.path} is not an MCAP file.", code="recording-damaged")
                for code, data in self._read_records(file) if begin == MAGIC else ():
                    if code != MESSAGE:
                        self._define(code, data)
                        continue
                    number, _, received_ns, source_ns = _MESSAGE.unpack_from(data)
                    channel = self.channels.get(number)
                    if channel is None:
                        raise _damaged(f"a message has the undefined channel {number}")
                    if max(received_ns, source_ns) > MAX_TIME_NS:
                        raise _damaged("the time of a message is beyond 2**63 ns")
                    if topics is None or channel.topic in topics:
                        yield RecordedMessage(channel, bytes(data[_MESSAGE.size :]), received_ns, source_ns)
        except OSError as error:
            raise RecordingError(
                f"{self.path} cannot be read: {error.strerror or error}.", code="recording-unreadable"
            ) from error
        except damage as error:
            raise RecordingError(
                f"{self.path} is damaged: {shorten(error)}. Use another copy of it.", code="recording-damaged"
            ) from error

    def _read_records(self, file: IO[bytes]) -> Iterator[tuple[int, memoryview]]:
        """Yield code and content of each schema, channel and message, also those in chunks; a cut file ends early."""
        size = self.path.stat().st_size
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            code, length = _HEAD.unpack(head)
            if length > size - file.tell():
                return
            if code == FOOTER:
                self.complete = True
                return
            if code not in (SCHEMA, CHANNEL, MESSAGE, CHUNK):
                file.seek(length, io.SEEK_CUR)
                continue
            data = memoryview(file.read(_check_record_size(length, "a record")))
            if code == CHUNK:
                yield from _split_chunk(data)
            else:
                yield code, data

    def _define(self, code: int, data: memoryview) -> None:
        """Note a schema or a channel."""
        from mcap.data_stream import ReadDataStream
        from mcap.records import Channel, Schema

        stream = ReadDataStream(io.BytesIO(data))
        if code == SCHEMA:
            schema = Schema.read(stream)
            self._schemas[schema.id] = schema.name
            return
        found = Channel.read(stream)
        hashed = found.metadata.get("topic_type_hash", "")
        made = RecordedChannel(found.topic, self._schemas.get(found.schema_id, ""), found.message_encoding, hashed)
        known = self.channels.setdefault(found.id, made)
        if known != made:
            raise _damaged(f"channel {found.id} is defined as {known.topic[:100]!r} and differently")


def _check_record_size(size: int, what: str) -> int:
    if size > MAX_RECORD_BYTES:
        raise _damaged(f"{what} has {size} bytes, at most {MAX_RECORD_BYTES} are read")
    return size


def _damaged(reason: str) -> RecordingError:
    """Return an error, to which `name_file` adds the path."""
    return RecordingError(f"the file is damaged: {reason}. Use another copy of it.", code="recording-damaged")


def _split_chunk(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield code and content of each record of a chunk after checking the chunk's size and checksum."""
    from mcap.data_stream import ReadDataStream
    from mcap.records import Chunk

    chunk = Chunk.read(ReadDataStream(io.BytesIO(data)))
    limit = _check_record_size(chunk.uncompressed_size, "a chunk")
    unpacked = _decompress(chunk, limit)
    if len(unpacked) != limit:
        raise _damaged(f"a chunk has {len(unpacked)} bytes instead of {limit}")
    if chunk.uncompressed_crc and zlib.crc32(unpacked) != chunk.uncompressed_crc:
        raise _damaged("the checksum of a chunk is wrong")
    content, place = memoryview(unpacked), 0
    while place < len(content):
        code, length = _HEAD.unpack_from(content, place)
        place += _HEAD.size
        if length > len(content) - place:
            raise _damaged(f"a record of {length} bytes does not fit into its chunk")
        if code in (SCHEMA, CHANNEL, MESSAGE):
            yield code, content[place : place + length]
        place += length


def _decompress(chunk: Any, limit: int) -> bytes:
    """Return up to `limit` + 1 bytes; the size declared in the compressed data is ignored."""
    if chunk.compression == "":
        return chunk.data
    if chunk.compression == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(chunk.data) as reader:
            return reader.read(limit + 1)
    if chunk.compression == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=limit + 1)
    raise RecordingError(
        f"a chunk is compressed by {chunk.compression[:20]!r}; lz4 and zstd are supported",
        code="recording-encoding-unsupported",
    )
