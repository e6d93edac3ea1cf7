"""`embodied-rl collect`: one file an episode, which another simulator can play back to the bit."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.actors.scripted import RandomPolicy
from embodied_rl.commands import collect
from embodied_rl.commands.collect import AT_ONCE, check_collection, run
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import DatasetError
from embodied_rl.datasets.record import ABOUT, Record
from embodied_rl.deployment.execution.demonstration import read_demonstration
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.episode_sampler import derive_episode_seed
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.schema import CollectConfig, SimNode
from embodied_rl.schema.checks import validate_config
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.refusals import refuses

OPTIONS = {"image_size": 8, "horizon": 30}


def collected(tmp_path: Path, policy: str = "expert", **settings) -> tuple[list[dict], list[dict[str, Array]]]:
    """The index and the files of a collection on the tabletop."""
    run(CollectConfig(SimNode("tabletop", options=OPTIONS), policy=policy, out=str(tmp_path / "out"), **settings))
    index = [json.loads(line) for line in (tmp_path / "out" / "index.jsonl").read_text().splitlines()]
    return index, [dict(np.load(tmp_path / "out" / line["file"])) for line in index]


@pytest.mark.thorough
def test_another_simulator_plays_the_files_back(tmp_path, capsys) -> None:
    """The recorded seeds and actions give the recorded states, pictures and rewards."""
    index, files = collected(tmp_path, episodes=8)
    assert "8 episodes" in capsys.readouterr().out
    names = [task.name for task in Tabletop.spec_of(TabletopConfig()).tasks]
    simulator = Tabletop(TabletopConfig(**OPTIONS), 1)
    for line, file in zip(index, files, strict=True):
        observation = simulator.reset([Episode(0, names.index(line["task"]), line["seed"], split=line["split"])])
        assert observation.instruction == (line["instruction"],)
        assert {len(array) for name, array in file.items() if name not in ABOUT} == {line["steps"]}
        for step, action in enumerate(file["actions"]):
            np.testing.assert_array_equal(file["state"][step], observation.state[0])
            np.testing.assert_array_equal(file["images/front"][step], observation.images["front"][0])
            result = simulator.step(action[None, None], [None])
            assert result.reward[0, 0] == file["reward"][step]
            assert result.success[0, 0] == file["success"][step]
            observation = result.observation
        assert len(result.ended) == 1
        assert line["success"] == bool(file["success"].any())
        told = read_demonstration(tmp_path / "out" / line["file"], simulator.spec.body, (0, 1, 2, -1))
        assert (told.actions == file["actions"]).all() and (told.measured[:, :3] == file["state"][:, :3]).all()
    assert np.mean([line["success"] for line in index]) > 0.8


def test_a_replay_storage_holds_what_the_files_hold(tmp_path) -> None:
    """In control steps of an operator, in chunks of a policy, both with their ends."""
    index, files = collected(tmp_path, episodes=6)
    out = tmp_path / "stored"
    run(CollectConfig(SimNode("tabletop", options=OPTIONS), episodes=6, format="replay", out=str(out)))
    assert (out / "index.jsonl").read_text().count("\n") == 6
    stored = [*ReplayStorage.open(out).episodes()]
    assert len(stored) == 6
    for line, file, episode in zip(index, files, stored, strict=True):
        assert (int(episode.seed[0]), len(episode)) == (line["seed"], line["steps"])
        np.testing.assert_array_equal(episode.executed[:, 0], file["actions"])
        np.testing.assert_array_equal(episode.observation.state, file["state"])
        np.testing.assert_array_equal(episode.observation.images["front"], file["images/front"])
        np.testing.assert_array_equal(episode.next_observation.state[:-1], file["state"][1:])
        assert episode.reward[:, 0].tolist() == file["reward"].tolist()
        assert bool(episode.terminated[-1]) == line["success"] != bool(episode.truncated[-1])


def test_chunks_of_a_policy_are_decisions_of_a_replay_storage(tmp_path) -> None:
    """The last one may be shorter; a truncated episode has its final observation."""
    spec, record = replace(FakeSimulator.spec_of(FakeSimulator.Config()), horizon=7), Record(Episode(3, 0, 5), "go")
    storage = ReplayStorage(ReplayFormat.of_simulator(spec, 1, 5, 3))
    for step in range(7):
        seen = make_observation(spec, step)
        done = np.array([step == 6])
        record.add(
            seen,
            StepResult(
                reward=np.full((1, 1), step, np.float32), success=np.zeros((1, 1), bool), steps=np.ones(1, np.int64),
                executed=np.full((1, 1, spec.action_dim), step, np.float32),
                source=np.full((1, 1), step % 2, np.uint8), terminated=done & False, truncated=done,
                observation=seen, ended=np.flatnonzero(done),
                final_observation=make_observation(spec, 7) if step == 6 else None,
            ), 0,
        )  # fmt: skip
    collect.write_replay(storage, record)
    (found,) = storage.episodes()
    assert found.steps.tolist() == [3, 3, 1]
    assert found.reward.tolist() == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
    assert found.source[0].tolist() == [0, 1, 0] and found.truncated.tolist() == [False, False, True]
    assert found.observation.state[:, 0].tolist() == [0, 3, 6] and found.next_observation.state[:, 0].tolist() == [
        3,
        6,
        7,
    ]


def make_observation(spec: SimulatorSpec, number: int) -> Observation:
    cameras = {each.name: np.zeros((1, each.height, each.width, 3), np.uint8) for each in spec.cameras}
    privileged = np.zeros((1, len(spec.privileged_names)), np.float32) if spec.privileged_names else None
    return Observation(cameras, np.full((1, len(spec.state_names)), number, np.float32), ("go",), privileged)


@pytest.mark.thorough
def test_a_dataset_holds_what_the_files_hold(tmp_path, capsys) -> None:
    """The same episodes in both formats: numbers to the bit, pictures as far as a video goes."""
    index, files = collected(tmp_path / "npz", episodes=3)
    sim = SimNode("tabletop", options=OPTIONS)
    run(CollectConfig(sim, episodes=3, format="lerobot", out=str(tmp_path / "set")))
    assert "3 episodes" in capsys.readouterr().out.splitlines()[-1]
    dataset, spec = LeRobotDataset(tmp_path / "set"), Tabletop.spec_of(TabletopConfig(**OPTIONS))
    assert (dataset.info.fps, dataset.info.robot_type) == (spec.control_hz, "tabletop")
    assert dataset.info.features["action"].names == list(spec.action_names)
    assert dataset.info.features["observation.state"].names == list(spec.state_names)
    lines = [json.loads(line) for line in (tmp_path / "set/index.jsonl").read_text().splitlines()]
    assert [{**line, "episode": None} for line in lines] == [
        {**{name: value for name, value in line.items() if name != "file"}, "episode": None} for line in index
    ]
    for episode, file in zip(dataset.episodes, files, strict=True):
        samples = dataset.read(range(episode.start, episode.stop))
        np.testing.assert_array_equal(samples.observation.state, file["state"])
        np.testing.assert_array_equal(samples.actions[:, 0], file["actions"])
        np.testing.assert_array_equal(samples.extra["next.reward"].ravel(), file["reward"])
        np.testing.assert_array_equal(samples.extra["next.success"].ravel(), file["success"])
        assert samples.extra["next.done"].ravel().tolist() == [False] * (len(samples) - 1) + [True]
        assert not samples.extra["source"].any()
        assert episode.tasks == (lines[episode.index]["instruction"],)
        error = samples.observation.images["front"].astype(int) - file["images/front"]
        assert abs(error).mean() < 12  # half the colours of an 8 x 8 picture are lost to any video


@pytest.mark.thorough
def test_lossless_pictures_are_those_of_the_simulator(tmp_path) -> None:
    """To the bit, where a video is not."""
    pytest.importorskip("av")
    _, files = collected(tmp_path / "npz", "random", episodes=2)
    sim, settings = SimNode("tabletop", options=OPTIONS), {"policy": "random", "episodes": 2, "format": "lerobot"}
    run(CollectConfig(sim, images="png", out=str(tmp_path / "png"), **settings))
    dataset = LeRobotDataset(tmp_path / "png")
    pictures = {name: kind for name, kind in dataset.info.features.items() if name.startswith("observation.images.")}
    assert pictures and {kind.dtype for kind in pictures.values()} == {"image"}
    assert not list((tmp_path / "png").rglob("*.mp4"))
    for episode, file in zip(dataset.episodes, files, strict=True):
        samples = dataset.read(range(episode.start, episode.stop))
        np.testing.assert_array_equal(samples.observation.images["front"], file["images/front"])


def test_pictures_of_files_have_no_encoding_to_choose() -> None:
    config = CollectConfig(SimNode("tabletop", options=OPTIONS), images="png")
    with refuses("key-unused", "images=png", "format=lerobot"):
        validate_config(config)
    validate_config(replace(config, format="lerobot"))


def test_a_dataset_is_not_collected_into_twice(tmp_path) -> None:
    pytest.importorskip("av")

    config = CollectConfig(
        SimNode("tabletop", options=OPTIONS), "random", episodes=1, format="lerobot", out=str(tmp_path)
    )
    run(config)
    with pytest.raises(DatasetError, match="already holds a dataset"):
        run(config)


def test_files_of_another_collection_are_not_replaced(tmp_path) -> None:
    config = CollectConfig(SimNode("tabletop", options=OPTIONS), "random", episodes=1, out=str(tmp_path))
    run(config)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for call in (run, check_collection):
        with refuses("output-exists", tmp_path):
            call(replace(config, episodes=2, seed=1))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_replay_storage_is_not_collected_into_twice(tmp_path, monkeypatch) -> None:
    config = CollectConfig(SimNode("tabletop", options=OPTIONS), "random", episodes=1, format="replay")
    run(replace(config, out=str(tmp_path / "stored")))
    before = {path: path.read_bytes() for path in (tmp_path / "stored").iterdir()}
    for call in (run, check_collection):
        with refuses("output-exists", tmp_path / "stored"):
            call(replace(config, out=str(tmp_path / "stored")))
    assert {path: path.read_bytes() for path in (tmp_path / "stored").iterdir()} == before
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with refuses("output-exists", "out=."):
        run(replace(config, out="."))


@pytest.mark.thorough
@pytest.mark.process
def test_a_missing_package_is_named_with_its_extra(tmp_path) -> None:
    """Before anything is built; in a process of its own, since the package is asked for once."""
    program = "import sys; sys.modules['av'] = None; from embodied_rl.cli.main import main; sys.exit(main())"
    words = ["collect", "episodes=1", "format=lerobot", f"out={tmp_path / 'out'}"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'embodied-rl[lerobot]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_and_splits_are_those_that_were_asked_for(tmp_path) -> None:
    index, _ = collected(tmp_path, episodes=3, task="press", split="semantic")
    assert {line["task"] for line in index} == {"press_button"}
    assert {line["split"] for line in index} == {"semantic"}


def test_demonstrations_share_no_seed_with_evaluations(tmp_path) -> None:
    """By construction: a seed's highest bits say what it is for."""
    index, _ = collected(tmp_path, "random", episodes=7)
    highest = {purpose: derive_episode_seed(purpose, "train", 0, 0) >> 61 for purpose in ("train", "select", "report")}
    assert {line["seed"] >> 61 for line in index} == {highest["train"]}
    assert highest["train"] not in (highest["select"], highest["report"])


def test_random_actions_depend_on_the_episode_alone(tmp_path) -> None:
    """The first episodes of a longer collection are those of a shorter one."""
    _, few = collected(tmp_path / "few", "random", episodes=2)
    _, many = collected(tmp_path / "many", "random", episodes=5)
    for short, long in zip(few, many, strict=False):
        for name, array in short.items():
            np.testing.assert_array_equal(array, long[name])


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 3])
def test_each_episode_is_recorded_once(count) -> None:
    simulator = FakeSimulator(AT_ONCE, FakeSimulator.Config(horizon=6))
    episodes = [Episode(i, i % 2, 100 + i) for i in range(count)]
    records = list(collect.collect_episodes(RandomPolicy(simulator.spec), simulator, episodes, seed=0))
    assert [record.episode for record in records] == episodes
    for record in records:
        assert len(record.actions) == len(record.observations) == len(record.reward) == len(record.success) <= 6
        assert {part.instruction for part in record.observations} == {(record.instruction,)}


def test_a_chunk_is_executed_whole_and_the_policy_sees_no_privileged_state() -> None:
    seen: list[tuple[Observation, NoiseKeys]] = []

    class Watched(RowwiseFakeActor):
        def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
            seen.append((observation, keys))
            assert not explore
            return super().act(observation, keys, explore)

    simulator = FakeSimulator(AT_ONCE, FakeSimulator.Config(horizon=7))
    actor = Watched(simulator.spec, executed=3)
    record = next(iter(collect.collect_episodes(actor, simulator, [Episode(5, 0, 9)], seed=2)))
    assert len(record.actions) == 7
    assert [int(keys.decision[0]) for _, keys in seen] == [0, 1, 2]
    assert all(observation.privileged is None for observation, _ in seen)
    assert {(keys.seed, int(keys.episode[0])) for _, keys in seen} == {(2, 5)}
