"""Episodes are gathered as they were asked for, and relabelled as the simulator judges them."""

import numpy as np
import pytest

from embodied_rl.critic.episode_collection import EpisodeDraw, EpisodeKind, collect_episodes, mix_sources
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import SimNode
from tests.support.critics import BASE, SIM, gather_some


@pytest.mark.thorough
def test_episodes_have_their_frames_goals_and_ends() -> None:
    careful, going_on = gather_some()[:7], gather_some()[14:]
    for episode in gather_some():
        frames = len(episode.state)
        assert episode.frames["front"].shape == (frames, 64, 64, 3) and episode.frames["front"].dtype == np.uint8
        assert episode.frames["front"].max(axis=(1, 2, 3)).all(), "no picture is black, the last one neither"
        own, *others = episode.goals
        assert own.relation == "own" and all(goal.relation != "own" for goal in others) and len(others) >= 2
        assert own.progress[0] == 0 and not own.done[0]
        for goal in episode.goals:
            assert goal.true and goal.progress.shape == goal.done.shape == (frames,)
            assert np.array_equal(goal.progress == 1, goal.done)
    for episode in careful:
        assert episode.success and episode.goals[0].done[-1] and not episode.goals[0].done[:-1].any()
    assert any(len(episode.state) == 11 for episode in going_on), "50 steps in chunks of 5, and the beginning"
    assert {episode.actor for episode in gather_some()} == {"careful", "faulty", "policy"}


def test_an_episode_that_goes_on_after_success_is_done_there() -> None:
    (episode,) = collect_episodes(SIM, BASE, [EpisodeKind("careful", 1, goes_on=True)], EpisodeDraw(1))
    done = episode.goals[0].done
    assert episode.success and done[-1] and done.sum() > 1 and len(done) == 11


@pytest.mark.thorough
def test_episodes_depend_on_seed_and_purpose_alone() -> None:
    def words(draw: EpisodeDraw) -> list[str]:
        return [each.goals[0].instruction for each in collect_episodes(SIM, None, [EpisodeKind("careful", 3)], draw)]

    first = words(EpisodeDraw(0))
    assert (
        first == words(EpisodeDraw(0)) and first != words(EpisodeDraw(1)) and first != words(EpisodeDraw(0, "report"))
    )


def test_shares_are_whole() -> None:
    for episodes in (10, 333, 3900):
        sources = mix_sources(episodes)
        assert sum(source.episodes for source in sources) == episodes
        assert min(source.episodes for source in sources) > 0


@pytest.mark.thorough
@pytest.mark.process
def test_processes_gather_the_same_episodes() -> None:
    sources = [EpisodeKind("careful", 3), EpisodeKind("faulty", 2)]
    alone, together = (collect_episodes(SIM, None, sources, EpisodeDraw(5), processes) for processes in (1, 2))
    assert len(alone) == len(together) == 5
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.frames["front"], other.frames["front"]) and one.actor == other.actor
        assert [goal.instruction for goal in one.goals] == [goal.instruction for goal in other.goals]
        assert all(np.array_equal(a.progress, b.progress) for a, b in zip(one.goals, other.goals, strict=True))


@pytest.mark.parametrize(
    ("sim", "policy", "message"),
    [
        (SimNode("tabletop", options={"image_size": 32}), BASE, "front"),
        (SimNode("gymnasium", options={"id": "CartPole-v1"}), None, "does not report how far all goals"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(sim: SimNode, policy: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect_episodes(sim, policy, [EpisodeKind("careful", 1)], EpisodeDraw(0))
