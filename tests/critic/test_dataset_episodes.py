"""Episodes of a dataset: progress guessed from active time, and training examples made of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.critic.dataset_episodes import (
    SHORTEST,
    check_dataset,
    clip,
    find_pauses,
    make_examples,
    measure_active_time,
    read_dataset,
    rewind,
)
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.measures import correlate_ranks
from embodied_rl.datasets.lerobot.info import Feature
from embodied_rl.interfaces.sim import Array
from tests.support import making_datasets
from tests.support.critics import draw_episode
from tests.support.planted_demonstrations import good_records, make_spec, rearrange, record_with_progress
from tests.support.refusals import refuses


def wander(steps: int, speed: float = 0.02) -> Array:
    t = np.linspace(0, 6, steps)
    return np.stack([np.sin(t), np.cos(1.3 * t), t * speed], axis=1).astype(np.float32)


def hold(state: Array, place: int, steps: int) -> Array:
    return np.insert(state, [place + 1] * steps, state[place], axis=0)


def test_where_the_robot_always_moves_it_is_the_clock() -> None:
    np.testing.assert_allclose(measure_active_time(wander(50)), np.linspace(0, 1, 50))


@pytest.mark.parametrize("noise", [0.0, 0.00002])
@pytest.mark.parametrize("place", [0, 20, 49])
def test_a_pause_is_left_out_wherever_it_is(place: int, noise: float) -> None:
    state = hold(wander(50), place, 30)
    state += noise * np.random.default_rng(1).standard_normal(state.shape).astype(np.float32)
    time = measure_active_time(state)
    moved = np.delete(time, np.arange(place + 1, place + 31))
    np.testing.assert_allclose(moved, np.linspace(0, 1, 50), atol=0.021)
    assert np.ptp(time[place : place + 31]) <= 0.03 and (np.diff(time) >= 0).all() and time[-1] == 1


def test_under_much_noise_it_is_the_clock() -> None:
    state = hold(wander(50), 20, 30)
    state += 0.01 * np.random.default_rng(1).standard_normal(state.shape).astype(np.float32)
    np.testing.assert_allclose(measure_active_time(state), np.linspace(0, 1, 80), atol=0.05)


def test_a_turn_is_no_pause() -> None:
    short = hold(wander(50), 20, SHORTEST - 1)
    assert not find_pauses(short).any() and find_pauses(hold(wander(50), 20, SHORTEST)).sum() == SHORTEST


def test_a_gripper_that_closes_is_movement() -> None:
    arm = hold(wander(40), 20, 8)
    gripper = np.where(np.arange(len(arm)) < 21, 0.08, np.clip(0.08 - 0.01 * (np.arange(len(arm)) - 20), 0.0, 0.08))
    state = np.concatenate([arm, gripper[:, None].astype(np.float32)], axis=1)
    assert find_pauses(arm).sum() == 8 and not find_pauses(state).any()


@pytest.mark.parametrize("state", [np.zeros((6, 3), np.float32), np.zeros((6, 0), np.float32)])
def test_without_any_movement_time_passes(state: Array) -> None:
    np.testing.assert_allclose(measure_active_time(state), np.linspace(0, 1, 6))
    assert measure_active_time(state[:1]).tolist() == [0.0]


@pytest.mark.thorough
def test_guessed_progress_of_a_dataset_stands_still_in_a_pause(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from embodied_rl.datasets.lerobot import collected

    steady = good_records()[0]
    count = len(steady.actions)
    middle, end = count // 2, count - 1
    waits = rearrange(steady, lambda _: np.sort(np.concatenate([np.arange(count), [middle] * 20])))
    stays = rearrange(steady, lambda _: np.sort(np.concatenate([np.arange(count), [end] * 20])))
    with collected.make_dataset(tmp_path / "set", make_spec(), "tabletop", "png") as writer:
        for each in (steady, waits, stays):
            collected.write_episode(writer, each)
    straight, waited, stayed = read_dataset(str(tmp_path / "set"), 3, 0)
    assert straight.goals[0].progress[-1] == 1 and (np.diff(straight.goals[0].progress) > 0).all()
    assert straight.goals[0].done.sum() == 1
    flat = np.diff(waited.goals[0].progress) == 0
    assert flat.sum() >= 5 and waited.goals[0].done.sum() == 1 and waited.goals[0].progress[-1] == 1
    assert stayed.goals[0].done.sum() >= 5 and (stayed.goals[0].progress[stayed.goals[0].done] == 1).all()


@pytest.mark.thorough
def test_with_pauses_the_guess_is_nearer_to_the_truth_than_the_clock() -> None:
    errors: list[tuple[float, float]] = []
    for state, truth in record_with_progress(16, pause=12):
        clock, active = np.linspace(0, 1, len(state)), measure_active_time(state)
        errors.append((float(np.abs(clock - truth).mean()), float(np.abs(active - truth).mean())))
        assert correlate_ranks(active, truth) >= 0.9 * correlate_ranks(clock, truth)
    clock_error, active_error = np.mean(errors, axis=0)
    assert active_error < 0.75 * clock_error


# -- datasets ---------------------------------------------------------------------------------------------------------

FEATURES = {**making_datasets.PNG, **making_datasets.NUMBERS}


@pytest.mark.thorough
def test_frames_of_a_dataset(tmp_path: Path) -> None:
    folder = str(making_datasets.made(tmp_path / "shown", 4, FEATURES))
    spec = check_dataset(folder)
    assert [(each.name, each.height, each.width) for each in spec.cameras] == [("wrist", 48, 64)]
    assert "push" in spec.words and len(spec.state_names) == 3 and not spec.reports_progress
    shown = read_dataset(folder, 3, seed=1)
    assert len(shown) == 3 and all(each.success and not each.goals[0].true for each in shown)
    for each in shown:
        progress = each.goals[0].progress
        assert progress[0] == 0 and progress[-1] == 1 and np.all(np.diff(progress) > 0)
        assert each.frames["wrist"].shape == (len(progress), 48, 64, 3) and each.state.shape == (len(progress), 3)
        assert each.goals[0].instruction in {making_datasets.task(number) for number in range(3)}
    assert [e.goals[0].instruction for e in read_dataset(folder, 3, 1)] == [e.goals[0].instruction for e in shown]


@pytest.mark.parametrize("names", [["x", "y", "gripper"], None, {"motors": ["x", "y", "z"]}, ["x", "y"], ["x", "x", 3]])
def test_a_dataset_names_its_state_so_that_a_critic_of_the_same_robot_fits(tmp_path: Path, names: Any) -> None:
    features = {**making_datasets.PNG, "observation.state": Feature("float32", (3,), names)}
    folder = str(making_datasets.made(tmp_path / "shown", 2, features))
    known = ("x", "y", "gripper") if names == ["x", "y", "gripper"] else ("state 0", "state 1", "state 2")
    assert check_dataset(folder).state_names == known


def test_a_dataset_that_says_what_failed(tmp_path: Path) -> None:
    from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter

    features = {**making_datasets.PNG, "next.success": Feature("bool", (1,))}
    with DatasetWriter(tmp_path / "made", features, making_datasets.FPS, "toy") as writer:
        for success in (True, False):
            frames = [making_datasets.frame(0, n, making_datasets.PNG) for n in range(4)]
            marked = [each | {"next.success": success and n == 3} for n, each in enumerate(frames)]
            writer.add_episode(iter(marked), "stack")
    shown = read_dataset(str(tmp_path / "made"), 9, 0)
    assert [each.success for each in shown] == [True, False]
    assert [each.goals[0].done.tolist() for each in shown] == [[False] * 3 + [True], [False] * 4]


# -- training examples

WORDS = ("pick up the red cube", "press the blue button", "push the red cube to the blue zone")


def test_failures_are_not_done_and_their_progress_is_unknown() -> None:
    episodes = [draw_episode(n, success=n % 2 == 0, words=WORDS[n % 3]) for n in range(6)]
    made = make_examples(episodes, 0)
    failed = [each for each in made if not each.success]
    assert len(failed) == 3 and len(made) == 3 + 3 * 3
    for each in failed:
        assert np.isnan(each.goals[0].progress).all() and not each.goals[0].done.any()
    for each in made:
        assert each.goals[0].instruction not in [goal.instruction for goal in each.goals[1:]]
        assert len(each.goals) in (1, 3) and all(
            not goal.progress.any() and not goal.done.any() for goal in each.goals[1:]
        )


def test_what_goes_back_is_shown_under_its_own_words_alone() -> None:
    made = make_examples([draw_episode(n, frames=9, words=WORDS[n % 3]) for n in range(3)], 0)
    back = [each for each in made if not each.goals[0].progress.any()]
    assert len(made) == 9 and len(back) == 3 and all(len(each.goals) == 1 for each in back)
    assert all(len(each.goals) == 3 for each in made if each.goals[0].progress.any())


def test_a_clipped_episode_counts_from_its_own_beginning_and_is_not_done() -> None:
    episode = draw_episode(0, frames=9)
    for seed in range(50):
        part = clip(episode, np.random.default_rng(seed))
        assert part is not None
        progress, frames = part.goals[0].progress, len(part.state)
        assert 2 <= frames < 9 and len(part.frames["front"]) == len(progress) == frames
        assert progress[0] == 0 and (np.diff(progress) > 0).all() and progress[-1] < 1 and not part.goals[0].done.any()
        begin = int(np.flatnonzero((episode.state == part.state[0]).all(axis=1))[0])
        assert begin > 0 and np.array_equal(part.frames["front"], episode.frames["front"][begin : begin + frames])
        left = 8 - begin  # frames until it was done
        np.testing.assert_allclose(progress, np.arange(frames) / left, atol=1e-6)
    assert clip(draw_episode(0, frames=3), np.random.default_rng(0)) is None


def test_what_lies_before_the_beginning_is_no_progress() -> None:
    episode = draw_episode(0, frames=9)
    begins: set[int] = set()
    for seed in range(50):
        part = rewind(episode, np.random.default_rng(seed))
        assert part is not None
        begin = len(part.state) - 1
        begins.add(begin)
        assert np.array_equal(part.state, episode.state[begin::-1])
        assert np.array_equal(part.frames["front"], episode.frames["front"][begin::-1])
        assert not part.goals[0].progress.any() and not part.goals[0].done.any()
    assert begins == set(range(2, 8)), "never the frame that is done"
    assert rewind(draw_episode(0, frames=3), np.random.default_rng(0)) is None


@pytest.mark.parametrize("part", [clip, rewind])
def test_frames_of_a_last_pause_are_done_and_in_no_part(part: Callable[..., JudgedEpisode | None]) -> None:
    episode = draw_episode(0, frames=9)
    own = episode.goals[0]
    progress = np.minimum(np.linspace(0, 1.5, 9, dtype=np.float32), 1)
    paused = replace(episode, goals=(replace(own, progress=progress, done=progress >= 1),))
    for seed in range(50):
        found = part(paused, np.random.default_rng(seed))
        assert found is not None and not found.goals[0].done.any() and found.goals[0].progress.max() < 1


def test_what_teaches_nothing_is_refused() -> None:
    with refuses("dataset-one-instruction", "'pick up the red cube'"):
        make_examples([draw_episode(0), draw_episode(1)], 0)
    with refuses("dataset-without-successes"):
        make_examples([draw_episode(n, success=False, words=WORDS[n]) for n in range(2)], 0)
