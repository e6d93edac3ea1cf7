"""Time stands still while a demonstrator does, and progress that is guessed from it comes nearer to the truth."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.critic.dataset_episodes import SHORTEST, find_pauses, measure_active_time, read_dataset
from embodied_rl.critic.measures import correlate_ranks
from embodied_rl.interfaces.sim import Array
from tests.support.planted_demonstrations import good_records, make_spec, rearrange, record_with_progress


def wander(steps: int, speed: float = 0.02) -> Array:
    """A movement of three joints that never rests."""
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
    """Nothing is made up: a pause that cannot be seen is not left out."""
    state = hold(wander(50), 20, 30)
    state += 0.01 * np.random.default_rng(1).standard_normal(state.shape).astype(np.float32)
    np.testing.assert_allclose(measure_active_time(state), np.linspace(0, 1, 80), atol=0.05)


def test_a_turn_is_no_pause() -> None:
    short = hold(wander(50), 20, SHORTEST - 1)
    assert not find_pauses(short).any() and find_pauses(hold(wander(50), 20, SHORTEST)).sum() == SHORTEST


def test_a_gripper_that_closes_is_movement() -> None:
    """Its entry changes twice in an episode, while the arm stands."""
    arm = hold(wander(40), 20, 8)
    gripper = np.where(np.arange(len(arm)) < 21, 0.08, np.clip(0.08 - 0.01 * (np.arange(len(arm)) - 20), 0.0, 0.08))
    state = np.concatenate([arm, gripper[:, None].astype(np.float32)], axis=1)
    assert find_pauses(arm).sum() == 8 and not find_pauses(state).any()


@pytest.mark.parametrize("state", [np.zeros((6, 3), np.float32), np.zeros((6, 0), np.float32)])
def test_without_any_movement_time_passes(state: Array) -> None:
    np.testing.assert_allclose(measure_active_time(state), np.linspace(0, 1, 6))
    assert measure_active_time(state[:1]).tolist() == [0.0]


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


def test_with_pauses_the_guess_is_nearer_to_the_truth_than_the_clock() -> None:
    """Of operators that stop for a while, against the simulator's progress."""
    errors: list[tuple[float, float]] = []
    for state, truth in record_with_progress(16, pause=12):
        clock, active = np.linspace(0, 1, len(state)), measure_active_time(state)
        errors.append((float(np.abs(clock - truth).mean()), float(np.abs(active - truth).mean())))
        assert correlate_ranks(active, truth) >= 0.9 * correlate_ranks(clock, truth)
    clock_error, active_error = np.mean(errors, axis=0)
    assert active_error < 0.75 * clock_error
