"""`embodied-rl eval`: measure a checkpoint's success on fixed episodes, and write a report and videos."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.scripted import RandomPolicy
from embodied_rl.assembly.acting import WORDS, find_policy_file, load_deployed, open_expert
from embodied_rl.checkpoints.policy_file import read_metadata
from embodied_rl.config import freeze as configuration
from embodied_rl.config.freeze import freeze_config
from embodied_rl.config.schema import EvalConfig, SimChange, SimNode
from embodied_rl.evaluate.benchmark import EvaluationPart, combine_results, make_parts
from embodied_rl.evaluate.kept import FILE as RESULTS
from embodied_rl.evaluate.kept import ResultFile
from embodied_rl.evaluate.metadata import describe_policy, make_metadata
from embodied_rl.evaluate.page import write_page
from embodied_rl.evaluate.protocol import EpisodeResult, Results, evaluate_policy
from embodied_rl.evaluate.report import Report
from embodied_rl.evaluate.resumption import FILE as EVALUATION
from embodied_rl.evaluate.resumption import (
    LAST,
    add_hardware,
    begin_evaluation,
    check_same,
    check_same_policies,
    read_evaluation,
)
from embodied_rl.evaluate.table import make_summary_table
from embodied_rl.evaluate.video import film_episodes
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, DeployedPolicy
from embodied_rl.processes.handle import Handle, RunFailed
from embodied_rl.rollout.runner import choose_batch
from embodied_rl.runs.atomic_write import make_folder
from embodied_rl.runs.folder import RunFolder, make_evaluation_folder
from embodied_rl.simulators.trust import check_settings, repeat_trusted_change


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated.

    Attributes:
        config: its configuration.
        who: the policy's name or checkpoint; file: its file; actor: the policy. None for the operator, random actions.
        folder: the run that made the policy, if any.
        parts: its episodes, by simulator.
        told: metadata of the report.
    """

    config: EvalConfig
    who: str
    file: Path | None
    actor: Actor | None
    folder: RunFolder | None
    parts: tuple[EvaluationPart, ...]
    told: dict[str, Any]


def run(config: EvalConfig) -> int:
    """Evaluate a policy, record videos, write `report.json` and `report.html`, and print a table; or continue that.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown, the policy is for another robot, or
            an evaluation cannot be continued.
    """
    if config.resume is not None:
        return continue_evaluation(config)
    evaluation = open_evaluation(config)
    out = choose_output_folder(config, evaluation.folder)
    place = evaluation.who if evaluation.file is None else str(evaluation.file.resolve())
    begin_evaluation(out, replace(config, policy=place, checkpoint=None), evaluation.told)
    return finish_evaluation(evaluation, out)


def continue_evaluation(config: EvalConfig) -> int:
    """Run what an evaluation's folder lacks, and write its report; print the report of one that is finished.

    Raises:
        UserError: see `read_resumed`, or `open_evaluation`.
    """
    folder = Path(str(config.resume))
    if (folder / LAST).is_file() and (folder / "report.json").is_file():
        console = Console(highlight=False)
        console.print(f"{folder} is finished: nothing is left to run.", markup=False, soft_wrap=True)
        console.print(make_summary_table(Report.read(folder / "report.json")))
        return 0
    resumed, before = read_resumed(config, folder)
    evaluation = open_evaluation(resumed)
    check_same(folder, before, evaluation.told)
    return finish_evaluation(replace(evaluation, told=add_hardware(before, evaluation.told)), folder)


def read_resumed(config: EvalConfig, folder: Path) -> tuple[EvalConfig, dict[str, Any]]:
    """Return the configuration and metadata of an evaluation that is continued, with what may be typed anew.

    Raises:
        UserError: the folder holds none, or names code to run that the user did not type.
    """
    stored, before = read_evaluation(folder)
    if config.policy is not None or config.checkpoint is not None:
        stored = replace(stored, policy=config.policy or config.checkpoint, checkpoint=None)
    check_same_policies(folder, before, [describe_policy(*find_policy(stored))])
    change = repeat_trusted_change(stored.sim, _name_simulators(stored), config.sim, folder / EVALUATION)
    return replace(stored, sim=change, resume=None), before


def _name_simulators(config: EvalConfig) -> list[str]:
    """Return the names of an evaluation's simulators, of which nothing is opened yet."""
    if config.benchmark is not None:
        return [str(part.sim.get("name")) for part in config.benchmark.parts]
    if config.sim.name is not None:
        return [config.sim.name]
    _, file = find_policy(config)
    said = None if file is None else _read_simulator(file, find_run(file))
    return [] if said is None else [str(said.get("name"))]


def open_evaluation(config: EvalConfig) -> Evaluation:
    """Find and check everything that an evaluation needs, so that nothing fails after hours of episodes.

    Raises:
        UserError: see `run`.
    """
    who, file = find_policy(config)
    folder = None if file is None else find_run(file)
    parts = make_parts(config, None if file is None else find_simulator(file, folder, config.sim))
    actor = None if file is None else load_deployed(who)
    if actor is not None:
        check_policy_fits(actor.embodiment, parts)
    return Evaluation(config, who, file, actor, folder, tuple(parts), make_metadata(config, who, file, parts))


def finish_evaluation(evaluation: Evaluation, out: Path) -> int:
    """Run the episodes whose results the folder lacks; write and print the report.

    Raises:
        RunFailed: a required process was lost, and could not be replaced.
    """
    command = f"embodied-rl eval resume={out}"
    try:
        with ResultFile(out / RESULTS, [each for part in evaluation.parts for each in part.episodes]) as kept:
            describe_kept(kept, sum(len(part.episodes) for part in evaluation.parts))
            played = [run_part(part, evaluation, kept) for part in evaluation.parts]
        report_results(evaluation, played, out)
    except KeyboardInterrupt:
        print(f"Stopped; every finished episode is saved. Continue with: {command}", file=sys.stderr)
        raise
    except RunFailed as error:
        raise RunFailed(f"{str(error).rstrip()}\nOnce the cause is gone, continue with: {command}") from error
    return 0


def describe_kept(kept: ResultFile, episodes: int) -> None:
    """Say what an evaluation that is continued has, and what its file lost."""
    if kept.torn:
        print(f"The last line of {RESULTS} was incomplete; its episode runs again.")
    if kept.found:
        print(f"{len(kept.found)} of {episodes} episodes are done.")


def report_results(evaluation: Evaluation, played: Sequence[list[EpisodeResult]], out: Path) -> None:
    """Write an evaluation's report, videos and page, and print its table."""
    results, spec = combine_results(evaluation.parts, played)
    found = Report.from_results(results, spec, evaluation.told)
    found.write(out)
    videos = film_as_configured(evaluation.parts, played, evaluation.actor, out, evaluation.config)
    metrics = None if evaluation.folder is None else evaluation.folder.metrics
    write_page(out / LAST, found, metrics=metrics, videos=videos)
    console = Console(highlight=False)
    console.print(make_summary_table(found))
    for path in (out / LAST, *videos):
        console.print(f"Written: {path}", markup=False, soft_wrap=True)


def check_evaluation(config: EvalConfig) -> None:
    """Check an evaluation's configuration, before the policy's weights are loaded.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown.
    """
    if config.resume is not None:
        folder = Path(config.resume)
        config, before = read_resumed(config, folder)
        check_same(folder, before, open_evaluation(config).told)
        return
    _, file = find_policy(config)
    if file is not None:
        read_metadata(file)
    make_parts(config, None if file is None else find_simulator(file, find_run(file), config.sim))


def check_policy_fits(embodiment: Embodiment, parts: Sequence[EvaluationPart]) -> None:
    """Check that the observations and actions of every part fit the policy's embodiment.

    Raises:
        UserError: a part does not fit; the message names its tasks.
    """
    for part in parts:
        try:
            embodiment.check_body(part.spec.body, part.spec.words)
        except ValueError as error:
            if len(parts) == 1:
                raise
            tasks = ", ".join(task.name for task in part.spec.tasks)
            remedy = "task=<name> evaluates those alone that it was made for."
            raise UserError(f"{part.kind.node.name}, {tasks}: {error} {remedy}") from None


def find_policy(config: EvalConfig) -> tuple[str, Path | None]:
    """Return the policy's name or checkpoint and its file; the file is None for the operator and random actions.

    Raises:
        UserError: the checkpoint does not exist.
    """
    who = config.policy or config.checkpoint
    assert who is not None, "validation asks for it"
    return who, None if who in WORDS else find_policy_file(who)


def run_part(part: EvaluationPart, evaluation: Evaluation, kept: Results) -> list[EpisodeResult]:
    """Return the results of a part's episodes, and run those that are not kept: the operator in one environment, any
    other policy in several simulators.
    """
    config = evaluation.config
    if all(episode.index in kept.found for episode in part.episodes):
        return [kept.found[episode.index] for episode in part.episodes]
    if evaluation.who != "expert":
        return evaluate_parallel(evaluation.actor or RandomPolicy(part.spec), part, config, kept)
    policy, handle = open_expert(part.kind.build, "evaluation simulator")
    with closing(handle):
        return evaluate_policy(
            policy, [handle], part.spec, part.episodes, config.seed, 1, None, config.ablate, config.episodes_for, kept
        )


def find_run(file: Path) -> RunFolder | None:
    """Return the run of <run>/policy.safetensors or <run>/checkpoints/<step>/policy.safetensors; None for others."""
    parents = file.resolve().parents
    folders = [RunFolder(parents[level]) for level in (0, 2) if level < len(parents)]
    return next((folder for folder in folders if folder.config.is_file()), None)


def find_simulator(file: Path, folder: RunFolder | None, change: SimChange) -> SimNode | None:
    """Return the simulator that a policy was trained in, from its run's configuration or else the file's metadata; None
    if the source names none, or if the user chose another one.

    Raises:
        UserError: the source is damaged, or names code to run that the user did not type.
    """
    said = _read_simulator(file, folder)
    if said is None or change.name not in (None, said.get("name")):
        return None
    check_settings(said, change.options, str(file if folder is None else folder.config))
    return freeze_config(SimNode, said, "sim")


def _read_simulator(file: Path, folder: RunFolder | None) -> dict[str, Any] | None:
    """Return the keys of `sim` in a run's configuration or a policy file; None where there are none."""
    said = (
        read_metadata(file).extra.get("sim") if folder is None else configuration.read_config(folder.config).get("sim")
    )
    if isinstance(said, str):
        return {"name": said}
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise UserError(f"{file if folder is None else folder.config}: sim is no group of keys.")
    return {str(key): value for key, value in said.items()}


def evaluate_parallel(
    actor: DeployedPolicy, part: EvaluationPart, config: EvalConfig, kept: Results
) -> list[EpisodeResult]:
    """Evaluate with one simulator per part of the plan, each in its own process if several run on the CPU.

    Simulators and batches have the same size however many episodes are left, so that the bits of a continued evaluation
    are those of an undisturbed one.
    """
    kind, spec, episodes = part.kind, part.spec, part.episodes
    processes = min(config.plan.parts, len(episodes))
    envs = max(1, min(kind.node.num_envs, len(episodes)) // processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores - processes))
    handles: list[Handle] = []
    try:
        # A simulator on an accelerator hands out its observations in this process alone.
        apart = processes > 1 and spec.device == "cpu"
        names = [f"evaluation simulator {number}" for number in range(processes)]
        make = kind.worker if apart else kind.inline
        handles += [make(envs, name, config.plan) for name in names]
        return evaluate_policy(
            actor,
            handles,
            spec,
            episodes,
            config.seed,
            envs,
            None,
            config.ablate,
            config.episodes_for,
            kept,
            batch=choose_batch(envs),
        )
    finally:
        for handle in handles:
            handle.close()


def choose_output_folder(config: EvalConfig, folder: RunFolder | None) -> Path:
    """Return `out` if given; else a new folder in the run's `eval/`, or in `./eval/` for a file outside a run."""
    what = config.split if config.benchmark is None else config.benchmark.name
    use = "" if config.episodes_for == "report" else f"_{config.episodes_for}"
    name = what + use + ("" if config.ablate == "none" else f"_without_{config.ablate}")
    if config.out is not None:
        return make_folder(Path(config.out), "out")
    return make_evaluation_folder(Path("eval"), name) if folder is None else folder.new_evaluation(name)


def film_as_configured(
    parts: Sequence[EvaluationPart],
    played: Sequence[list[EpisodeResult]],
    actor: Actor | None,
    out: Path,
    config: EvalConfig,
) -> list[Path]:
    """Record the configured videos, and return their paths; several parts have separate folders. Record none for an
    ablation, the operator or random actions.
    """
    if config.ablate != "none" or actor is None:
        return []
    video, films = config.video, list[Path]()
    counts = {"episodes": video.episodes, "best": video.best, "worst": video.worst}
    for number, (part, results) in enumerate(zip(parts, played, strict=True)):
        place = out if len(parts) == 1 else out / f"part_{number}"
        films += film_episodes(
            actor,
            part.kind.build,
            part.spec,
            results,
            place,
            **counts,
            seed=config.seed,
            purpose=config.episodes_for,
        )
    return films
