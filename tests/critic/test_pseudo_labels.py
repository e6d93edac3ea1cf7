"""Progress that is guessed from time: what is shown to learn from, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.critic.dataset_episodes import clip, make_examples, rewind
from embodied_rl.critic.judged_episode import JudgedEpisode
from tests.support.critics import draw_episode
from tests.support.refusals import refuses

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
    """Nothing in it is progress, so that other words would tell nothing."""
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
