"""Training: deterministic, it learns what can be learned, and unknown progress teaches nothing but "not done"."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.critic.network import ProgressCritic
from embodied_rl.critic.training import TrainingOptions, choose_rows, train_critic
from tests.support.critics import draw_episode, gather_some, make_critic
from tests.support.refusals import refuses

QUICK = TrainingOptions(steps=60, batch=32)


def learn(episodes, seed: int = 0, options: TrainingOptions = QUICK, before: int = 0) -> ProgressCritic:
    critic = make_critic(before)
    train_critic(critic, episodes, seed, options)
    return critic


def weights(critic: ProgressCritic) -> torch.Tensor:
    return torch.cat([value.flatten() for value in critic.head.parameters()])


@pytest.mark.thorough
def test_a_seed_fixes_every_bit() -> None:
    episodes = gather_some()[:3]
    first = weights(learn(episodes))
    assert torch.equal(first, weights(learn(episodes, before=7))), "whatever the head was before"
    assert not torch.equal(first, weights(learn(episodes, seed=1)))


def test_the_backbone_stays_as_it_is() -> None:
    before = {name: value.clone() for name, value in make_critic().backbone.state_dict().items()}
    critic = learn(gather_some()[:2])
    assert not any(parameter.requires_grad for parameter in critic.backbone.parameters())
    after = critic.backbone.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.thorough
def test_it_learns_what_it_is_shown() -> None:
    episode = gather_some()[0]
    critic = learn([episode], options=TrainingOptions(steps=400, batch=32, rate=3e-3))
    frames = len(episode.state)
    first = {name: np.repeat(images[:1], frames, 0) for name, images in episode.frames.items()}
    found = critic(episode.frames, first, [episode.goals[0].instruction] * frames, episode.state)
    assert np.abs(found.progress - episode.goals[0].progress).mean() < 0.06
    assert (found.done > 0.5).tolist() == episode.goals[0].done.tolist()
    np.testing.assert_allclose(found.bins.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.thorough
def test_progress_that_nobody_knows_is_left_out() -> None:
    """The head's progress rows get no gradient from NaN, and training stays finite."""
    episodes = [draw_episode(seed, success=False) for seed in range(3)]
    unknown = [
        replace(e, goals=(replace(e.goals[0], progress=np.full_like(e.goals[0].progress, np.nan)),)) for e in episodes
    ]
    done = learn(unknown, options=TrainingOptions(steps=1, batch=8, decay=0.0))
    start = make_critic()
    train_critic(start, unknown, 0, TrainingOptions(steps=0))
    (*_, last), (*_, first) = (list(each.head.parameters())[:-1] for each in (done, start))  # the last layer's weight
    assert torch.equal(last[:21], first[:21]) and not torch.equal(last[21], first[21])
    assert weights(learn(unknown)).isfinite().all()


def test_rows_ask_each_frame_for_the_own_goal_and_last_frames_for_others() -> None:
    episodes = gather_some()
    rows = choose_rows(episodes, np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) >= 0.95 * len(rows)
    for number, episode in enumerate(episodes):
        mine = rows[rows[:, 0] == number]
        last = len(episode.state) - 1
        assert sorted(mine[mine[:, 2] == 0, 1]) == list(range(last + 1))
        assert (mine[mine[:, 1] == last, 2] > 0).any()
    assert 0.5 < (rows[:, 2] > 0).sum() / (rows[:, 2] == 0).sum() < 1.7


def test_nothing_to_learn_from_is_refused() -> None:
    with refuses("dataset-empty"):
        learn([])
