"""Sources of episodes for an evaluation: a run's policy, a simulator's scripted operators, or a dataset.

Everything is checked first; simulation starts in `EpisodeSource.gather`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from embodied_rl.assembly.evaluated_policies import find_run, find_simulator, read_simulator
from embodied_rl.assembly.policy_factory import find_policy_file
from embodied_rl.critic.dataset_episodes import check_dataset, read_dataset
from embodied_rl.critic.episode_collection import EpisodeDraw, EpisodeKind, check_sources, collect_episodes
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.evaluate.benchmark import change_simulator, describe_simulator, to_mapping
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.goals import GoalWatched
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import CriticEvalConfig, SimNode
from embodied_rl.schema.checks import check_episodes

PURPOSE = "publish"
"""Purpose of the episodes; their scenes occur in no training and no other report."""


@dataclass(frozen=True)
class EpisodeSource:
    """Episodes that are not collected yet."""

    spec: SimulatorSpec
    description: dict[str, Any]
    gather: Callable[[], list[JudgedEpisode]]


def find_source(config: CriticEvalConfig) -> EpisodeSource:
    """Return the source of an evaluation's episodes.

    Raises:
        UserError: no source or more than one was given; a run, dataset or simulator does not exist; runs are of
            different simulators; a dataset has no images; or the simulator does not report the progress of goals.
    """
    if config.dataset is not None:
        if config.runs or config.sim.name is not None:
            raise UserError("dataset= stands alone: leave out runs= and sim=.", code="keys-contradict")
        description = {"source": f"dataset {config.dataset}", "seed": config.seed}
        gather = partial(read_dataset, config.dataset, config.episodes, config.seed)
        return EpisodeSource(check_dataset(config.dataset), description, gather)
    if not config.runs and config.sim.name is None:
        raise UserError(
            "The source of episodes is missing: set runs=<run folder> (its policy acts), dataset=<LeRobot dataset>, or "
            "sim=<simulator> (its scripted operator acts).",
            code="evaluation-source-missing",
        )
    files = {run: find_policy_file(run) for run in config.runs}
    for run, file in files.items():
        own = (read_simulator(file, find_run(file)) or {}).get("name")
        if None not in (own, config.sim.name) and own != config.sim.name:
            raise UserError(
                f"runs={run} is of the simulator {own}, and sim={config.sim.name} is another one.",
                code="simulator-mismatch",
            )
    bases = [find_simulator(file, find_run(file), config.sim) for file in files.values()] or [None]
    nodes = [change_simulator({} if base is None else to_mapping(base), config.sim) for base in bases]
    if len({repr(node) for node in nodes}) > 1:
        raise UserError(
            "runs: they have different simulators or settings. Evaluate on each separately.", code="runs-not-comparable"
        )
    kind = SimulatorKind.find(nodes[0])
    if not issubclass(kind.simulator, GoalWatched):
        raise UserError(
            f"sim.name={nodes[0].name} does not report the progress of all goals, so there is no ground truth. The "
            "tabletop does; record others with `embodied-rl collect format=lerobot`, and set dataset=<folder>.",
            code="goals-not-reported",
        )
    check_episodes(kind.spec, config.split, None)
    if len(files) > config.episodes:
        raise UserError(
            f"episodes={config.episodes} are fewer than runs: give at least {len(files)}.", code="episodes-too-few"
        )
    for run in files:
        check_sources(nodes[0], run, [EpisodeKind("policy", 1)])
    description = {
        "source": "policies of runs, exploring" if files else "operators of the simulator",
        "policies": {run: str(file) for run, file in files.items()},
        "simulators": [describe_simulator(kind, kind.spec)],
        "purpose": PURPOSE,
        "split": config.split,
        "seed": config.seed,
    }
    spec = replace(kind.spec, reports_progress=True)  # by the goals, even if observations have none
    return EpisodeSource(spec, description, partial(_collect, config, nodes[0]))


def _collect(config: CriticEvalConfig, node: SimNode) -> list[JudgedEpisode]:
    draw = EpisodeDraw(config.seed, PURPOSE, "train" if config.split == "eval" else config.split)
    if not config.runs:
        half = config.episodes // 2
        kinds = [EpisodeKind("careful", config.episodes - half), EpisodeKind("faulty", half)]
        return collect_episodes(node, None, kinds, draw)
    runs = list(dict.fromkeys(config.runs))
    collected: list[JudgedEpisode] = []
    for number, run in enumerate(runs):
        kind = EpisodeKind("policy", config.episodes // len(runs) + (number < config.episodes % len(runs)))
        episodes = collect_episodes(node, run, [kind], replace(draw, seed=config.seed + number))
        collected += [replace(each, actor=run) for each in episodes]
    return collected
