"""Batches of a dataset: every frame once in an epoch, in an order that depends on the seed and can be resumed."""

import itertools
import json

import numpy as np
import pytest

from embodied_rl.datasets.lerobot.dataset_reader import DatasetSamples, LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.stream import SampleStream, Shuffle
from tests.support.making_datasets import FEATURES, FPS, frame, made, record, where
from tests.support.refusals import refuses

SMALL = Shuffle(seed=3, run=4, buffer=20)
ALL = list(range(72))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> LeRobotDataset:
    """Nine episodes, 72 frames."""
    return LeRobotDataset(made(tmp_path_factory.mktemp("stream") / "data", 9))


def rows(batches) -> list[int]:
    return [int(row) for batch in batches for row in batch.row]


def assert_same(left: DatasetSamples, right: DatasetSamples) -> None:
    for name in ("row", "episode", "actions", "padding"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    for camera, image in left.observation.images.items():
        np.testing.assert_array_equal(image, right.observation.images[camera])
    np.testing.assert_array_equal(left.observation.state, right.observation.state)
    assert left.observation.instruction == right.observation.instruction
    for name, array in left.extra.items():
        np.testing.assert_array_equal(array, right.extra[name])


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [1, 7, 72, 100])
def test_every_frame_comes_once_an_epoch(dataset, batch) -> None:
    """All batches but the last are full; epochs have different orders."""
    batches = list(SampleStream(dataset, batch, shuffle=SMALL, epochs=2))
    assert [len(part) for part in batches[:-1]] == [batch] * (len(batches) - 1)
    order = rows(batches)
    assert sorted(order[:72]) == sorted(order[72:]) == ALL
    assert order[:72] != order[72:] and order[:72] != ALL


def test_batches_hold_the_frames_of_the_dataset(dataset) -> None:
    """Shuffling keeps picture, chunk, text and numbers of a frame together."""
    places = where(dataset)
    for batch in SampleStream(dataset, 11, 3, SMALL, epochs=1):
        assert_same(batch, dataset.read(batch.row, 3))
        for position, row in enumerate(batch.row.tolist()):
            wanted = frame(*places[row])
            np.testing.assert_array_equal(
                batch.observation.images["wrist"][position], wanted["observation.images.wrist"]
            )
            np.testing.assert_array_equal(batch.actions[position, 0], wanted["action"])


def test_the_seed_fixes_the_order(dataset) -> None:
    same, again, other = (
        rows(itertools.islice(SampleStream(dataset, 8, shuffle=Shuffle(seed, 4, 20)), 20)) for seed in (0, 0, 1)
    )
    assert same == again != other
    for parts in (Shuffle(0, 100, 100), Shuffle(1, 100, 100)):  # a single run: all is in mixing the pool
        orders = rows(SampleStream(dataset, 11, shuffle=parts, episodes=[2], epochs=2))
        assert orders[:11] != orders[11:] and orders[:11] != other[:11]
        other = orders


@pytest.mark.thorough
def test_frames_are_mixed_over_the_dataset(dataset) -> None:
    """Batches hold many episodes, and positions in the order do not depend on those in the dataset."""
    orders = np.array([rows(SampleStream(dataset, 72, shuffle=Shuffle(seed, 2, 24), epochs=1)) for seed in range(200)])
    assert abs(orders.mean(axis=0) - 35.5).max() < 6  # standard error 20.8 / √200 = 1.5
    assert np.mean([len(set(dataset.episode_of(order[:8]).tolist())) for order in orders]) > 4
    assert np.mean(np.diff(orders, axis=1) == 1) < 0.06  # in a pool of 24, one in 24 by chance


@pytest.mark.parametrize("shuffle", [SMALL, Shuffle(ordered=True, buffer=10), Shuffle(run=1, buffer=1000)])
def test_a_cursor_continues_exactly(dataset, shuffle) -> None:
    """From any batch, stored as JSON, into the next epochs."""
    whole = SampleStream(dataset, 10, 2, shuffle)
    batches, cursors = [], [whole.cursor]
    for _ in range(18):
        batches.append(next(whole))
        cursors.append(whole.cursor)
    for number in range(0, 18, 3):
        continued = SampleStream(dataset, 10, 2, shuffle, cursor=json.loads(json.dumps(cursors[number])))
        for batch, cursor in zip(batches[number : number + 4], cursors[number + 1 :], strict=False):
            assert_same(next(continued), batch)
            assert continued.cursor == cursor


def test_a_cursor_ends_with_the_epochs(dataset) -> None:
    stream = SampleStream(dataset, 50, shuffle=SMALL, epochs=1)
    first = next(stream)
    rest = list(SampleStream(dataset, 50, shuffle=SMALL, epochs=1, cursor=stream.cursor))
    assert sorted(rows([first, *rest])) == ALL


def test_episodes_can_be_selected(dataset) -> None:
    """Without shuffling, their order is the given one."""
    mixed = SampleStream(dataset, 5, shuffle=SMALL, episodes=[1, 4], epochs=1)
    wanted = [
        row for episode in (1, 4) for row in range(dataset.episodes[episode].start, dataset.episodes[episode].stop)
    ]
    assert sorted(rows(mixed)) == wanted
    plain = SampleStream(dataset, 5, shuffle=Shuffle(ordered=True, run=3, buffer=7), episodes=[4, 1], epochs=1)
    assert rows(plain) == wanted[8:] + wanted[:8]


@pytest.mark.thorough
def test_a_cursor_of_another_stream_is_refused(dataset, tmp_path) -> None:
    cursor = SampleStream(dataset, 5, shuffle=SMALL).cursor
    with refuses("cursor-mismatch", "'seed'", "3", "0"):
        SampleStream(dataset, 5, shuffle=Shuffle(0, 4, 20), cursor=cursor)
    with refuses("cursor-mismatch", "'chosen'"):
        SampleStream(dataset, 5, shuffle=SMALL, episodes=[0, 1], cursor=cursor)
    made(tmp_path / "data", 9)
    with DatasetWriter(tmp_path / "data", FEATURES, FPS) as writer:
        record(writer, range(9, 10))
    with refuses("cursor-mismatch", "'frames'", "72", "77"):
        SampleStream(LeRobotDataset(tmp_path / "data"), 5, shuffle=SMALL, cursor=cursor)


def test_invalid_streams_are_refused(dataset) -> None:
    with refuses("dataset-empty"):
        SampleStream(dataset, 5, episodes=[])
    with refuses("episode-out-of-range", "9"):
        SampleStream(dataset, 5, episodes=[9])
    with refuses("value-out-of-range", "batch"):
        SampleStream(dataset, 0)
