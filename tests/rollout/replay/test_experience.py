"""Chunks read from replay storages: what was executed after a decision, across decisions, and from two storages."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Source
from embodied_rl.rollout.replay.experience import Replay, make_storage_factory
from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.support.replaying import Script, layout


def filled(seed: int, tracks: int = 3, executed: int = 4) -> tuple[ReplayStorage, Script]:
    """A storage of invented episodes, some of them lost, and what was written to it."""
    storage, rng = ReplayStorage(layout(40, tracks=tracks, executed=executed)), np.random.default_rng(seed)
    script = Script(storage)
    for _ in range(30):
        script.step(rng)
    return storage, script


def naive_chunk(rows: list[dict], length: int) -> tuple[list, list]:
    """The executed actions of consecutive decisions and their sources, one control step after the other."""
    actions = [action for row in rows for action in row["executed"][: row["steps"]]][:length]
    sources = [int(source) for row in rows for source in row["source"][: row["steps"]]][:length]
    missing = length - len(actions)
    return actions + [np.zeros(2, np.float32)] * missing, sources + [int(Source.HOLD)] * missing


@pytest.mark.parametrize("length", [1, 3, 4, 9, 50])
@pytest.mark.parametrize("seed", range(3))
def test_a_chunk_is_what_was_executed_after_its_decision(seed: int, length: int) -> None:
    storage, script = filled(seed)
    expected = script.expected()
    replay = Replay(storage)
    compared = 0
    for episode in storage.list_episodes():
        number, end = episode.episode, len(episode.slots)
        rows = [expected[number, decision] for decision in range(end)]
        decisions = replay.list_decisions(0, [episode])
        _, actions, sources = replay.read_chunks(decisions, length)
        for first in range(end):
            wanted, came_from = naive_chunk(rows[first:], length)
            assert np.array_equal(actions[first], np.stack(wanted))
            assert sources[first].tolist() == came_from
            compared += 1
    assert compared > 20


def test_a_chunk_ends_where_what_follows_is_unknown() -> None:
    """The newest decision of a running episode has no result yet."""
    script = Script(storage := ReplayStorage(layout(40, tracks=1)))
    for _ in range(2):
        script.decide([0])
        script.finish([0], [""])
    script.decide([0])
    first, second = (script.expected()[0, decision] for decision in range(2))
    where = np.zeros(1, np.int64)
    actions, sources = storage.read_chunks(where, where, 50)
    wanted, came_from = naive_chunk([first, second], 50)
    assert np.array_equal(actions[0], np.stack(wanted)) and sources[0].tolist() == came_from


def test_whole_episodes_are_listed_with_their_success() -> None:
    """That of the last control step that was executed."""
    storage, script = filled(1)
    rows = {key: row for track in script.tracks for row in track if (key := (row.get("episode"), row.get("decision")))}
    found = storage.list_episodes()
    for episode in found:
        last = rows[episode.episode, len(episode.slots) - 1]
        assert last["terminated"] or last["truncated"]
        assert episode.success == bool(last["success"][last["steps"] - 1])
        assert (episode.seed, episode.task) == (last["seed"], last["task"])
    assert {episode.success for episode in found} == {True, False}


def test_decisions_of_two_storages_come_in_the_order_asked_for() -> None:
    """The second one in control steps."""
    replay = Replay(filled(4)[0], (filled(5, tracks=1, executed=1)[0],))
    parts = [replay.list_decisions(number, each.list_episodes()) for number, each in enumerate(replay.storages)]
    decisions = np.random.default_rng(0).permutation(np.concatenate(parts))
    assert {0, 1} == set(decisions[:, 0])
    observation, actions, sources = replay.read_chunks(decisions, 6)
    for row, (number, track, slot) in enumerate(decisions.tolist()):
        where, storage = (np.array([track]), np.array([slot])), replay.storages[number]
        assert np.array_equal(observation.state[row], storage.read_observation(*where).state[0])
        assert observation.instruction[row] == storage.read_observation(*where).instruction[0]
        alone = storage.read_chunks(*where, 6)
        assert np.array_equal(actions[row], alone[0][0]) and np.array_equal(sources[row], alone[1][0])


def test_each_collector_has_a_storage_of_its_own(tmp_path: Path) -> None:
    factory = make_storage_factory(layout(8), tmp_path)
    made = [factory.make(number) for number in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collector_0", "collector_1"]
    for storage in made:
        storage.close()


def test_offline_episodes_may_be_those_of_some_tasks() -> None:
    own, offline = filled(1)[0], filled(2)[0]
    whole = offline.list_episodes()
    names = [offline.format.tasks[each.task] for each in whole]
    assert len(set(names)) > 1
    replay = Replay(own, (offline,), tasks=frozenset(names[:1]))
    chosen = [each for each, name in zip(whole, names, strict=True) if name == names[0]]
    assert [each.episode for each in replay.list_episodes(1)] == [each.episode for each in chosen]
    assert len(replay.list_episodes(0)) == len(own.list_episodes()), "the run's own"
    halves = [Replay(own, (offline,), rank, 2, tasks=frozenset(names[:1])).list_episodes(1) for rank in range(2)]
    assert sorted(each.episode for half in halves for each in half) == sorted(each.episode for each in chosen)
