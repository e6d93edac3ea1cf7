"""Small critics and judged episodes, made in seconds."""

from functools import cache

import numpy as np
import torch

from embodied_rl.assembly import build
from embodied_rl.critic.episode_collection import EpisodeDraw, EpisodeKind, collect_episodes
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.critic.network import CriticConfig, ProgressCritic
from embodied_rl.schema import SimNode

BASE = "asset:tabletop_base.safetensors"
SIM = SimNode("tabletop")


def make_critic(seed: int = 0) -> ProgressCritic:
    """A critic on the base checkpoint, untrained, with weights drawn from a seed."""
    backbone, embodiment = build.load_backbone(build.resolve_policy_file(BASE))
    torch.manual_seed(seed)
    return ProgressCritic(backbone, embodiment, "pocket", CriticConfig(squeezed=2, hidden=8)).eval()


@cache
def gather_some() -> tuple[JudgedEpisode, ...]:
    """Real episodes: successes and failures, ended by success or not."""
    sources = [EpisodeKind("careful", 7), EpisodeKind("faulty", 7), EpisodeKind("policy", 7, goes_on=True)]
    return tuple(collect_episodes(SIM, BASE, sources, EpisodeDraw(3, "report")))


def draw_episode(
    seed: int, frames: int = 5, success: bool = True, words: str = "pick up the red cube"
) -> JudgedEpisode:
    """An episode of noise, of the tabletop's camera and state, whose progress is time."""
    random = np.random.default_rng(seed)
    progress = np.linspace(0, 1 if success else 0.5, frames, dtype=np.float32)
    return JudgedEpisode(
        {"front": random.integers(0, 256, (frames, 64, 64, 3), dtype=np.uint8)},
        random.standard_normal((frames, 7)).astype(np.float32) * 0.05,
        (JudgedGoal(words, "own", progress, progress >= 1, true=False),),
        success,
        "noise",
        "pick",
    )
