"""Films show the episodes that were evaluated, one frame per control step."""

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from embodied_rl.evaluate import video
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.evaluate.video import (
    SHOWN,
    Recording,
    choose_failures,
    choose_pairs,
    choose_worst_and_best,
    film_episodes,
    keep_film,
    read_films,
    record_episodes,
    record_results,
    tile_recordings,
    write_mp4,
)
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.system.atomic_write import StorageError
from tests.support.refusals import refuses


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


def test_the_first_episode_of_each_frequent_kind_of_failure_is_chosen():
    kinds = ("dropped", None, "late", "late", "missed", "late", "dropped")
    results = [
        EpisodeResult(index, 0, index, "train", won, won, 9, float(won), 0.0, failure=kind)
        for index, (kind, won) in enumerate(zip(kinds, (False,) * 7, strict=True))
    ]
    assert [result.index for result in choose_failures(results, 9)] == [2, 0, 4]
    assert [result.index for result in choose_failures(results, 1)] == [2] and choose_failures(results, 0) == []


def test_a_film_shows_sixteen_episodes_and_two_of_the_best_and_worst(
    tmp_path, monkeypatch, spec, make_actor, make_simulator, make_handles, executed
):
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
    videos = film_episodes(make_actor(), make_simulator, spec, results, tmp_path, kinds=0)
    assert [film.stem for film in videos] == ["grid", "best", "worst"] and tiled["grid"] == list(range(16))
    none = {"episodes": 0, "best": 0, "worst": 0}
    assert film_episodes(make_actor(), make_simulator, spec, results, tmp_path, **none, kinds=0) == []
    assert len(tiled["best"]) == len(tiled["worst"]) == 2
    lost = next(result for result in results if not result.success)
    videos = film_episodes(make_actor(), make_simulator, spec, results, tmp_path, **none)
    assert [film.stem for film in videos] == [f"failure_{lost.index}"] and tiled[videos[0].stem] == [lost.index]


# -- films from before training ----------------------------------------------------------------------------------------


def outcome(index, success):
    return EpisodeResult(index, 0, 7, "train", success, success, 9, 0.0, 0.0)


def shaded(index, shade):
    return Recording(Episode(index, 0, 7), "go", [np.full((32, 48, 3), shade + k, np.uint8) for k in range(5)])


def test_a_kept_film_is_read_back_with_the_outcome_of_its_episode(tmp_path):
    for index, shade in ((0, 60), (3, 160)):
        keep_film(tmp_path / "before", shaded(index, shade), 10.0)
    assert sorted(file.name for file in (tmp_path / "before").iterdir()) == ["episode_0.mp4", "episode_3.mp4"]
    found = read_films(tmp_path / "before", [outcome(0, True), outcome(1, True), outcome(3, False)])
    assert {index: (film.success, film.episode.index) for index, film in found.items()} == {0: (True, 0), 3: (False, 3)}
    for index, shade in ((0, 60), (3, 160)):
        frames = found[index].frames
        assert len(frames) == 5 and frames[0].shape == (32, 48, 3)
        assert [frame.mean() for frame in frames] == pytest.approx([shade + k for k in range(5)], abs=4)


def test_a_film_whose_writing_fails_is_not_there(tmp_path, monkeypatch):
    def stop(path, frames, fps):
        path.write_bytes(b"half a film")
        raise RuntimeError("stopped")

    monkeypatch.setattr("embodied_rl.evaluate.video.write_mp4", stop)
    with pytest.raises(RuntimeError, match="stopped"):
        keep_film(tmp_path, shaded(0, 9), 10.0)
    assert read_films(tmp_path, [outcome(0, True)]) == {}


def test_a_damaged_film_is_named(tmp_path):
    (tmp_path / "episode_0.mp4").write_bytes(b"no film")
    with refuses("film-damaged", "episode_0.mp4"):
        read_films(tmp_path, [outcome(0, True)])


def test_a_film_that_lists_other_files_is_none(tmp_path):
    """A list that FFmpeg would follow: to a playlist beside it, and from there to a film of the user's."""
    keep_film(tmp_path / "mine", shaded(0, 60), 10.0)
    run = tmp_path / "run"
    run.mkdir()
    listed = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path / 'mine' / 'episode_0.mp4'}\n#EXT-X-ENDLIST\n"
    (run / "list.m3u8").write_text(listed)
    (run / "episode_0.mp4").write_text("ffconcat version 1.0\nfile list.m3u8\n")
    with refuses("film-damaged", "episode_0.mp4"):
        read_films(run, [outcome(0, True)])


OUTCOMES = [(False, True)] * 50 + [(True, False)] * 24 + [(True, True)] * 26
"""Success before and after of 100 episodes: in shares of the four shown, 2, 1 and 1."""


@pytest.mark.parametrize("shift", range(0, 100, 7))
def test_pairs_stand_for_the_shares_of_all_outcomes(shift):
    turned = [OUTCOMES[(37 * place + shift) % 100] for place in range(100)]
    before, after = ([outcome(index, each[side]) for index, each in enumerate(turned)] for side in (0, 1))
    chosen = choose_pairs(before, after, filmed=range(100))
    assert sorted(turned[index] for index in chosen) == [(False, True)] * 2 + [(True, False), (True, True)]
    few = choose_pairs(before, after, filmed=[index for index in range(100) if turned[index] == (True, True)])
    assert len(few) == SHOWN and few == sorted(few), "others fill up where an outcome was not filmed"


def test_without_films_there_are_no_pairs():
    assert choose_pairs([], [outcome(0, True)], {}) == choose_pairs([outcome(0, True)], [outcome(0, True)], {}) == []


@pytest.mark.thorough
def test_before_stands_at_the_left_of_after(spec, make_actor, make_simulator, make_handles, executed, tmp_path):
    episodes = enumerate_episodes(spec, "eval", 6)
    results = evaluate_policy(make_actor(), make_handles(1, 4), spec, episodes, 0, 4, executed)
    filmed = record_results(make_actor(), make_simulator, results[:2], seed=0)
    before = {index: Recording(film.episode, "", [film.frames[0] * 0] * 3) for index, film in filmed.items()}
    videos = film_episodes(
        make_actor(), make_simulator, spec, results, tmp_path, episodes=1, best=0, worst=0, kinds=0, before=before
    )
    assert [video.stem for video in videos] == ["grid", "pair_0", "pair_1"]
    with Image.open(videos[1].with_suffix(".jpg")) as still:
        assert still.size == (2 * 232, 232 + 26)
    last = read_mp4(videos[1])[-1]
    left, right = last[30:254, 4:228], last[30:254, 236:460]
    assert left.mean() < 4, "before: black"
    clock = 10 * next(r.steps for r in results if r.index == 0)
    assert right.mean() == pytest.approx(clock, abs=4), "after: this simulator shows ten times its clock"
    border = last[28, 100].astype(int), last[28, 332].astype(int)
    assert border[0][0] > border[0][1], "before: red"
