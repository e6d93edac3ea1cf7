"""Reads a file of rosbag2's SQLite storage, the default until ROS 2 Humble; it may come from a stranger."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from embodied_rl.deployment.recording.mcap_reader import LARGEST, RecordedChannel, RecordedMessage, RecordingError

_TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('topics', 'messages')"


class SqliteFile:
    """One file, with the attributes of a `McapFile`. It does not say when messages were published, only received."""

    def __init__(self, path: Path) -> None:
        self.path, self.complete = path, False

    def messages(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, of all by default, in the order of their times.

        Raises:
            RecordingError: the file cannot be read, or is no recording.
        """
        uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
                if database.execute(_TABLES).fetchone() != (2,):
                    raise RecordingError(f"{self.path} is no recording: it lacks the tables topics and messages.")
                yield from self._read(database, topics)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise RecordingError(f"{self.path} is damaged: {error}. Take another copy of it.") from error
        self.complete = True

    def _read(self, database: sqlite3.Connection, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        rows = database.execute("SELECT id, name, type, serialization_format FROM topics")
        channels = {number: RecordedChannel(str(name), str(kind), str(form), "") for number, name, kind, form in rows}
        wanted = [number for number, each in channels.items() if topics is None or each.topic in topics]
        marks = ",".join("?" * len(wanted))
        query = f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER BY timestamp, id"
        for number, time_ns, data in database.execute(query, wanted):
            if type(time_ns) is not int or time_ns < 0 or type(data) is not bytes:
                raise RecordingError(f"{self.path} is damaged: a message of {channels[number].topic[:100]!r}.")
            yield RecordedMessage(channels[number], data, time_ns, time_ns)
