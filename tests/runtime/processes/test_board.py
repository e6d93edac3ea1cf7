"""A board holds the newest message, complete, for this process and its workers."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from embodied_rl.runtime.processes.board import SharedBoard, SharedBoardReader
from embodied_rl.runtime.processes.handle import Deadlines, NodeShare
from embodied_rl.runtime.processes.local import LocalRuntime


@pytest.fixture
def board() -> Iterator[SharedBoard]:
    made = SharedBoard()
    yield made
    made.close()


def test_the_newest_message_is_read(board: SharedBoard) -> None:
    reader = board.reader()
    assert reader.newest() is None
    board.publish(3, {"weights": np.arange(5.0), "noise": 0.5})
    found = reader.newest()
    assert found is not None and found[0] == 3 and found[1]["noise"] == 0.5
    np.testing.assert_array_equal(found[1]["weights"], np.arange(5.0))
    assert reader.newest(above=3) is None
    board.publish(4, "short")
    board.publish(7, np.zeros(100_000, np.uint8))  # more than there was room for
    found = reader.newest(above=3)
    assert found is not None and found[0] == 7 and found[1].nbytes == 100_000


@pytest.mark.thorough
def test_readers_get_complete_messages(board: SharedBoard) -> None:
    """Messages of one value each, of changing lengths, while a reader copies as fast as it can."""
    reader, read = board.reader(), 0
    board.publish(0, np.zeros(200_000, np.int64))
    done = threading.Event()

    def publish() -> None:
        for version in range(1, 400):
            board.publish(version, np.full(200_000 + 17 * (version % 5), version))
        done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    last = -1
    while not (done.is_set() and last == 399):
        if (found := reader.newest(last)) is not None:
            version, message = found
            assert version > last and (message == version).all()
            last, read = version, read + 1
    publisher.join()
    assert read > 10


@pytest.mark.parametrize(("overtaken", "version"), [(1, 1), (2, 3)])
def test_messages_published_during_a_read(
    overtaken: int, version: int, board: SharedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One new message leaves the old one readable; two overwrite it, and the newest is read instead."""
    board.publish(1, "first")
    reader, look = board.reader(), SharedBoardReader._records
    left = [f"later {number}" for number in range(overtaken)]

    def records(self: SharedBoardReader) -> list[tuple[int, int, int, int]]:
        found = look(self)
        while left:  # between the look and the copy
            board.publish(2 + overtaken - len(left), left.pop(0))
        return found

    monkeypatch.setattr(SharedBoardReader, "_records", records)
    assert reader.newest() == (version, "first" if version == 1 else "later 1")


@pytest.mark.thorough
@pytest.mark.process
def test_workers_and_their_replacements_read_later_messages() -> None:
    runtime = LocalRuntime()
    board = runtime.board()
    handle = runtime.worker(
        "tests.support.reading:Reading",
        {"board": board.reader()},
        name="reader",
        deadlines=Deadlines(),
        share=NodeShare(),
    )
    assert handle.submit("newest", -1).result() is None
    board.publish(2, np.arange(3))
    version, message = handle.submit("newest", -1).result()
    assert version == 2 and message.tolist() == [0, 1, 2]
    handle.restart()
    board.publish(5, "more")
    assert handle.submit("newest", 2).result() == (5, "more")
    handle.close()
    board.close()
