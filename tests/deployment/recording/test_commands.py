"""Recordings as datasets: the commands, and content equal to what was recorded, also of the simulated robot."""

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.cli.main import main
from embodied_rl.datasets.lerobot.collected import PROPOSED, VALID, VERSION, write_dataset
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import DatasetError
from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.transport.in_process import InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Episode, Source
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl.rollout.replay.recorded_episodes import write_replay
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.recorded_robot import FakeRun, Truth, record_run
from tests.support.refusals import refuses


@pytest.fixture
def bag(tmp_path: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch) -> Path:
    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [Source.POLICY] * 3, lost=[1])
        fake.publish_text(fake.robot.operator.label, "success")

    record_run(tmp_path / "bag", messages, run)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bag"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["collect", "from=bag", "out=dataset", "images=png"], "meta/info.json"),
        (["convert", "bag", "out=dataset", "format=replay"], "format.json"),
    ],
)
def test_a_recording_is_converted(bag: Path, words: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    output = capsys.readouterr().out.splitlines()
    assert output == [
        "2 of 2 control steps kept: 2 by policy",
        "left out: steps that were not recorded (1)",
        "2 episodes in dataset",
    ]
    lines = [json.loads(line) for line in (bag.parent / "dataset" / "index.jsonl").read_text().splitlines()]
    assert [(line["first_step"], line["success"], line["seed"]) for line in lines] == [(0, False, 0), (2, True, 0)]
    assert (bag.parent / "dataset" / file).exists()
    assert main(words) == 2  # nothing is stored twice


def test_a_recording_without_usable_steps_makes_no_dataset(
    tmp_path: Path, messages: Messages, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lambda fake: fake.run_episode(0, [Source.POLICY] * 3, blind=range(3))  # noqa: E731
    record_run(tmp_path / "bag", messages, run)
    assert main(["convert", str(tmp_path / "bag"), f"out={tmp_path / 'dataset'}", "format=replay"]) == 2
    errors = capsys.readouterr().err
    assert "[recording-without-episodes]" in errors
    assert "steps without a message of /camera/front/image_raw (3)" in errors


def test_a_recording_truncated_before_its_first_step_is_refused(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = bag.glob("*.mcap")
    file.write_bytes(file.read_bytes()[:100])
    (bag / "metadata.yaml").unlink()
    assert main(["convert", "bag", "out=dataset"]) == 2
    output = capsys.readouterr().err
    assert "[recording-without-episodes]" in output and "bag" in output and file.name in output
    assert not (bag.parent / "dataset").exists()


@pytest.mark.thorough
def test_a_dry_run_lists_steps_and_topics(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "from=bag", "--dry-run"]) == 0
    assert "steps     2" in capsys.readouterr().out
    assert main(["record", "out=new", "--dry-run"]) == 0
    assert "/policy_bridge/steps" in capsys.readouterr().out
    assert not (bag.parent / "new").exists()


@pytest.mark.parametrize(
    ("words", "data", "code"),
    [
        (["collect", "from=absent"], "absent", "[recording-missing]"),
        (["collect", "from=bag", "episodes=3"], "'episodes'", "[key-unknown]"),
        (["record", "out=bag"], "bag", "[output-exists]"),
        (["record", "robot=absent"], "absent", ""),
        (["record", "recover=bag", "out=again"], "bag", "[recording-finished]"),
        (["convert", "bag", "robot=absent"], "absent", ""),
    ],
)
def test_mistakes_are_refused(
    bag: Path, words: list[str], data: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    output = capsys.readouterr().err
    assert data in output and code in output


@pytest.mark.thorough
def test_a_truncated_recording_is_recovered(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bag / "metadata.yaml").unlink()
    assert main(["record", "recover=bag", "out=again"]) == 0
    assert "recovered to again" in capsys.readouterr().out
    assert main(["collect", "from=again", "out=dataset", "images=png"]) == 0


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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_recorded_episode_equals_the_simulation(tmp_path: Path, messages: Messages) -> None:
    """State, pictures and instruction to the bit; actions travel as speeds."""
    robot, simulator, episode = (
        RobotSimulator(RobotSimulatorConfig(), 1),
        Tabletop(TabletopConfig(), 1),
        Episode(5, 2, 32),
    )
    assert robot._in_process is not None
    listener, topics = InProcessTransport(robot._in_process.node.bus, "recorder"), list_topics(robot.robot)
    recorder = TopicRecorder(listener, topics, BagWriter(tmp_path / "bag", topics, messages))
    seen, actions = [simulator.reset([episode])], list[np.ndarray]()
    operator = simulator.expert()
    robot.reset([episode])
    while True:
        actions.append(operator()[0].astype(np.float32))
        result = simulator.step(actions[-1][None, None], [None])
        robot.step(actions[-1][None, None], [None])
        listener.spin_once()
        while recorder.write_waiting():
            pass
        if len(result.ended):
            break
        seen.append(result.observation)
    recorder.finish()
    write_description(robot.robot, tmp_path / "bag")
    robot.close()
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    (part,) = conversion.read_parts()
    assert result.success.any() and part.label == "success" and part.ends and not conversion.omissions
    assert len(part.steps) == len(seen) > 10 and part.episode.seed == 32
    for step, true, action in zip(part.steps, seen, actions, strict=True):
        assert step.observation.state.tobytes() == true.state.tobytes()
        assert step.observation.images["front"].tobytes() == true.images["front"].tobytes()
        assert step.observation.instruction == true.instruction
        assert step.executed == pytest.approx(action, abs=1e-6) and step.proposed == pytest.approx(action)
