"""A replay storage on disk: what is there after a kill at any moment, and what is refused."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embodied_rl.rollout.replay.storage as module
from embodied_rl.interfaces.sim import Camera, Source
from embodied_rl.rollout.replay.experience import open_offline
from embodied_rl.rollout.replay.format import FieldKind, ReplayError, ReplayFormat
from embodied_rl.rollout.replay.storage import PLAIN, ReplayStorage
from embodied_rl.system.atomic_write import StorageError
from tests.support.collecting import SPEC, half_skilled, inline, make
from tests.support.refusals import refuses
from tests.support.replaying import Script, assert_holds, assert_transition, everything, invented, layout

SMALL = layout(6, tracks=2)


def assert_same(left: ReplayStorage, right: ReplayStorage) -> None:
    """The same sample to the bit, and the same episodes."""
    assert len(left) == len(right) > 0
    samples = [storage.sample(300, np.random.default_rng(0)) for storage in (left, right)]
    for have, wanted in [samples, *zip(left.episodes(), right.episodes(), strict=True)]:
        for name in PLAIN:
            assert np.array_equal(getattr(have, name), getattr(wanted, name)), name
        for seen, other in ((have.observation, wanted.observation), (have.next_observation, wanted.next_observation)):
            assert all(np.array_equal(image, other.images[name]) for name, image in seen.images.items())
            assert np.array_equal(seen.state, other.state) and np.array_equal(seen.privileged, other.privileged)
            assert seen.instruction == other.instruction


@pytest.mark.thorough
@pytest.mark.parametrize("capacity", [200, 9])
def test_a_reopened_storage_equals_one_in_memory(tmp_path: Path, capacity: int) -> None:
    """Over a run that stops and goes on from its checkpoint: what follows the interruption belongs to what was before.

    Rows that were written after the checkpoint are taken out.
    """
    kept, folder, actor = layout(capacity, spare=12), tmp_path / "replay", half_skilled()
    in_memory = ReplayStorage(kept)
    collector, _ = make(inline(2), writers=[in_memory], actor=actor)
    with closing(ReplayStorage(kept, folder)) as on_disk:
        interrupted, _ = make(inline(2), writers=[on_disk], actor=actor)
        interrupted.collect(actor)
        state = interrupted.state() | on_disk.state()
        interrupted.collect(actor)
    with closing(ReplayStorage(kept, folder)) as reopened:
        resumed, _ = make(inline(2), writers=[reopened], actor=actor)
        resumed.load(state)
        reopened.load(state)
        for _ in range(2):
            collector.collect(actor)
        resumed.collect(actor)
        assert_same(reopened, in_memory)
    assert_same(ReplayStorage.open(folder), in_memory)
    assert_same(reopened, in_memory)


class Killed(BaseException):
    """Where the process would have ended."""


class Fragile(np.ndarray):
    """An array that survives so many stores, of all such arrays together."""

    left = -1

    def __setitem__(self, where, values):
        Fragile.left -= 1
        if Fragile.left == 0:
            raise Killed
        super().__setitem__(where, values)


def events(script: Script) -> None:
    """Everything that stores: decisions, results, a truncation, a termination, a loss."""
    script.decide([0, 1])
    script.finish([0, 1], ["truncated", ""])
    script.decide([1, 0])
    script.finish([1, 0], ["terminated", ""])
    script.decide([0])
    script.lose([0])


def interrupted(folder: Path, before: Path, stores: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Copy the storage `before`, let `events` begin there, and end at a store; False where there are not so many."""
    shutil.copytree(before, folder)
    plain = module.open_arrays
    with monkeypatch.context() as patched:
        patched.setattr(module, "open_arrays", lambda *args: {k: v.view(Fragile) for k, v in plain(*args).items()})
        with closing(ReplayStorage(SMALL, folder)) as storage:
            script = Script(storage, next_index=100)
            Fragile.left = stores
            try:
                events(script)
            except Killed:
                return True
    return False


def assert_invented(storage: ReplayStorage) -> set[tuple[int, int]]:
    """Every transition is one that was written, whole; returns which there are."""
    found = everything(storage)
    for (episode, decision), (sample, row) in found.items():
        end = "terminated" * int(sample.terminated[row]) + "truncated" * int(sample.truncated[row])
        assert_transition(sample, row, invented(episode, decision, end))
    return found.keys()


@pytest.mark.thorough
def test_a_process_that_ends_between_any_two_stores_leaves_a_storage_that_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each store of a series of events, on rings that have gone round: only whole transitions, at least those that
    would have been there before and after; then writing goes on."""
    with closing(ReplayStorage(SMALL, tmp_path / "before")) as storage:
        script = Script(storage)
        for _ in range(5):
            events(script)
        before = assert_invented(storage)
    assert not interrupted(tmp_path / "after", tmp_path / "before", 0, monkeypatch)
    after = assert_invented(ReplayStorage.open(tmp_path / "after"))
    assert len(before & after) > 1 and len(after - before) > 2
    stores = 1
    while interrupted(folder := tmp_path / f"{stores}", tmp_path / "before", stores, monkeypatch):
        with closing(ReplayStorage(SMALL, folder)) as storage:
            assert before & after <= assert_invented(storage)
            script = Script(storage, next_index=900)
            events(script)
            assert set(script.expected()) <= assert_invented(storage)
        shutil.rmtree(folder)
        stores += 1
    assert stores > 100


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (layout(7, tracks=2), "capacity is 6 there, and 7 here"),
        (layout(6, tracks=3), "tracks is 2"),
        (layout(6, tracks=2, executed=1), "executed is 4"),
        (ReplayFormat.of_simulator(replace(SPEC, control_hz=20.0), 2, 6, 4), "control_hz is 10.0"),
        (
            ReplayFormat.of_simulator(replace(SPEC, state_names=("x", "y", "z")), 2, 6, 4),
            "'last_x'",
        ),
        (
            ReplayFormat.of_simulator(replace(SPEC, cameras=(Camera("top", 16, 8),)), 2, 6, 4),
            "images/top",
        ),
    ],
)
def test_a_folder_of_another_shape_is_refused(tmp_path: Path, other: ReplayFormat, named: str) -> None:
    ReplayStorage(SMALL, tmp_path / "replay").close()
    with refuses("replay-format-mismatch", tmp_path / "replay", named):
        ReplayStorage(other, tmp_path / "replay")
    ReplayStorage(SMALL, tmp_path / "replay").close()


def test_another_version_is_refused(tmp_path: Path) -> None:
    ReplayStorage(SMALL, tmp_path / "replay").close()
    file = tmp_path / "replay" / "format.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 7}))
    for make_storage in (ReplayStorage.open, lambda folder: ReplayStorage(SMALL, folder)):
        with refuses("replay-version-mismatch", file, 7):
            make_storage(tmp_path / "replay")


def write_header(folder: Path) -> None:
    """Write a header that NumPy's reader rejects with an unusual error."""
    header = b"(\n" * 100
    (folder / "state.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def cut(folder: Path) -> None:
    os.truncate(folder / "state.npy", 150)


def exchange(folder: Path) -> None:
    shutil.copy(folder / "privileged.npy", folder / "action.npy")


def move(folder: Path) -> None:
    rows = np.load(folder / "row.npy", mmap_mode="r+")
    rows[0, 3] = 2


def zipped(folder: Path) -> Path:
    """A file of several arrays."""
    np.savez(folder / "several.npz", steps=np.zeros(3))
    return folder / "several.npz"


@pytest.mark.parametrize("file", ["texts.jsonl", "steps.npy", "format.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_read(tmp_path: Path, file: str) -> None:
    ReplayStorage(SMALL, tmp_path / "replay").close()
    (tmp_path / "replay" / file).unlink()
    os.mkfifo(tmp_path / "replay" / file)
    with refuses("file-special", file, kind=ReplayError):
        ReplayStorage.open(tmp_path / "replay")


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("steps", 9), ("instruction", -1), ("instruction", 99), ("task", 99), ("source", 9)],
)
def test_a_number_out_of_its_range_is_refused_before_it_is_used(tmp_path: Path, field: str, value: int) -> None:
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        events(Script(storage))
    array = np.load(tmp_path / "replay" / f"{field}.npy", mmap_mode="r+")
    array[:] = value
    array.flush()
    for make_storage in (ReplayStorage.open, lambda folder: ReplayStorage(SMALL, folder)):
        with refuses("replay-damaged", field, kind=ReplayError):
            make_storage(tmp_path / "replay")


@pytest.mark.parametrize("field", ["reward", "state", "privileged", "executed"])
def test_a_number_that_is_not_finite_is_refused_before_it_is_learned(tmp_path: Path, field: str) -> None:
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        events(Script(storage))
    array = np.load(tmp_path / "replay" / f"{field}.npy", mmap_mode="r+")
    array[:] = np.nan
    array.flush()
    with refuses("replay-damaged", field, kind=ReplayError):
        ReplayStorage.open(tmp_path / "replay")


@pytest.mark.parametrize(
    ("value", "source", "refused"),
    [
        (2.9, Source.POLICY, False),
        (-2.9, Source.POLICY, False),
        (3.1, Source.POLICY, True),
        (-3.1, Source.POLICY, True),
        (1e4, Source.HUMAN, False),
    ],
)
def test_actions_of_a_policy_far_outside_of_the_limits_are_refused(
    tmp_path: Path, value: float, source: Source, refused: bool
) -> None:
    """By the entry: the limits are -1 and 1, which a robot may exceed by their distance, and an operator by more."""
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        events(Script(storage))
    assert (SMALL.action_low[1], SMALL.action_high[1]) == (-1, 1)
    np.load(tmp_path / "replay" / "executed.npy", mmap_mode="r+")[..., 1] = value
    np.load(tmp_path / "replay" / "source.npy", mmap_mode="r+")[:] = source
    named = SMALL.action_names[1], f"{value:g}"
    with refuses("replay-damaged", *named, kind=ReplayError) if refused else nullcontext():
        ReplayStorage.open(tmp_path / "replay")


@pytest.mark.parametrize(("field", "value"), [("instruction", 99), ("state", np.inf)])
def test_the_final_observation_of_an_episode_is_checked_too(tmp_path: Path, field: str, value: float) -> None:
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        script = Script(storage)
        script.decide([0])
        script.finish([0], ["truncated"])
    final = np.load(tmp_path / "replay" / "kind.npy") == FieldKind.FINAL
    array = np.load(tmp_path / "replay" / f"{field}.npy", mmap_mode="r+")
    assert final.sum() == 1
    array[final] = value
    array.flush()
    with refuses("replay-damaged", field, kind=ReplayError):
        ReplayStorage.open(tmp_path / "replay")


def described(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Damage that changes the entries of format.json."""

    def damage(folder: Path) -> None:
        entries = json.loads((folder / "format.json").read_text())
        change(entries)
        (folder / "format.json").write_text(json.dumps(entries))

    return damage


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (described(lambda entries: entries.update(control_hz=0)), "control_hz"),
        (described(lambda entries: entries["cameras"].append("gone")), "images/gone"),
        (described(lambda entries: entries["fields"].pop("privileged")), "privileged"),
        (described(lambda entries: entries["fields"]["reward"].update(shape=[6])), "reward"),
        (described(lambda entries: entries["fields"].update(other={"shape": [], "dtype": "<f4"})), "other"),
        (lambda folder: (folder / "texts.jsonl").write_text('"\\ud800"\n'), "texts.jsonl"),
        (cut, "state.npy"),
        (write_header, "state.npy"),
        (lambda folder: (folder / "reward.npy").unlink(), "reward.npy"),
        (exchange, "action.npy holds <f4 [2, 6, 3]"),
        (lambda folder: (folder / "format.json").unlink(), ""),
        (lambda folder: (folder / "format.json").write_text("{}"), "format.json"),
        (lambda folder: (folder / "format.json").write_text(SMALL.to_json().replace('"tracks": 2', '"tracks": 0')), ""),
        (lambda folder: (folder / "texts.jsonl").write_text("go\n"), "texts.jsonl"),
        (lambda folder: (folder / "texts.jsonl").write_text('{"go": 1}\n'), "texts.jsonl"),
        (lambda folder: (folder / "steps.npy").write_bytes(b""), "steps.npy"),
        (lambda folder: shutil.move(zipped(folder), folder / "steps.npy"), "steps.npy"),
        (move, ""),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Callable, named: str) -> None:
    ReplayStorage(SMALL, tmp_path / "replay").close()
    damage(tmp_path / "replay")
    code = "replay-damaged" if (tmp_path / "replay" / "format.json").exists() else "replay-missing"
    for make_storage in (ReplayStorage.open, lambda folder: ReplayStorage(SMALL, folder)):
        with refuses(code, named, kind=ReplayError):
            make_storage(tmp_path / "replay")


def test_texts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    ReplayStorage(SMALL, tmp_path / "replay").close()
    (tmp_path / "replay" / "texts.jsonl").unlink()
    (tmp_path / "replay" / "texts.jsonl").mkdir()
    with refuses("replay-damaged", "texts.jsonl", kind=ReplayError):
        open_offline(tmp_path / "replay", SPEC)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with refuses("replay-missing", tmp_path):
        ReplayStorage(SMALL, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_one_process_writes_and_one_that_reads_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    with closing(ReplayStorage(SMALL, folder)) as storage:
        events(Script(storage))
        with refuses("replay-locked", folder):
            ReplayStorage(SMALL, folder)
        with refuses("replay-read-only"):
            Script(ReplayStorage.open(folder)).decide([0])
    with refuses("replay-read-only"):
        Script(storage).lose([0])
    ReplayStorage(SMALL, folder).close()


def test_a_text_that_was_half_written_is_forgotten(tmp_path: Path) -> None:
    """The next text begins on a new line."""
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        script = Script(storage)
        events(script)
    texts = tmp_path / "replay" / "texts.jsonl"
    lines = texts.read_text().count("\n")
    with texts.open("ab") as file:
        file.write(b'"go le')
    assert_holds(ReplayStorage.open(tmp_path / "replay"), script.expected())
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        more = Script(storage, tracks=script.tracks, next_index=57)
        events(more)
        assert_holds(storage, more.expected())
    assert texts.read_text().count("\n") > lines
    assert_holds(ReplayStorage.open(tmp_path / "replay"), more.expected())


def test_a_full_disk_is_an_error_when_the_storage_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing behind."""

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="The disk is full"):
        ReplayStorage(SMALL, tmp_path / "replay")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_later_is_named(
    tmp_path: Path, files_up_to: Callable[[int], AbstractContextManager[None]]
) -> None:
    """Though it took a part of a text, which the next process forgets."""
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        events(script := Script(storage))
        taken = (tmp_path / "replay" / "texts.jsonl").stat().st_size
        with files_up_to(taken + 5), refuses("disk-full", "texts.jsonl", kind=StorageError):
            storage._texts.number("a task that is new")
    assert (tmp_path / "replay" / "texts.jsonl").stat().st_size == taken + 5
    with closing(ReplayStorage(SMALL, tmp_path / "replay")) as storage:
        assert storage._texts.number("a task that is new") == len(storage._texts) - 1
        assert_holds(storage, script.expected())


def test_the_space_is_taken_at_once(tmp_path: Path) -> None:
    with closing(ReplayStorage(layout(2000), tmp_path / "replay")) as storage:
        taken = sum(file.stat().st_blocks * 512 for file in (tmp_path / "replay").iterdir())
        assert taken >= storage.nbytes


def test_the_example_of_the_documentation_reads_the_sampled_rows(tmp_path: Path) -> None:
    """With NumPy alone: it is run as it stands."""
    folder, rng = tmp_path / "replay", np.random.default_rng(5)
    with closing(ReplayStorage(layout(12, tracks=3), folder)) as storage:
        script = Script(storage)
        for _ in range(30):
            script.step(rng)
    document = Path(__file__).parents[3] / "docs" / "replay.md"
    example = re.search(r"```python\n(# With NumPy alone.*?)```", document.read_text("utf-8"), re.DOTALL)
    assert example is not None and "embodied_rl" not in example[1]
    names: dict = {}
    exec(example[1].replace("runs/replay", str(folder)), names)
    expected, tracks, slots = script.expected(), names["tracks"], names["slots"]
    assert len(tracks) == len(expected)
    for position, (track, slot) in enumerate(zip(tracks, slots, strict=True)):
        row = expected[names["field"]["episode"][track, slot], names["field"]["decision"][track, slot]]
        assert np.array_equal(names["image"][position], row["observation"].images["top"][0])
        assert names["instruction"][position] == row["observation"].instruction[0]
        if not row["terminated"]:
            assert np.array_equal(names["next_image"][position], row["next"].images["top"][0])
