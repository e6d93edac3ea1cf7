"""The shipped critic judges fresh episodes far better than chance."""

import numpy as np
import pytest

from embodied_rl.config import assets
from embodied_rl.critic.critic_file import load_critic
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.critic.measures import correlate_ranks
from embodied_rl.critic.network import CriticOutput, ProgressCritic
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.critics import gather_some


@pytest.fixture(scope="module")
def critic() -> ProgressCritic:
    return load_critic(assets.find_asset("tabletop_critic.safetensors"))


def judge(critic: ProgressCritic, episode: JudgedEpisode, goal: JudgedGoal) -> CriticOutput:
    frames = len(episode.state)
    first = {name: np.repeat(images[:1], frames, axis=0) for name, images in episode.frames.items()}
    return critic(episode.frames, first, [goal.instruction] * frames, episode.state)


def test_it_fits_the_tabletop_and_says_where_it_comes_from(critic: ProgressCritic) -> None:
    critic.check_fit(spec_of(TabletopConfig()))
    assert critic.provenance["sim"] == "tabletop" and critic.provenance["held_out"]["voc"]["low"] > 0.95


@pytest.mark.thorough
def test_it_orders_frames_by_progress(critic: ProgressCritic) -> None:
    found = [
        correlate_ranks(judge(critic, episode, goal).progress, goal.progress)
        for episode in gather_some()
        for goal in episode.goals[:2]
        if np.ptp(goal.progress) > 0.1
    ]
    assert len(found) > 20 and np.mean(found) > 0.7


def test_it_knows_which_goal_was_meant(critic: ProgressCritic) -> None:
    gaps, wrong = [], []
    for episode in (each for each in gather_some() if each.goals[0].done[-1]):
        own = judge(critic, episode, episode.goals[0]).progress[-1]
        for goal in episode.goals[1:]:
            if goal.relation == "object":
                said = judge(critic, episode, goal).progress[-1]
                gaps.append(own - said)
                wrong.append(said)
    assert len(gaps) >= 8 and np.mean(gaps) > 0.6 and np.mean(wrong) < 0.25


def test_it_says_done_where_it_is(critic: ProgressCritic) -> None:
    said = [(judge(critic, e, e.goals[0]).done[-1] > 0.5, e.goals[0].done[-1]) for e in gather_some()]
    assert np.mean([guess == true for guess, true in said]) > 0.8
