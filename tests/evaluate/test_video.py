"""Films show the episodes that were evaluated, one frame per control step."""

import imageio_ffmpeg
import numpy as np
import pytest

from embodied_rl.evaluate import video
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.evaluate.video import (
    Recording,
    choose_worst_and_best,
    film_episodes,
    record_episodes,
    tile_recordings,
    write_mp4,
)
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.system.atomic_write import StorageError


def read_mp4(path):
    frames = imageio_ffmpeg.read_frames(str(path))
    width, height = next(frames)["size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]


def test_a_film_repeats_the_evaluation_with_a_frame_per_step(spec, make_actor, make_simulator, make_handles, executed):
    episodes = enumerate_episodes(spec, "eval", 11)

    class Trimmed(make_actor):
        def act(self, observation, keys, explore):
            decision = super().act(observation, keys, explore)
            decision.actions = decision.actions[:, :executed]
            return decision

    results = evaluate_policy(Trimmed(), make_handles(1, 4), spec, episodes, 3, 4, executed)
    actor = Trimmed()
    recordings = record_episodes(actor, make_simulator(4), episodes, num_envs=4, seed=3, width=12, height=8)
    assert [r.episode for r in recordings] == episodes
    for recording, result in zip(recordings, results, strict=True):
        assert recording.success == result.success
        assert len(recording.frames) == result.steps + 1
        assert recording.instruction == spec.tasks[result.task].name
        assert all(frame.shape == (8, 12, 3) for frame in recording.frames)
        # The camera shows ten times the clock of the simulator.
        assert [int(frame[0, 0, 0]) for frame in recording.frames] == [10 * k for k in range(result.steps + 1)]
    assert all(call.observation.privileged is None and not call.explore for call in actor.calls)


def test_a_simulator_that_renders_is_asked_for_each_running_row(spec, make_actor, make_simulator):
    class Rendering(make_simulator):
        def render(self, row, width, height):
            assert self.episode[row] is not None, "a parked row has nothing to show"
            return np.full((height, width, 3), self.clock[row], np.uint8)

    for recording in record_episodes(
        make_actor(), Rendering(4), enumerate_episodes(spec, "eval", 4), num_envs=4, seed=3
    ):
        assert [int(frame[0, 0, 0]) for frame in recording.frames] == list(range(len(recording.frames)))


def recording(length, success, size=(20, 30)):
    frames = [np.full((*size, 3), 7 * k, np.uint8) for k in range(length)]
    return Recording(Episode(0, 0, 0), "pick up the red cube", frames, success)


def test_a_grid_plays_side_by_side_and_ends_in_green_or_red():
    frames = tile_recordings([recording(3, True), recording(5, False), recording(4, True)], fps=10)
    assert len(frames) == 5 + 15 and frames[0].shape == (2 * (20 + 8 + 26), 2 * (30 + 8), 3)
    corners = [tuple(frames[k][26, 0].tolist()) for k in (0, 1, 2, 19)]
    assert corners[0] == corners[1] != corners[2] == corners[3], "the border changes when the episode ends"
    red, green, blue = frames[-1][26, 0].tolist()
    assert green > max(red, blue)
    red, green, blue = frames[-1][26, 38].tolist()
    assert red > max(green, blue)
    assert frames[2][36, 15, 0] == 14 and frames[4][36, 15, 0] == 14, "an ended episode keeps its last frame"
    assert (frames[0][60:, 40:] == 255).all(), "a free place is white"


def test_the_instruction_stands_above_the_tile():
    plain, with_text = Recording(Episode(0, 0, 0), "", recording(1, True).frames), recording(1, True)
    strips = [tile_recordings([r], fps=1)[0][:26] for r in (plain, with_text)]
    assert (strips[0] == 255).all() and (strips[1] < 128).any()


def test_an_mp4_holds_every_frame_in_even_sizes(tmp_path):
    frames = [np.full((33, 47, 3), 12 * k, np.uint8) for k in range(12)]
    write_mp4(tmp_path / "film.mp4", frames, fps=12.5)
    found = read_mp4(tmp_path / "film.mp4")
    assert len(found) == 12 and found[0].shape == (34, 48, 3)
    assert [frame.mean() for frame in found] == pytest.approx([12 * k for k in range(12)], abs=6)


def noise(frames: int) -> list[np.ndarray]:
    """Frames that no codec makes small."""
    return [np.random.default_rng(k).integers(0, 255, (64, 64, 3), np.uint8) for k in range(frames)]


def test_a_film_that_does_not_fit_on_the_disk_is_none(tmp_path, files_up_to):
    film = tmp_path / "film.mp4"
    write_mp4(film, noise(10), fps=10)
    with files_up_to(film.stat().st_size // 2), pytest.raises(StorageError, match=r"disk is full: .*film\.mp4"):
        write_mp4(film, noise(10), fps=10)
    assert not film.exists()


def test_a_killed_encoder_is_named(tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text("#!/bin/sh\nkill -9 $$\n")
    encoder.chmod(0o700)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(encoder))
    with pytest.raises(RunFailed, match=r"ffmpeg, which writes .*film\.mp4, was killed by SIGKILL"):
        write_mp4(tmp_path / "film.mp4", noise(10), fps=10)


def test_worst_and_best_cover_different_tasks_first():
    def result(index, task, success, steps):
        return EpisodeResult(index, task, index, "train", success, success, steps, float(success), 0.0)

    results = [
        result(0, 0, True, 9),
        result(1, 0, True, 5),
        result(2, 1, True, 30),
        result(3, 0, False, 50),
        result(4, 2, False, 50),
        result(5, 0, False, 40),
    ]
    worst, best = choose_worst_and_best(results, 2, 2)
    assert [r.index for r in best] == [1, 2] and [r.index for r in worst] == [3, 4]
    assert choose_worst_and_best(results, 0, 9)[0] == [] and len(choose_worst_and_best(results, 9, 9)[1]) == 3


def test_film_writes_grid_best_and_worst(tmp_path, spec, make_actor, make_simulator, make_handles, executed):
    results = evaluate_policy(
        make_actor(), make_handles(1, 4), spec, enumerate_episodes(spec, "eval", 8), 0, 4, executed
    )
    videos = film_episodes(make_actor(), make_simulator, spec, results, tmp_path / "videos", episodes=4)
    assert [video.stem for video in videos] == ["grid", "best", "worst"]
    assert all(read_mp4(video) for video in videos)
    assert film_episodes(make_actor(), make_simulator, spec, results, tmp_path, episodes=0, best=0, worst=0) == []


def test_a_film_shows_sixteen_episodes_and_two_of_the_best_and_worst(
    tmp_path, monkeypatch, spec, make_actor, make_simulator, make_handles, executed
):
    """Unless other numbers are asked for: the first sixteen, in a square."""
    listed = enumerate_episodes(spec, "eval", 20)
    results = evaluate_policy(make_actor(), make_handles(1, 4), spec, listed, 0, 4, executed)
    tiled = {}
    monkeypatch.setattr(
        video,
        "tile_recordings",
        lambda shown, fps: [np.full((2, 2, 3), each.episode.index, np.uint8) for each in shown],
    )
    monkeypatch.setattr(
        video, "write_mp4", lambda path, frames, fps: tiled.update({path.stem: [int(each.min()) for each in frames]})
    )
    film_episodes(make_actor(), make_simulator, spec, results, tmp_path)
    assert tiled["grid"] == list(range(16))
    assert len(tiled["best"]) == len(tiled["worst"]) == 2
