"""Reads an MCAP file that may come from a stranger: sizes are limits before they are memory, and garbage is an error.

A file that was cut off, as by a kill of its recorder, is read as far as its chunks are whole. `mcap` parses single
records; its own readers believe what a file says of its sizes.
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
LARGEST = 128 * 2**20
"""Bytes of a record, and of a chunk when it is unpacked; an image of 4K has 25 MB, a chunk ends behind a message."""
LATEST_NS = 2**63 - 1
"""Of ROS 2's own times."""
SCHEMA, CHANNEL, MESSAGE, CHUNK, FOOTER = 0x03, 0x04, 0x05, 0x06, 0x02
_HEAD, _MESSAGE = struct.Struct("<BQ"), struct.Struct("<HIQQ")


class RecordingError(UserError):
    """A recording that cannot be read as asked; the message names the file, the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class RecordedChannel:
    """A topic of a file: its name, type, the encoding of its messages, and its type's hash where the file has it."""

    topic: str
    type_name: str
    encoding: str
    type_hash: str


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message: CDR bytes that nobody has checked, when it was received and published, in nanoseconds since 1970."""

    channel: RecordedChannel
    raw: bytes
    received_ns: int
    source_ns: int


class McapFile:
    """One file.

    Attributes:
        channels: by number, as far as the file has been read.
        complete: whether it was read to its proper end; False before that.

    Raises:
        Unavailable: the package mcap is missing.
    """

    def __init__(self, path: Path) -> None:
        require("mcap", "reading a recording")
        self.path, self.complete = path, False
        self.channels: dict[int, RecordedChannel] = {}
        self._schemas: dict[int, str] = {}

    def messages(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, of all by default, in the order of the file.

        Raises:
            RecordingError: the file cannot be read, is no MCAP file, or is damaged.
        """
        try:
            with name_file(self.path), self.path.open("rb") as file:
                begin = file.read(len(MAGIC))
                if not MAGIC.startswith(begin):
                    raise RecordingError(f"{self.path} is no MCAP file: it does not begin as one.")
                if begin != MAGIC:
                    return  # cut off before anything was written
                yield from self._read(file, self.path.stat().st_size, topics)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        except _damages() as error:
            raise RecordingError(f"{self.path} is damaged: {shorten(error)}. Take another copy of it.") from error

    def _read(self, file: IO[bytes], size: int, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            code, length = _HEAD.unpack(head)
            if length > size - file.tell():
                return  # cut off here
            if code == FOOTER:
                self.complete = True
                return
            if code not in (SCHEMA, CHANNEL, MESSAGE, CHUNK):
                file.seek(length, io.SEEK_CUR)
                continue
            yield from self._read_record(code, memoryview(file.read(_check_size(length, "a record"))), topics)

    def _read_record(self, code: int, data: memoryview, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        if code == CHUNK:
            yield from self._read_chunk(data, topics)
        elif code == MESSAGE:
            yield from self._read_message(data, topics)
        else:
            self._learn(code, data)

    def _read_chunk(self, data: memoryview, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        content = memoryview(_unpack_chunk(data))
        place = 0
        while place < len(content):
            code, length = _HEAD.unpack_from(content, place)
            place += _HEAD.size
            if length > len(content) - place:
                raise RecordingError(f"{self.path} is damaged: a record of {length} bytes does not fit into its chunk.")
            if code in (SCHEMA, CHANNEL, MESSAGE):
                yield from self._read_record(code, content[place : place + length], topics)
            place += length

    def _read_message(self, data: memoryview, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        number, _, received_ns, source_ns = _MESSAGE.unpack_from(data)
        channel = self.channels.get(number)
        if channel is None:
            raise RecordingError(f"{self.path} is damaged: a message of channel {number}, which it does not describe.")
        if max(received_ns, source_ns) > LATEST_NS:
            raise RecordingError(f"{self.path} is damaged: a message's time is beyond 2**63 ns.")
        if topics is None or channel.topic in topics:
            yield RecordedMessage(channel, bytes(data[_MESSAGE.size :]), received_ns, source_ns)

    def _learn(self, code: int, data: memoryview) -> None:
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
            raise RecordingError(f"{self.path} is damaged: channel {found.id} is {known.topic[:100]!r} and another.")


def _check_size(size: int, what: str) -> int:
    if size > LARGEST:
        raise RecordingError(f"{what} of {size} bytes; {LARGEST} at most are read")
    return size


def _unpack_chunk(data: memoryview) -> bytes:
    """Return the content of a chunk, checked against its size and checksum."""
    from mcap.data_stream import ReadDataStream
    from mcap.records import Chunk

    chunk = Chunk.read(ReadDataStream(io.BytesIO(data)))
    limit = _check_size(chunk.uncompressed_size, "a chunk")
    content = _decompress(chunk, limit)
    if len(content) != limit:
        raise RecordingError(f"a chunk holds {len(content)} bytes and says that it holds {limit}")
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise RecordingError("the checksum of a chunk is wrong")
    return content


def _decompress(chunk: Any, limit: int) -> bytes:
    """Return up to `limit` + 1 bytes, whatever the compressed data says of its size."""
    if chunk.compression == "":
        return chunk.data
    if chunk.compression == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(chunk.data) as reader:
            return reader.read(limit + 1)
    if chunk.compression == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=limit + 1)
    raise RecordingError(f"a chunk is compressed by {chunk.compression[:20]!r}; lz4 and zstd are known")


def _damages() -> tuple[type[Exception], ...]:
    """Return what parsing and unpacking raise for garbage."""
    import zstandard
    from mcap.exceptions import McapError

    return struct.error, McapError, UnicodeDecodeError, zstandard.ZstdError, RuntimeError, EOFError, MemoryError
