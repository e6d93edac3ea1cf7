"""Recordings converted to a LeRobotDataset and to a replay storage are read back exactly."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.datasets.lerobot.collected import PROPOSED, VALID, VERSION, write_dataset
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import DatasetError
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.replay.recorded_episodes import write_replay
from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.support.recorded_robot import FakeRun, Truth, record_run
from tests.support.refusals import refuses

POLICY, HUMAN, SAFETY, HOLD = Source.POLICY, Source.HUMAN, Source.SAFETY, Source.HOLD


@pytest.fixture
def truth(tmp_path: Path, messages: Messages) -> list[list[Truth]]:
    """Record `tmp_path`/bag: a success, a failure with a gap of 2 steps, and an episode that the time limit ended."""

    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [POLICY] * 4 + [HUMAN, SAFETY, HOLD])
        fake.publish_text(fake.robot.operator.label, "success")
        fake.run_episode(1, [POLICY] * 6, words="push", lost=[2, 3])
        fake.publish_text(fake.robot.operator.label, "failure")
        fake.run_episode(2, [POLICY] * 3)

    return record_run(tmp_path / "bag", messages, run).truth


def kept(truth: list[list[Truth]]) -> list[Truth]:
    return [*truth[0], *truth[1][:2], *truth[1][4:], *truth[2]]


def test_a_dataset_equals_the_episodes(tmp_path: Path, messages: Messages, truth: list[list[Truth]]) -> None:
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    lines = list(write_dataset(conversion, tmp_path / "out", "png"))
    assert [(line["episode"], line["label"], line["steps"], line["ends"]) for line in lines] == [
        (0, "success", 7, True), (1, "failure", 2, False), (2, "failure", 2, True), (3, "", 3, True),
    ]  # fmt: skip
    dataset, rows, true = LeRobotDataset(tmp_path / "out"), np.arange(14), kept(truth)
    assert len(dataset) == 14 and dataset.info.fps == 12.5 and dataset.info.robot_type == "tabletop"
    assert np.array_equal(dataset.images("front", rows), np.stack([each.picture for each in true]))
    columns = {
        "observation.state": np.stack([each.state for each in true]),
        "action": np.stack([each.executed for each in true]),
        "source": np.array([[each.source] for each in true]),
        PROPOSED: np.stack([each.executed if each.proposed is None else each.proposed for each in true]),
        VALID: np.array([[each.proposed is not None] for each in true]),
        VERSION: np.full((14, 1), 3),
        "next.success": np.arange(14)[:, None] == 6,
        "next.reward": (np.arange(14)[:, None] == 6).astype(np.float32),
        "next.done": np.isin(np.arange(14), [6, 10, 13])[:, None],
    }
    for name, expected in columns.items():
        assert np.array_equal(dataset.column(name, rows).reshape(expected.shape), expected), name
    assert "left out: steps that were not recorded (2)" in conversion.list_lines()
    with refuses("output-exists", tmp_path / "out", kind=DatasetError):
        list(write_dataset(Conversion.open(tmp_path / "bag", messages, None), tmp_path / "out", "png"))


def test_a_replay_storage_equals_the_episodes(tmp_path: Path, messages: Messages, truth: list[list[Truth]]) -> None:
    lines = list(write_replay(Conversion.open(tmp_path / "bag", messages, None), tmp_path / "out"))
    assert [line["steps"] for line in lines] == [7, 2, 2, 3]
    storage = ReplayStorage.open(tmp_path / "out")
    assert storage.format.tasks == ("lift the red cube", "push")
    # The last step before the gap, and the last one of the time limit, make no transitions.
    assert len(storage) == 7 + 1 + 2 + 2
    (whole,) = storage.episodes()  # the parts of a split episode are not whole
    assert np.array_equal(whole.executed[:, 0], np.stack([each.executed for each in truth[0]]))
    assert np.array_equal(whole.source[:, 0], [each.source for each in truth[0]])
    proposed = [each.executed if each.proposed is None else each.proposed for each in truth[0]]
    assert np.array_equal(whole.action[:, 0], np.stack(proposed))
    assert np.array_equal(whole.observation.state, np.stack([each.state for each in truth[0]]))
    assert np.array_equal(whole.next_observation.images["front"][:-1], np.stack([t.picture for t in truth[0][1:]]))
    assert whole.terminated.tolist() == [False] * 6 + [True] and whole.reward[:, 0].tolist() == [0.0] * 6 + [1.0]
    sampled = storage.sample(200, np.random.default_rng(0))
    gaps = {(truth[1][1].state.tobytes(), truth[1][4].state.tobytes())}
    states = sampled.observation.state, sampled.next_observation.state
    pairs = {(a.tobytes(), b.tobytes()) for a, b in zip(*states, strict=True)}
    assert not gaps & pairs and (truth[1][0].state.tobytes(), truth[1][1].state.tobytes()) in pairs
