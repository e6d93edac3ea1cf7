"""A storage that is read while another process writes to it: what is shown is what a state of the writer says."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.followed_storage import FollowedStorage, follow_storage
from embodied_rl.rollout.replay.format import ReplayError
from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.support.refusals import refuses
from tests.support.replaying import Script, assert_holds, layout

STEPS, ROUNDS = 6, 8
LAYOUT = layout(12, tracks=3, spare=2 * STEPS)


def write_round(script: Script, rng: np.random.Generator, steps: int = STEPS) -> None:
    """Decisions, results, losses and new instructions: at most two rows of a track each, as many as are spare."""
    for _ in range(steps):
        script.step(rng)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_later_rows_and_losses_are_not_seen(seed: int, tmp_path: Path) -> None:
    followed, rng = follow_storage(LAYOUT, tmp_path, 5), np.random.default_rng(seed)
    with closing(ReplayStorage(LAYOUT, tmp_path / "collector_5")) as storage:
        script, lost, shown = Script(storage), 0, None
        assert len(followed) == 0 and followed.list_episodes() == []
        for _ in range(ROUNDS):
            write_round(script, rng)
            state, expected = storage.state(), script.expected()
            episodes = [each.slots.tolist() for each in storage.list_episodes()]
            for _ in range(2):  # the writer goes on before it is shown, and afterwards
                write_round(script, rng, STEPS // 2)
                if state is not shown:
                    followed.advance(shown := state)
                assert_holds(followed, expected)
                assert [each.slots.tolist() for each in followed.list_episodes()] == episodes
            lost += len(expected.keys() - {key for track in script.tracks for key in numbers(track)})
    assert lost, "some episodes that were seen were lost later"


def numbers(track: list[dict]) -> set[tuple[int, int]]:
    """The decisions that were not lost."""
    return {(row["episode"], row["decision"]) for row in track if row["kind"] == "decision"}


def test_as_many_rows_as_are_spare_may_follow(tmp_path: Path) -> None:
    """Every decision is cut by the time limit, so that it takes two rows; one row more overwrites what is seen."""
    followed = follow_storage(LAYOUT, tmp_path, 0)
    with closing(ReplayStorage(LAYOUT, tmp_path / "collector_0")) as storage:
        script = Script(storage)
        for _ in range(3 * STEPS):
            script.decide([0])
            script.finish([0], ["truncated"])
        followed.advance(storage.state())
        expected = script.expected()
        for _ in range(STEPS):
            script.decide([0])
            script.finish([0], ["truncated"])
        assert_holds(followed, expected)
        script.decide([0])
        with pytest.raises(AssertionError):
            assert_holds(followed, expected)


def test_a_state_of_another_storage_is_refused(tmp_path: Path) -> None:
    followed = follow_storage(LAYOUT, tmp_path, 0)
    with refuses("replay-checkpoint-mismatch", "collector_0", kind=ReplayError):
        followed.advance({"replay/rows": np.array([0, 1, 0]), "replay/lost": np.zeros(3, bool)})
    with refuses("replay-read-only", kind=ReplayError):
        followed.clear()


WRITER = """
import sys
import numpy as np
from pathlib import Path
from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.rollout.replay.test_followed_storage import LAYOUT, write_round
from tests.support.replaying import Script
storage, rng = ReplayStorage(LAYOUT, Path(sys.argv[1])), np.random.default_rng(7)
script = Script(storage)
for line in sys.stdin:
    write_round(script, rng)
    state = storage.state()
    print(*state["replay/rows"], *state["replay/lost"].astype(int), flush=True)
"""


@contextmanager
def writing(folder: Path) -> Iterator[subprocess.Popen]:
    """A process that writes a round of a fixed script for each line that it reads, and then prints its state."""
    words = [sys.executable, "-c", WRITER, str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.thorough
@pytest.mark.process
def test_a_reader_sees_what_was_written_before_while_another_process_goes_on(tmp_path: Path) -> None:
    """Compared with the same script written in memory, while the other process writes the next round."""
    followed, rng = follow_storage(LAYOUT, tmp_path, 0), np.random.default_rng(7)
    script = Script(ReplayStorage(LAYOUT))
    with writing(tmp_path / "collector_0") as process:
        assert process.stdin is not None and process.stdout is not None
        print("go", file=process.stdin, flush=True)
        for _ in range(ROUNDS):
            state = parse(process.stdout.readline())
            write_round(script, rng)
            expected = script.expected()
            assert np.array_equal(state["replay/rows"], script.storage.state()["replay/rows"])
            print("go", file=process.stdin, flush=True)
            for _ in range(20):
                followed.advance(state)
                assert_holds(followed, expected)


def parse(line: str) -> dict[str, Array]:
    """The state that the other process printed."""
    rows, lost = np.array(line.split(), np.int64).reshape(2, -1)
    return {"replay/rows": rows, "replay/lost": lost.astype(bool)}


def test_what_is_followed_is_no_storage(tmp_path: Path) -> None:
    with refuses("replay-missing", kind=ReplayError):
        FollowedStorage(tmp_path)
