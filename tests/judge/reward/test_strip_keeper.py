"""Strips of a few episodes are kept with their own pictures and scores, and nothing waits for them."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.strip_keeper import FollowedEpisode, StripKeeper, choose_episodes
from embodied_rl.reports.strips import FOLDER, FRAMES, KEPT, KeptStrip, make_strip_section, read_strips
from tests.support.collecting import half_skilled, inline, make
from tests.support.ended import wait_for
from tests.support.refusals import refuses
from tests.support.scoring import ToldScorer, request
from tests.support.scoring_writers import Coded, make_writer


def read_all(run: Path, name: str) -> tuple[KeptStrip, ...]:
    return read_strips(run / FOLDER / name)


def collect_some(folder: Path, scorer: ToldScorer, enough: Callable[[], bool] = lambda: True) -> None:
    writer = make_writer(folder, scorer)
    collector, actor = make(inline(1, kind=Coded), actor=half_skilled(), writers=[writer])

    def collect() -> bool:
        collector.collect(actor)
        return enough()

    wait_for(collect)
    writer.close()


def test_each_frame_has_its_own_picture_score_and_end(tmp_path: Path) -> None:
    """The scorer says what the picture shows, as a share of 255."""
    first, last = (tmp_path / FOLDER / f"{time}_0.json" for time in ("first", "last"))
    another = lambda: first.exists() and last.read_bytes() != first.read_bytes()  # noqa: E731
    collect_some(tmp_path, ToldScorer(cacheable=False), another)
    strips = read_all(tmp_path, "first_0.json")
    assert {each.group for each in strips} >= {"failure_high", "success_low"}
    for each in strips:
        assert ("failure" in each.strip.rest) == each.group.startswith("failure")
        assert each.strip.frames[0].place == 0, "an episode is whole"
        for frame in each.strip.frames:
            with Image.open(io.BytesIO(base64.b64decode(frame.picture.partition(",")[2]))) as picture:
                assert int(np.asarray(picture).max()) == round(255 * (frame.said or 0))
        assert each.rank == each.strip.frames[-1].said
    assert 'class="strip"' in make_strip_section(tmp_path)


def test_a_score_that_never_came_says_why(tmp_path: Path) -> None:
    def refuse_second(asked: ScoreRequest) -> Score:
        return Score.invalid("refused", "<b>no</b>") if asked.decision == 1 else Score(0.5)

    collect_some(tmp_path, ToldScorer(refuse_second, cacheable=False))
    frames = [frame for each in read_all(tmp_path, "last_0.json") for frame in each.strip.frames]
    silent = [frame for frame in frames if frame.place == 1]
    assert silent and all(frame.said is None and frame.note == "refused <b>no</b>" for frame in silent)
    assert "&lt;b&gt;no" in make_strip_section(tmp_path) and "<b>no" not in make_strip_section(tmp_path)


def follow(values: Sequence[float], reached: bool, kind: Any = "absolute") -> FollowedEpisode:
    episode = FollowedEpisode(0, "go", "top", reached=reached)
    for place, value in enumerate(values):
        episode.add(answer(Score(value), place, kind))
    return episode


def answer(score: Score, place: int, kind: Any) -> Ticket:
    asked = request(code=place % 256, decision=place)
    ticket = Ticket(ScoreRequest(0, place, kind, "go", asked.frames, asked.first, asked.state), 0, 0.0)
    ticket.score = score
    return ticket


def test_the_most_and_least_thought_of_are_chosen_once() -> None:
    failed = [follow([0.0, value], reached=False) for value in (0.9, 0.1, 0.5, 0.7)]
    reached = [follow([0.0, value], reached=True) for value in (0.3, 0.8)]
    silent = follow([], reached=True)
    chosen = choose_episodes([*failed, *reached, silent])
    assert [(group, each.opinion) for group, each in chosen] == [
        ("failure_high", 0.9), ("failure_high", 0.7), ("success_low", 0.3), ("success_low", 0.8),
        ("failure_low", 0.1), ("failure_low", 0.5),
    ]  # fmt: skip
    assert all(sum(name == group for name, _ in chosen) <= KEPT for group, _ in chosen)


def test_changes_are_added_up() -> None:
    strip = follow([0.5, 0.5, -0.5], reached=True, kind="pair").draw()
    assert [frame.said for frame in strip.frames] == pytest.approx([0.5, 0.75, 0.375])


@pytest.mark.parametrize("count", [1, 2, FRAMES, 17, 400])
def test_however_long_an_episode_is_a_strip_has_its_ends_and_little_is_held(count: int) -> None:
    episode = follow([place / count for place in range(count)], reached=False)
    strip = episode.draw()
    assert len(episode.frames) <= 2 * FRAMES and len(strip.frames) == min(count, FRAMES)
    assert strip.frames[0].place == 0 and strip.frames[-1].place == count - 1
    places = [frame.place for frame in strip.frames]
    assert places == sorted(places) and (count <= FRAMES or np.diff(places).max() <= 3 * count / FRAMES)


def test_large_pictures_are_held_small() -> None:
    ticket = answer(Score(0.5), 0, "absolute")
    large = {"top": np.zeros((1, 480, 640, 3), np.uint8)}
    ticket.request = replace(ticket.request, frames=large)
    episode = FollowedEpisode(0, "go", "top")
    episode.add(ticket)
    assert episode.latest is not None and episode.latest.picture.shape == (120, 160, 3)


def test_what_cannot_be_written_is_said_at_the_next_rollout(tmp_path: Path) -> None:
    (tmp_path / FOLDER.parts[0]).write_text("a file where the folder should be")
    keeper = StripKeeper(tmp_path, 0)
    ended = {0}
    keeper._working = keeper._pool.submit(
        keeper._follow, [answer(Score(0.1), 0, "absolute")], ended, ended, set(), False
    )
    keeper.close()
    with refuses("folder-not-writable", "strips"):
        keeper.check()
