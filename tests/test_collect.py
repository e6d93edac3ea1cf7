"""`embodied-rl collect`: one file an episode, which another simulator can play back to the bit."""

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_rl import collect
from embodied_rl.actors.scripted import RandomActor
from embodied_rl.collect import AT_ONCE, run
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation
from embodied_rl.rollout.episodes import episode_seed
from embodied_rl.schema import CollectConfig, SimNode
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

OPTIONS = {"image_size": 8, "horizon": 30}


def collected(tmp_path: Path, policy: str = "expert", **settings) -> tuple[list[dict], list[dict[str, Array]]]:
    """The index and the files of a collection on the tabletop."""
    run(CollectConfig(SimNode("tabletop", options=OPTIONS), policy=policy, out=str(tmp_path / "out"), **settings))
    index = [json.loads(line) for line in (tmp_path / "out" / "index.jsonl").read_text().splitlines()]
    return index, [dict(np.load(tmp_path / "out" / line["file"])) for line in index]


def test_another_simulator_plays_the_files_back(tmp_path, capsys) -> None:
    """The recorded seeds and actions give the recorded states, pictures and rewards."""
    index, files = collected(tmp_path, episodes=8)
    assert "8 episodes" in capsys.readouterr().out
    names = [task.name for task in Tabletop.spec_of(TabletopConfig()).tasks]
    simulator = Tabletop(TabletopConfig(**OPTIONS), 1)
    for line, file in zip(index, files, strict=True):
        observation = simulator.reset([Episode(0, names.index(line["task"]), line["seed"], split=line["split"])])
        assert observation.instruction == (line["instruction"],)
        assert {len(array) for array in file.values()} == {line["steps"]}
        for step, action in enumerate(file["actions"]):
            np.testing.assert_array_equal(file["state"][step], observation.state[0])
            np.testing.assert_array_equal(file["images/front"][step], observation.images["front"][0])
            result = simulator.step(action[None, None], [None])
            assert result.reward[0, 0] == file["reward"][step]
            assert result.success[0, 0] == file["success"][step]
            observation = result.observation
        assert len(result.ended) == 1
        assert line["success"] == bool(file["success"].any())
    assert np.mean([line["success"] for line in index]) > 0.8


def test_tasks_and_splits_are_those_that_were_asked_for(tmp_path) -> None:
    index, _ = collected(tmp_path, episodes=3, task="press", split="semantic")
    assert {line["task"] for line in index} == {"press_button"}
    assert {line["split"] for line in index} == {"semantic"}


def test_demonstrations_share_no_seed_with_evaluations(tmp_path) -> None:
    """By construction: a seed's highest bits say what it is for."""
    index, _ = collected(tmp_path, "random", episodes=7)
    highest = {purpose: episode_seed(purpose, "train", 0, 0) >> 61 for purpose in ("train", "select", "report")}
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
    records = list(collect.collect(RandomActor(simulator.spec), simulator, episodes, seed=0))
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
    record = next(iter(collect.collect(actor, simulator, [Episode(5, 0, 9)], seed=2)))
    assert len(record.actions) == 7
    assert [int(keys.decision[0]) for _, keys in seen] == [0, 1, 2]
    assert all(observation.privileged is None for observation, _ in seen)
    assert {(keys.seed, int(keys.episode[0])) for _, keys in seen} == {(2, 5)}
