"""Training examples from recorded episodes without ground truth: progress is estimated from time.

A success advances with time to 1, as in time-contrastive and ReWiND rewards (arXiv:2505.10911); pauses of the
demonstrator are left out of that time (`active_time`). The progress of a failure is unknown (NaN): it trains "not done"
alone. The critic compares a frame with the episode's first one, and does not see sequences. So of a rewound episode
only frames before its start are new to it, which have progress 0 (`rewind`); others are later beginnings (progress
counts from the first frame), clipped endings, which are not done (`clip`), and other words (`add_words`), as ReWiND and
SARM (arXiv:2509.25358) show them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

MISMATCHES = 2
"""Other instructions that each episode is shown with."""
LATEST = 0.6
"""A later beginning lies within this share of the episode."""


def make_examples(episodes: Sequence[JudgedEpisode], seed: int) -> list[JudgedEpisode]:
    """Return episodes to train on: each as it is; successes also with a later beginning and a clipped ending, and going
    back behind a later beginning.

    Args:
        episodes: with the own goal alone, guessed from time.
        seed: of what is drawn.

    Raises:
        UserError: no episode succeeds, or all have the same instruction, so that the words could not be learned.
    """
    words = sorted({episode.goals[0].instruction for episode in episodes})
    if len(words) < 2:
        raise UserError(
            f"All episodes have the instruction {words[0]!r}: a critic needs episodes with different instructions.",
            code="dataset-one-instruction",
        )
    if not any(episode.success for episode in episodes):
        raise UserError(
            "No episode succeeds: a critic needs successes to learn progress.", code="dataset-without-successes"
        )
    random = np.random.default_rng(seed)
    found: list[JudgedEpisode] = []
    for episode in episodes:
        found.append(add_words(_mask_failure_progress(episode), words, random))
        if episode.success and (part := clip(episode, random)) is not None:
            found.append(add_words(part, words, random))
        if episode.success and (back := rewind(episode, random)) is not None:
            found.append(back)  # nothing is progress in it, whatever the words
    return found


def clip(episode: JudgedEpisode, random: np.random.Generator) -> JudgedEpisode | None:
    """Return a part of a success that begins later and ends before it is done; None if it is too short."""
    frames = _count_until_done(episode)
    if frames < 4:
        return None
    begin = int(random.integers(1, max(2, int(LATEST * frames))))
    end = int(random.integers(begin + 2, frames)) if begin + 2 < frames else frames - 1
    return _rearrange(episode, np.arange(begin, end))


def rewind(episode: JudgedEpisode, random: np.random.Generator) -> JudgedEpisode | None:
    """Return a success that begins later and then goes back behind its beginning; None if it is too short.

    Its first frame is the later beginning; the others run backwards from there. None is progress, and none is done.
    """
    frames = _count_until_done(episode)
    if frames < 4:
        return None
    begin = int(random.integers(2, frames - 1))
    return _rearrange(episode, np.arange(begin, -1, -1))


def _count_until_done(episode: JudgedEpisode) -> int:
    """Return the number of frames up to the first one that is done, with it."""
    done = episode.goals[0].done
    return int(np.argmax(done)) + 1 if done.any() else len(done)


def _rearrange(episode: JudgedEpisode, places: Array) -> JudgedEpisode:
    """Return some frames of an episode, int64 [t]; progress counts from the first of them on."""
    own = episode.goals[0]
    begun = own.progress[places[0]]
    progress = np.clip((own.progress[places] - begun) / max(float(1 - begun), 1e-6), 0, 1).astype(np.float32)
    goal = replace(own, progress=progress, done=own.done[places])
    images = {name: pictures[places] for name, pictures in episode.frames.items()}
    return replace(episode, frames=images, state=episode.state[places], goals=(goal,))


def add_words(episode: JudgedEpisode, words: Sequence[str], random: np.random.Generator) -> JudgedEpisode:
    """Return an episode with other instructions, too, under which it makes no progress."""
    others = [each for each in words if each != episode.goals[0].instruction]
    chosen = random.permutation(len(others))[:MISMATCHES]
    nothing = np.zeros(len(episode.state), np.float32)
    wrong = [JudgedGoal(others[i], "task", nothing, nothing > 0, true=False) for i in chosen]
    return replace(episode, goals=(episode.goals[0], *wrong))


def _mask_failure_progress(episode: JudgedEpisode) -> JudgedEpisode:
    if episode.success:
        return episode
    own = episode.goals[0]
    return replace(episode, goals=(replace(own, progress=np.full_like(own.progress, np.nan)),))
