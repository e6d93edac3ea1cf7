"""Signals of recorded episodes equal what was written, to the bit, from a storage, a run and a dataset."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.datasets.lerobot.collected import PROPOSED, VALID
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.info import Feature
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.replay.format import ReplayError
from embodied_rl.rollout.replay.signals import ViewedEpisode, list_episodes, list_names
from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.support.collecting import SPEC
from tests.support.making_datasets import FPS, NUMBERS, PNG, frame, frames, length, made, task
from tests.support.refusals import refuses
from tests.support.replaying import Script, layout, observation

LENGTHS, ENDS = (3, 2), ("terminated", "truncated")


def write_storage(folder: Path, first: int = 0) -> list[list[dict]]:
    """Write an episode that terminates and one that is truncated; return their decisions as a naive recorder does."""
    storage = ReplayStorage(layout(20, tracks=2), folder)
    script = Script(storage, next_index=first)
    for track, (decisions, end) in enumerate(zip(LENGTHS, ENDS, strict=True)):
        for number in range(decisions):
            script.decide([track])
            script.finish([track], [end if number == decisions - 1 else ""])
    storage.close()
    return [[row for row in track if row["kind"] == "decision"] for track in script.tracks]


def read(episode: ViewedEpisode) -> dict[tuple[str, ...], list]:
    """Steps, values and names of each signal by path; pictures that came in several parts are joined."""
    found: dict[tuple[str, ...], list] = {}
    for signal in episode.read():
        if signal.path in found:
            assert signal.path[0] == "camera"
            steps, values, _ = found[signal.path]
            found[signal.path][:2] = np.append(steps, signal.steps), np.concatenate([values, signal.values])
        else:
            found[signal.path] = [signal.steps, signal.values, tuple(signal.names)]
    return found


def assert_signal(found: list, steps: object, values: object, names: tuple[str, ...] = ()) -> None:
    np.testing.assert_array_equal(found[0], steps)
    np.testing.assert_array_equal(found[1], values)
    assert found[2] == names


def assert_stored(episode: ViewedEpisode, rows: list[dict], end: str) -> None:
    """All that a naive recorder noted of an episode, and nothing else."""
    found, steps = read(episode), np.array([row["steps"] for row in rows])
    first, every = np.cumsum(steps) - steps, np.arange(steps.sum())

    def executed(name: str) -> np.ndarray:
        return np.concatenate([row[name][: row["steps"]] for row in rows])

    assert_signal(found.pop(("action", "chosen")), every, executed("action"), SPEC.action_names)
    assert_signal(found.pop(("action", "executed")), every, executed("executed"), SPEC.action_names)
    assert_signal(found.pop(("reward",)), every, executed("reward")[:, None], ("reward",))
    assert_signal(found.pop(("success",)), every, executed("success")[:, None], ("success",))
    assert_signal(found.pop(("source",)), every, [Source(each).name.lower() for each in executed("source")])
    texts = [row["observation"].instruction[0] for row in rows for _ in range(row["steps"])]
    assert_signal(found.pop(("instruction",)), every, texts)
    assert_signal(found.pop(("decision", "version")), first, [[row["version"]] for row in rows], ("0",))
    seen, when = [row["observation"] for row in rows], first
    if end == "truncated":
        seen, when = [*seen, observation([rows[0]["episode"]], [len(rows)])], np.append(first, steps.sum())
    assert_signal(found.pop(("state",)), when, np.concatenate([each.state for each in seen]), SPEC.state_names)
    privileged = np.concatenate([each.privileged for each in seen])
    assert_signal(found.pop(("privileged",)), when, privileged, SPEC.privileged_names)
    assert_signal(found.pop(("camera", "top")), when, np.concatenate([each.images["top"] for each in seen]))
    assert not found
    assert episode.rate == SPEC.control_hz and episode.cameras == ("top",)
    assert str(rows[0]["seed"]) in episode.title and SPEC.tasks[rows[0]["task"]].name in episode.title
    outcome = "success" if executed("success")[-1] else "failure"
    assert episode.title.endswith(outcome)


def test_a_storage_shows_what_was_written(tmp_path: Path) -> None:
    written = write_storage(tmp_path / "storage")
    episodes, left_out = list_episodes(tmp_path / "storage")
    assert not left_out
    for episode, rows, end in zip(episodes, written, ENDS, strict=True):
        assert_stored(episode, rows, end)


def test_what_a_storage_keeps_of_decisions_is_shown(tmp_path: Path) -> None:
    from embodied_rl.rollout.replay.format import ReplayField

    extra = {"log_prob": ReplayField((4, 2), "float32")}
    storage = ReplayStorage(layout(20, tracks=1, extra=extra), tmp_path / "storage")
    script = Script(storage)
    for end in ("", "terminated"):
        script.decide([0])
        script.finish([0], [end])
    storage.close()
    steps, values, names = read(list_episodes(tmp_path / "storage")[0][0])["decision", "log_prob"]
    track = np.zeros(2, np.int64)
    np.testing.assert_array_equal(values, storage.read_field("log_prob", track, np.arange(2)).reshape(2, 8))
    assert steps.tolist() == [0, 1] and names == tuple("01234567") and np.unique(values).size > 1


def test_a_run_shows_the_episodes_of_all_its_storages_in_order_of_time(tmp_path: Path) -> None:
    write_storage(tmp_path / "replay" / "collector_0", first=2)
    write_storage(tmp_path / "replay" / "collector_1", first=0)
    for folder in (tmp_path, tmp_path / "replay"):
        episodes, _ = list_episodes(folder)
        assert [each.title.split(":")[0] for each in episodes] == [f"episode {number}" for number in range(4)]


def test_a_dataset_shows_what_was_written(tmp_path: Path) -> None:
    note = {"note": Feature("string", (1,))}
    features = PNG | NUMBERS | note
    with DatasetWriter(tmp_path / "data", features, FPS, "toy") as writer:
        for number in range(2):
            writer.add_episode((each | {"note": "well"} for each in frames(number, PNG | NUMBERS)), task(number))
    episodes, left_out = list_episodes(tmp_path / "data")
    assert left_out == ["note"]
    for index, episode in enumerate(episodes):
        found, steps = read(episode), np.arange(length(index))
        rows = [frame(index, step, PNG | NUMBERS) for step in steps]

        def column(name: str, rows: list[dict] = rows) -> np.ndarray:
            return np.stack([np.asarray(row[name], NUMBERS[name].dtype).ravel() for row in rows])

        assert_signal(found.pop(("state",)), steps, column("observation.state"), ("a", "b", "c"))
        assert_signal(found.pop(("action", "executed")), steps, column("action"), ("x", "y"))
        assert_signal(found.pop(("reward",)), steps, column("next.reward"), ("0",))
        assert_signal(found.pop(("feature", "next.done")), steps, column("next.done"), ("0",))
        assert_signal(found.pop(("feature", "forces")), steps, column("forces"), tuple("012345"))
        assert_signal(found.pop(("source",)), steps, [Source(row["source"]).name.lower() for row in rows])
        assert_signal(found.pop(("instruction",)), steps, [task(index)] * len(rows))
        pictures = np.stack([row["observation.images.wrist"] for row in rows])
        assert_signal(found.pop(("camera", "wrist")), steps, pictures)
        assert not found
        assert (episode.rate, episode.cameras) == (FPS, ("wrist",)) and task(index) in episode.title


def test_pictures_of_a_video_are_decoded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.rollout.replay.signals.AT_ONCE", 3)
    folder = made(tmp_path / "data", 2)
    dataset = LeRobotDataset(folder)
    steps, values, _ = read(list_episodes(folder)[0][1])["camera", "front"]
    rows = np.arange(dataset.starts[1], dataset.stops[1])
    np.testing.assert_array_equal(values, dataset.images("front", rows))
    assert steps.tolist() == list(range(len(rows))) and len(rows) > 3


def test_a_chosen_action_is_shown_where_there_was_one(tmp_path: Path) -> None:
    features = {"action": Feature("float32", (2,)), PROPOSED: Feature("float32", (2,)), VALID: Feature("bool", (1,))}
    rows = [{"action": [n, 0.0], PROPOSED: [n, 1.0], VALID: n != 1} for n in range(3)]
    with DatasetWriter(tmp_path / "data", features, FPS, "toy") as writer:
        writer.add_episode(iter(rows), "go")
    found = read(list_episodes(tmp_path / "data")[0][0])
    assert_signal(found["action", "chosen"], [0, 2], [[0, 1], [2, 1]], ("0", "1"))
    assert_signal(found["action", "executed"], range(3), [[n, 0] for n in range(3)], ("0", "1"))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [(["a", "b"], "ab"), ({"motors": ["a"], "tool": ["b"]}, "ab"), (["a"], "01"), ({"axis": 3}, "01"), (None, "01")],
)
def test_names_that_do_not_fit_are_positions(names: object, wanted: str) -> None:
    assert list_names(names, 2) == list(wanted)


def test_an_unknown_source_of_a_dataset_is_a_number(tmp_path: Path) -> None:
    features = {"action": Feature("float32", (1,)), "source": Feature("uint8", (1,))}
    with DatasetWriter(tmp_path / "data", features, FPS, "toy") as writer:
        writer.add_episode(iter([{"action": [0.0], "source": 9}]), "go")
    found = read(list_episodes(tmp_path / "data")[0][0])
    assert_signal(found["feature", "source"], [0], [[9]], ("0",))
    assert ("source",) not in found


@pytest.mark.parametrize("name", ["nothing", "", "file"])
def test_a_source_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with refuses("source-unknown", tmp_path / name):
        list_episodes(tmp_path / name)


def test_a_storage_that_is_written_is_refused(tmp_path: Path) -> None:
    write_storage(tmp_path / "storage")
    writing = ReplayStorage(layout(20, tracks=2), tmp_path / "storage")
    with refuses("replay-locked", tmp_path / "storage", kind=ReplayError):
        list_episodes(tmp_path / "storage")
    writing.close()
    assert len(list_episodes(tmp_path / "storage")[0]) == 2
    ReplayStorage(layout(20, tracks=2), tmp_path / "storage").close()  # looking left no lock


def test_a_storage_is_not_read_through_a_link(tmp_path: Path) -> None:
    write_storage(tmp_path / "run" / "replay" / "collector_0")
    file = tmp_path / "run" / "replay" / "collector_0" / "state.npy"
    file.rename(tmp_path / "state.npy")
    file.symlink_to(tmp_path / "state.npy")
    with refuses("link-outside-folder", file, kind=UserError):
        list_episodes(tmp_path / "run")
