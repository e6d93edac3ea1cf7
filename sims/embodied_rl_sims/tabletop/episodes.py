"""Encode episodes as integers for snapshots."""

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop.layout import SPLITS

_FIELDS = ("index", "task", "seed", "initial_state", "group", "split", "final_picture")


def pack_episode(episode: Episode | None) -> list[int]:
    """Return the fields of an episode; -1 everywhere for a parked environment."""
    if episode is None:
        return [-1] * len(_FIELDS)
    state = -1 if episode.initial_state is None else episode.initial_state
    split = ("train", *SPLITS).index(episode.split)
    return [episode.index, episode.task, episode.seed, state, episode.group, split, int(episode.final_picture)]


def unpack_episode(packed: Array) -> Episode | None:
    """Return the episode that `pack_episode` packed."""
    index, task, seed, state, group, split, *pictured = (int(value) for value in packed)
    if seed < 0:
        return None
    shown = pictured == [1]  # snapshots of earlier versions lack this field
    return Episode(index, task, seed, None if state < 0 else state, group, ("train", *SPLITS)[split], shown)
