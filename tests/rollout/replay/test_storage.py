"""Replay storage: samples equal the recorded transitions, also after overwriting and losses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.format import ReplayError, ReplayField
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.collecting import (
    CONFIG,
    SEED,
    SPEC,
    KillingActor,
    N,
    T,
    assert_equal,
    copied,
    fast_and_slow,
    half_skilled,
    inline,
    make,
    workers,
)
from tests.support.refusals import refuses
from tests.support.replaying import (
    EXECUTED,
    Restless,
    Script,
    assert_holds,
    assert_transition,
    episode_of,
    everything,
    invented,
    layout,
    naive_episode,
    naive_track,
    naive_transitions,
    observation,
    result,
)

LONG = replace(CONFIG, horizon=23)


def expected_of(actor, decisions: int, capacity: int, simulator: Callable, lost: Callable = lambda env: None) -> dict:
    tracks = [naive_track(env, decisions, actor, simulator, lost(env)) for env in range(N)]
    return {key: row for track in tracks for key, row in naive_transitions(track, capacity).items()}


@pytest.mark.parametrize("capacity", [500, 9])
@pytest.mark.parametrize(("parts", "slices", "order"), [(1, 1, "exact"), (4, 2, "exact"), (4, 4, "ready")])
def test_samples_equal_those_of_a_naive_recorder(capacity, parts, slices, order) -> None:
    """Episodes of random length, which end in either way, over three rollouts."""
    storage, actor = ReplayStorage(layout(capacity)), half_skilled()
    collector, _ = make(inline(parts, LONG, Restless), slices=slices, order=order, actor=actor, writers=[storage])
    for _ in range(3):
        collector.collect(actor)
    expected = expected_of(actor, 3 * T, capacity, lambda: Restless(1, LONG))
    assert_holds(storage, expected)
    ends = [(row["terminated"], row["truncated"]) for row in expected.values()]
    assert {(True, False), (False, True), (False, False)} == set(ends)


@pytest.mark.thorough
@pytest.mark.process
def test_images_in_shared_memory_are_copied(closing: Callable) -> None:
    storage = ReplayStorage(layout())
    collector, actor = make(closing(workers(2)), writers=[storage])
    for _ in range(3):
        collector.collect(actor)
    assert_holds(storage, expected_of(actor, 3 * T, 500, lambda: FakeSimulator(1, CONFIG)))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_events_equals_the_naive_recorder(seed: int) -> None:
    """Random decisions, ends and losses on small rings, checked after every event."""
    rng = np.random.default_rng(seed)
    storage = ReplayStorage(layout(int(rng.integers(2, 8)), tracks=3, spare=int(rng.integers(0, 3))))
    script = Script(storage)
    for _ in range(60):
        script.step(rng)
        assert_holds(storage, script.expected())
    assert min(storage.state()["replay/rows"]) > 2 * storage.format.slots


@pytest.mark.thorough
def test_a_rollout_is_the_same_bits_with_a_storage_beside_it() -> None:
    with_storage, without = [make(inline(2), writers=kept)[0] for kept in ([ReplayStorage(layout(5))], [])]
    actor = half_skilled()
    for _ in range(3):
        assert_equal(copied(with_storage.collect(actor)), copied(without.collect(actor)))


@pytest.mark.thorough
@pytest.mark.process
def test_a_lost_episode_is_not_sampled_from_the_rollout_before_either(closing: Callable) -> None:
    """The worker dies in the second decision of its third episodes, which began in the rollout before."""
    handles, storage = closing(fast_and_slow()), ReplayStorage(layout())
    actor = KillingActor(handles[1], call=17, holds=True)
    collector, _ = make(handles, actor=actor, writers=[storage])
    for _ in range(3):
        collector.collect(actor)
    actor.call = 0

    def lost(env: int) -> dict[int, int] | None:
        return {env + 2 * N: 2} if env >= N // 2 else None

    assert collector.lost_episodes == N // 2
    assert_holds(storage, expected_of(actor, 3 * T, 500, lambda: FakeSimulator(1, CONFIG), lost))


def test_each_observation_is_stored_once() -> None:
    """A row a decision and a row a truncation, and for each field one array with room for just the ring."""
    storage = ReplayStorage(layout(40))
    collector, actor = make(inline(2), writers=[storage], actor=half_skilled())
    rows = 0
    for _ in range(2):
        rollout = collector.collect(actor)
        rows += T * N + int(rollout.truncated.sum())
    assert storage.state()["replay/rows"].sum() == rows
    image, numbers, chunk = 8 * 8 * 3, 3 * 4 + 3 * 4 + 8, EXECUTED * (2 * 4 + 2 * 4 + 4 + 1 + 1)
    assert storage.nbytes == N * 40 * (image + numbers + chunk + 9 * 8 + 1 + 8 + 1 + 1)


def test_whole_episodes_come_in_the_order_of_time() -> None:
    storage, rng = ReplayStorage(layout(12, tracks=3)), np.random.default_rng(3)
    script = Script(storage)
    for _ in range(80):
        script.step(rng)
    naive = []
    for track in script.tracks:
        newest = [row for row in track[-12:] if row["kind"] != "final"]
        for first in [row for row in newest if row["decision"] == 0 and row["kind"] == "decision"]:
            rows = [row for row in newest if row["episode"] == first["episode"]]
            if rows[-1]["terminated"] or rows[-1].get("truncated"):
                naive.append(rows)
    found = list(storage.episodes())
    assert len(found) == len(naive) > 3
    for have, rows in zip(found, naive, strict=True):
        assert len(have) == len(rows)
        for position, row in enumerate(rows):
            assert_transition(have, position, row)


def test_a_sample_is_uniform_and_follows_from_the_generator() -> None:
    storage, rng = ReplayStorage(layout(12, tracks=3)), np.random.default_rng(1)
    script = Script(storage)
    for _ in range(40):
        script.step(rng)
    size = len(storage)
    sample, again = (storage.sample(400 * size, np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(sample.episode, again.episode) and np.array_equal(sample.decision, again.decision)
    _, counts = np.unique(np.stack([sample.episode, sample.decision]), axis=1, return_counts=True)
    assert len(counts) == size and (abs(counts - 400) < 6 * np.sqrt(400)).all()


def test_extra_entries_of_a_decision_can_be_kept() -> None:
    extra = {"log_prob": ReplayField((EXECUTED, 2), "<f4"), "trace/actions": ReplayField((EXECUTED, 2), "float32")}
    storage, actor = ReplayStorage(layout(extra=extra)), half_skilled()
    collector, _ = make(inline(2), writers=[storage], actor=actor)
    rollout = collector.collect(actor)
    assert_holds(storage, expected_of(actor, T, 500, lambda: FakeSimulator(1, CONFIG)))
    drawn = {
        (int(rollout.episode[t, e]), tuple(rollout.log_prob[t, e].flatten().tolist())): rollout.trace["actions"][t, e]
        for t in range(T)
        for e in range(N)
    }
    for (episode, _), (sample, row) in everything(storage).items():
        log_prob = tuple(sample.extra["log_prob"][row].flatten().tolist())
        assert np.array_equal(sample.extra["trace/actions"][row], drawn[episode, log_prob].numpy())


@pytest.mark.thorough
def test_data_in_control_steps_is_the_same_written_at_once_or_step_by_step() -> None:
    """Chunks of one action: the collector's steps, and the same episodes given as whole demonstrations."""
    actor = RowwiseFakeActor(SPEC, executed=1)
    by_step, whole = (ReplayStorage(layout(executed=1)) for _ in range(2))
    collector, _ = make(inline(2), actor=actor, decisions=10, fresh=True, writers=[by_step])
    collector.collect(actor)
    for env in range(N):
        rows = naive_episode(env, actor, FakeSimulator(1, CONFIG))
        steps, simulator, seen = [], FakeSimulator(1, CONFIG), type(rows[0]["observation"]).concatenate
        simulator.reset([EpisodeSampler(SPEC, SEED).episode(env)])
        steps = [simulator.step(row["action"][None], [None]) for row in rows]
        names = ("reward", "success", "steps", "executed", "source", "terminated", "truncated")
        joined = {name: np.concatenate([getattr(step, name) for step in steps]) for name in names}
        came = replace(steps[-1], **joined)
        actions = np.stack([row["action"] for row in rows])
        episode = EpisodeSampler(SPEC, SEED).episode(env)
        whole.write_episode(env, episode, seen([row["observation"] for row in rows]), actions, came)
    expected = expected_of(actor, 10, 500, lambda: FakeSimulator(1, CONFIG))
    assert_holds(by_step, expected)
    assert_holds(whole, expected)
    assert len(list(whole.episodes())) == N


def test_demonstrations_go_round_the_ring_and_one_too_long_is_refused() -> None:
    storage = ReplayStorage(layout(7, tracks=1))
    for index in range(5):
        ends = ["", "", ("truncated", "terminated")[index % 2]]
        came = result([index] * 3, [0, 1, 2], ends)
        seen = observation([index] * 3, [0, 1, 2])
        actions = np.stack([invented(index, number, "")["action"] for number in range(3)])
        storage.write_episode(0, episode_of(index), seen, actions, came)
        rows = [invented(index, number, end) | {"version": -1} for number, end in enumerate(ends)]
        have = {key: where for key, where in everything(storage).items() if key[0] == index}
        assert len(have) == 3
        for (_, number), (sample, row) in have.items():
            assert_transition(sample, row, rows[number])
    assert {episode for episode, _ in everything(storage)} == {3, 4}
    many = list(range(7))
    with refuses("replay-too-small", 7, 8, kind=ReplayError):
        storage.write_episode(
            0, episode_of(9), observation([9] * 7, many), np.zeros((7, 4, 2)), result([9] * 7, many, [""] * 7)
        )


def test_a_truncation_without_its_final_observation_is_not_sampled() -> None:
    storage = ReplayStorage(layout(7, tracks=1))
    came = replace(result([0, 0], [0, 1], ["", "truncated"]), final_observation=None)
    storage.write_episode(0, episode_of(0), observation([0, 0], [0, 1]), np.zeros((2, 4, 2)), came)
    storage.write_episode(
        0, episode_of(1), observation([1], [0]), np.zeros((1, 4, 2)), result([1], [0], ["terminated"])
    )
    assert everything(storage).keys() == {(0, 0), (1, 0)}


def test_an_episode_that_is_restarted_does_not_follow_its_first_start() -> None:
    """As where a simulator has no snapshots: the same episode, from decision 0 on.

    In the second ring, the row after the new decision 0 is decision 1 of before.
    """
    script = Script(ReplayStorage(layout(9, tracks=1)))
    one_after_the_other(script, 2)
    script.number[0] = 0
    script.decide([0])
    assert everything(script.storage).keys() == {(0, 0)}
    script = Script(ReplayStorage(layout(3, tracks=1)))
    one_after_the_other(script, 3)
    script.number[0] = 0
    one_after_the_other(script, 1)
    assert everything(script.storage).keys() == {(0, 1)}


def one_after_the_other(script: Script, decisions: int, end: str = "") -> None:
    """Of track 0; the last one ends the episode, if anything does."""
    for left in reversed(range(decisions)):
        script.decide([0])
        script.finish([0], ["" if left else end])


def test_an_episode_that_was_continued_from_an_earlier_point_is_not_whole() -> None:
    """As where a run resumes and its storage has come further: decisions 0, 1, and then 1 and 2. The next one is."""
    script = Script(ReplayStorage(layout(9, tracks=1)))
    one_after_the_other(script, 2)
    script.number[0] = 1
    one_after_the_other(script, 2, "terminated")
    one_after_the_other(script, 2, "truncated")
    assert [episode.episode.tolist() for episode in script.storage.episodes()] == [[1, 1]]


def test_an_episode_that_lacks_its_first_steps_is_not_whole_and_joins_no_other() -> None:
    """A recording without pictures at first, after a failure and before a success."""
    storage = ReplayStorage(layout(9, tracks=1))
    for index, first in enumerate((0, 1, 0)):
        came, seen = result([index] * 2, [0, 1], ["", "terminated"]), observation([index] * 2, [0, 1])
        storage.write_episode(0, episode_of(index), seen, np.zeros((2, 4, 2)), came, first_decision=first)
    assert [each.episode for each in storage.list_episodes()] == [0, 2]
    assert [len(each.slots) for each in storage.list_episodes()] == [2, 2]


def test_a_collector_refuses_a_storage_for_something_else() -> None:
    with refuses("replay-format-mismatch", "tracks is 3", 8, kind=ReplayError):
        make(inline(2), writers=[ReplayStorage(layout(tracks=3))])
    with refuses("replay-format-mismatch", "executed is 2", 4):
        make(inline(2), writers=[ReplayStorage(layout(executed=2))])


def test_wrong_arguments_are_refused() -> None:
    with refuses("replay-empty"):
        ReplayStorage(layout()).sample(1, np.random.default_rng(0))
    with refuses("camera-unknown", "side", "top"):
        layout(cameras=["side"])
    with refuses("replay-extra-unknown", "value"):
        layout(extra={"value": ReplayField((), "<f4")})
    with refuses("replay-size-out-of-range", 1):
        layout(capacity=1)


def test_only_a_policys_cameras_are_kept_unless_others_are_named() -> None:
    cameras = (*SPEC.cameras, replace(SPEC.cameras[0], name="film", role="video"))
    spec = replace(SPEC, cameras=cameras)
    of = type(layout()).of_simulator
    assert of(spec, 1, 9, 4).cameras == ("top",)
    assert of(spec, 1, 9, 4, cameras=["film"]).cameras == ("film",)


@pytest.mark.parametrize("spare", [0, 6])
def test_going_back_to_a_checkpoint(spare: int, caplog: pytest.LogCaptureFixture) -> None:
    """With enough spare rows everything is as it was, though the ring has gone round since; without, less is left."""
    storage, rng = ReplayStorage(layout(6, tracks=2, spare=spare)), np.random.default_rng(2)
    script = Script(storage)
    for _ in range(20):
        script.step(rng)
    state, expected = storage.state(), script.expected()
    for _ in range(2):
        script.decide([0, 1])
        script.finish([0, 1], ["", "truncated"])
    storage.load(state)
    assert storage.state()["replay/rows"].tolist() == state["replay/rows"].tolist()
    if spare:
        assert_holds(storage, expected)
        assert not caplog.text
    else:
        assert everything(storage).keys() < expected.keys()
        assert "'spare' rows keep them" in caplog.text


def test_a_robot_s_rows_are_kept(tmp_path: Path) -> None:
    """After a kill in mid-episode, too, of which nothing is learned; what comes next follows."""
    storage, rng = ReplayStorage(layout(40, tracks=2), tmp_path / "rows", keep=True), np.random.default_rng(2)
    script = Script(storage)
    for _ in range(6):
        script.step(rng)
    state = storage.state()
    script.decide([0, 1])
    script.finish([0, 1], ["", "truncated"])
    script.decide([0])
    rows, known = storage.state()["replay/rows"], everything(storage)
    storage.close()
    again = ReplayStorage(layout(40, tracks=2), tmp_path / "rows", keep=True)
    again.load(state)
    again.clear()
    assert (again.state()["replay/rows"] >= rows).all() and (rows > state["replay/rows"]).all()
    assert everything(again).keys() == known.keys()
    script.storage = again
    for track in (0, 1):
        script.begin(track)
    script.decide([0, 1])
    script.finish([0, 1], ["terminated", "terminated"])
    assert len(everything(again)) == len(known) + 2


def test_a_checkpoint_of_another_storage_is_refused() -> None:
    script = Script(ReplayStorage(layout(6, tracks=2)))
    script.decide([0, 1])
    state = script.storage.state()
    with refuses("replay-checkpoint-mismatch", [1, 1], [0, 0]):
        ReplayStorage(layout(6, tracks=2)).load(state)
    assert torch.tensor(state["replay/rows"]).tolist() == [1, 1]


@pytest.mark.parametrize("already", [False, True])
def test_an_episode_that_is_lost_after_a_checkpoint_goes_on_from_there(already: bool) -> None:
    """As if its worker had not died: what was recorded before counts again, unless it was lost already."""
    storage = ReplayStorage(layout(20, tracks=1))
    script = Script(storage)
    for _ in range(2):
        script.decide([0])
        script.finish([0], [""])
    if already:
        script.lose([0])
    state = {name: value.copy() for name, value in storage.state().items()}
    script.decide([0])
    storage.lose_episodes(-1, torch.tensor([0]), np.zeros(1, np.int64))
    storage.load(state)
    if already:
        assert not len(storage)
        return
    script.decide([0])
    script.finish([0], ["terminated"])
    (episode,) = storage.list_episodes()
    assert len(episode.slots) == 3
