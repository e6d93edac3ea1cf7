"""Films from before training are kept, and joined with those of the same episodes after it."""

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.evaluate.stored_films import SHOWN, choose_pairs, keep_film, read_films
from embodied_rl.evaluate.video import Recording, film_episodes, record_results
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from tests.support.refusals import refuses


def result(index, success):
    return EpisodeResult(index, 0, 7, "train", success, success, 9, 0.0, 0.0)


def recording(index, shade):
    return Recording(Episode(index, 0, 7), "go", [np.full((32, 48, 3), shade + k, np.uint8) for k in range(5)])


def test_a_kept_film_is_read_back_with_the_outcome_of_its_episode(tmp_path):
    for index, shade in ((0, 60), (3, 160)):
        keep_film(tmp_path / "before", recording(index, shade), 10.0)
    assert sorted(file.name for file in (tmp_path / "before").iterdir()) == ["episode_0.mp4", "episode_3.mp4"]
    found = read_films(tmp_path / "before", [result(0, True), result(1, True), result(3, False)])
    assert {index: (film.success, film.episode.index) for index, film in found.items()} == {
        0: (True, 0),
        3: (False, 3),
    }
    for index, shade in ((0, 60), (3, 160)):
        frames = found[index].frames
        assert len(frames) == 5 and frames[0].shape == (32, 48, 3)
        assert [frame.mean() for frame in frames] == pytest.approx([shade + k for k in range(5)], abs=4)


def test_a_film_whose_writing_fails_is_not_there(tmp_path, monkeypatch):
    def stop(path, frames, fps):
        path.write_bytes(b"half a film")
        raise RuntimeError("stopped")

    monkeypatch.setattr("embodied_rl.evaluate.stored_films.write_mp4", stop)
    with pytest.raises(RuntimeError, match="stopped"):
        keep_film(tmp_path, recording(0, 9), 10.0)
    assert read_films(tmp_path, [result(0, True)]) == {}


def test_a_damaged_film_is_named(tmp_path):
    (tmp_path / "episode_0.mp4").write_bytes(b"no film")
    with refuses("film-damaged", "episode_0.mp4"):
        read_films(tmp_path, [result(0, True)])


def test_a_film_that_lists_other_files_is_none(tmp_path):
    """A list that FFmpeg would follow: to a playlist beside it, and from there to a film of the user's."""
    keep_film(tmp_path / "mine", recording(0, 60), 10.0)
    run = tmp_path / "run"
    run.mkdir()
    listed = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path / 'mine' / 'episode_0.mp4'}\n#EXT-X-ENDLIST\n"
    (run / "list.m3u8").write_text(listed)
    (run / "episode_0.mp4").write_text("ffconcat version 1.0\nfile list.m3u8\n")
    with refuses("film-damaged", "episode_0.mp4"):
        read_films(run, [result(0, True)])


OUTCOMES = [(False, True)] * 50 + [(True, False)] * 24 + [(True, True)] * 26
"""Success before and after of 100 episodes: in shares of the four shown, 2, 1 and 1."""


@pytest.mark.parametrize("shift", range(0, 100, 7))
def test_pairs_stand_for_the_shares_of_all_outcomes(shift):
    turned = [OUTCOMES[(37 * place + shift) % 100] for place in range(100)]
    before, after = ([result(index, each[side]) for index, each in enumerate(turned)] for side in (0, 1))
    chosen = choose_pairs(before, after, filmed=range(100))
    assert sorted(turned[index] for index in chosen) == [(False, True)] * 2 + [(True, False), (True, True)]
    few = choose_pairs(before, after, filmed=[index for index in range(100) if turned[index] == (True, True)])
    assert len(few) == SHOWN and few == sorted(few), "others fill up where an outcome was not filmed"


def test_without_films_there_are_no_pairs():
    assert choose_pairs([], [result(0, True)], {}) == choose_pairs([result(0, True)], [result(0, True)], {}) == []


def test_before_stands_at_the_left_of_after(spec, make_actor, make_simulator, make_handles, executed, tmp_path):
    episodes = enumerate_episodes(spec, "eval", 6)
    results = evaluate_policy(make_actor(), make_handles(1, 4), spec, episodes, 0, 4, executed)
    filmed = record_results(make_actor(), make_simulator, results[:2], seed=0)
    before = {index: Recording(film.episode, "", [film.frames[0] * 0] * 3) for index, film in filmed.items()}
    videos = film_episodes(
        make_actor(), make_simulator, spec, results, tmp_path, episodes=1, best=0, worst=0, before=before
    )
    assert [video.stem for video in videos] == ["grid", "pair_0", "pair_1"]
    with Image.open(videos[1].with_suffix(".jpg")) as still:
        assert still.size == (2 * 232, 232 + 26)
    frames = imageio_ffmpeg.read_frames(str(videos[1]))
    width, height = next(frames)["size"]
    assert (width, height) == (2 * 232, 232 + 26)
    last = np.frombuffer([*frames][-1], np.uint8).reshape(height, width, 3)
    left, right = last[30:254, 4:228], last[30:254, 236:460]
    assert left.mean() < 4, "before: black"
    clock = 10 * next(r.steps for r in results if r.index == 0)
    assert right.mean() == pytest.approx(clock, abs=4), "after: this simulator shows ten times its clock"
    border = last[28, 100].astype(int), last[28, 332].astype(int)
    assert border[0][0] > border[0][1], "before: red"
