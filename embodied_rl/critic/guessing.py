"""Examples from recorded episodes whose truth nobody knows: progress is guessed from time.

A success advances with time to 1, as in time-contrastive and ReWiND rewards (arXiv:2505.10911). How far a failure came
nobody can say: it teaches that it is not done, and its progress is left out (NaN). The critic judges frames and not
sequences, so an episode that is played backwards, or that pauses, shows it nothing new; what does are later beginnings
(progress counts from the first frame, whatever that shows), clipped endings (which are not done), and other words.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError

MISMATCHES = 2
"""Other instructions that each episode is shown with."""
LATEST = 0.6
"""A later beginning lies within this share of the episode."""


def make_examples(episodes: Sequence[JudgedEpisode], seed: int) -> list[JudgedEpisode]:
    """Return episodes to train on: each as it is, and once more with a later beginning and a clipped ending.

    Args:
        episodes: with the own goal alone, guessed from time.
        seed: of what is drawn.

    Raises:
        UserError: no episode succeeds, or all are told the same, so that the words could not be learned.
    """
    words = sorted({episode.goals[0].instruction for episode in episodes})
    if len(words) < 2:
        raise UserError(
            f"All episodes are told {words[0]!r}: a critic learns what words mean from episodes with different ones."
        )
    if not any(episode.success for episode in episodes):
        raise UserError("No episode succeeds: nothing says what progress looks like.")
    random = np.random.default_rng(seed)
    found: list[JudgedEpisode] = []
    for episode in episodes:
        found.append(add_words(_forget_failure(episode), words, random))
        if episode.success and (part := clip(episode, random)) is not None:
            found.append(add_words(part, words, random))
    return found


def clip(episode: JudgedEpisode, random: np.random.Generator) -> JudgedEpisode | None:
    """Return a part of a success that begins later and ends before it is done; None if it is too short."""
    frames = len(episode.state)
    if frames < 4:
        return None
    begin = int(random.integers(1, max(2, int(LATEST * frames))))
    end = int(random.integers(begin + 2, frames)) if begin + 2 < frames else frames - 1
    own = episode.goals[0]
    left = 1 - own.progress[begin]
    progress = (own.progress[begin:end] - own.progress[begin]) / max(float(left), 1e-6)
    goal = replace(own, progress=progress.astype(np.float32), done=own.done[begin:end])
    images = {name: frames[begin:end] for name, frames in episode.frames.items()}
    return replace(episode, frames=images, state=episode.state[begin:end], goals=(goal,))


def add_words(episode: JudgedEpisode, words: Sequence[str], random: np.random.Generator) -> JudgedEpisode:
    """Return an episode with other instructions, too, under which it makes no progress."""
    others = [each for each in words if each != episode.goals[0].instruction]
    chosen = random.permutation(len(others))[:MISMATCHES]
    nothing = np.zeros(len(episode.state), np.float32)
    wrong = [JudgedGoal(others[i], "task", nothing, nothing > 0, true=False) for i in chosen]
    return replace(episode, goals=(episode.goals[0], *wrong))


def _forget_failure(episode: JudgedEpisode) -> JudgedEpisode:
    if episode.success:
        return episode
    own = episode.goals[0]
    return replace(episode, goals=(replace(own, progress=np.full_like(own.progress, np.nan)),))
