"""Pipeline of `critic train`: collect or read episodes, train a critic, and evaluate it on held-out ones."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.critic.assessment import Assessment, assess_judge
from embodied_rl.critic.critic_file import save_critic
from embodied_rl.critic.dataset_episodes import add_mismatches, make_examples, read_dataset
from embodied_rl.critic.episode_collection import EpisodeDraw, check_sources, collect_episodes, mix_sources
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.network import ProgressCritic
from embodied_rl.critic.scorer import CriticScorer
from embodied_rl.critic.sequence_scoring import judge_episodes
from embodied_rl.critic.training import TrainingOptions, train_critic
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.requests.service import ServiceLimits
from embodied_rl.schema import CriticTrainConfig

SHOWN = (
    "valid", "voc", "failures", "other_object", "gap_object", "true_gap_object", "gap_task", "true_gap_task",
    "wrong_object", "wrong_object_share", "done_recall", "done_false", "progress_error",
)  # fmt: skip
"""Measures that are stored in the critic's file."""
OTHERS = 4
"""Other instructions under which each held-out episode is judged."""
LIMITS = ServiceLimits(in_flight=1, timeout=600.0)


@dataclass(frozen=True)
class Material:
    """Training and held-out episodes without common scenes or recordings."""

    training: Sequence[JudgedEpisode]
    held_out: Sequence[JudgedEpisode]


def prepare_critic(config: CriticTrainConfig) -> ProgressCritic:
    """Build an untrained critic, after checking what can be checked before anything is simulated.

    Raises:
        UserError: the policy cannot carry a critic, does not fit the simulator, or the simulator cannot judge goals.
    """
    path = build.resolve_policy_file(config.policy)
    backbone, embodiment = build.load_backbone(path)
    critic = ProgressCritic(backbone, embodiment, read_metadata(path).policy)
    if config.dataset is None:
        check_sources(config.sim, config.policy, mix_sources(config.episodes))
    return critic


def make_critic(config: CriticTrainConfig, report: Callable[[str], None]) -> Assessment:
    """Train a critic and write its file.

    Returns:
        Its measures on the held-out episodes.

    Raises:
        UserError: see `prepare_critic`; or the dataset has too few episodes, or does not fit the critic.
    """
    critic = prepare_critic(config)
    if config.dataset is not None:
        material = split_dataset(config.dataset, config, critic, report)
    else:
        report(f"Gathering {config.episodes} episodes to train on:")
        sources, draw = mix_sources(config.episodes), EpisodeDraw(config.seed)
        training = collect_episodes(config.sim, config.policy, sources, draw, config.processes, report)
        report(f"Gathering {config.held_out} episodes to measure on:")
        sources, draw = mix_sources(config.held_out), EpisodeDraw(config.seed, "report")
        material = Material(
            training, collect_episodes(config.sim, config.policy, sources, draw, config.processes, report)
        )
    train_critic(critic, material.training, config.seed, TrainingOptions(steps=config.steps), report)
    critic.name = Path(config.out).stem
    judged = judge_episodes(CriticScorer(critic, batch=64), material.held_out, LIMITS, OTHERS)
    found = assess_judge(material.held_out, judged, config.threshold, config.seed)
    save_critic(critic, Path(config.out), describe_critic(config, material, found))
    return found


def split_dataset(
    folder: str, config: CriticTrainConfig, critic: ProgressCritic, report: Callable[[str], None]
) -> Material:
    """Read a dataset's episodes; every tenth is held out.

    Raises:
        UserError: there are too few episodes, or they do not fit the critic, or cannot teach it.
    """
    episodes = read_dataset(folder, config.episodes, config.seed)
    if len(episodes) < 2:
        raise UserError(
            f"dataset={folder} has {len(episodes)} episodes; a critic needs more to learn from.",
            code="dataset-too-small",
        )
    for episode in episodes:
        first = {name: frames[:1] for name, frames in episode.frames.items()}
        critic.prepare(first, [episode.goals[0].instruction], episode.state[:1])
    training = make_examples([each for n, each in enumerate(episodes) if n % 10], config.seed)
    successes = sum(episode.success for episode in episodes)
    report(f"{len(episodes)} episodes of {folder}, {successes} succeed; progress is guessed from time")
    return Material(training, add_mismatches(episodes[::10], config.seed))


def describe_critic(config: CriticTrainConfig, material: Material, found: Assessment) -> dict[str, Any]:
    """Return origin and measures for a critic's file."""
    source = {"dataset": Path(config.dataset).name} if config.dataset is not None else {"sim": config.sim.name}
    measures = {name: asdict(found.measures[name]) for name in SHOWN}
    families = {
        family: {name: values[name].value for name in ("voc", "done_recall", "done_false") if name in values}
        for family, values in found.families.items()
    }
    return source | {
        "policy": Path(config.policy).name,
        "seed": config.seed,
        "steps": config.steps,
        "episodes": len(material.training),
        "held_out": {"episodes": len(material.held_out), "threshold": config.threshold} | measures,
        "families": families,
    }
