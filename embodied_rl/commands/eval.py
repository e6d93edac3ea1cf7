"""`embodied-rl eval`: measure a checkpoint's success on fixed episodes, and write a report and videos."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.scripted import RandomPolicy
from embodied_rl.assembly.acting import WORDS, find_policy_file, load_deployed, open_expert
from embodied_rl.checkpoints.policy_file import read_metadata
from embodied_rl.config import freeze as configuration
from embodied_rl.config.freeze import freeze_config
from embodied_rl.config.schema import EvalConfig, SimChange, SimNode
from embodied_rl.evaluate.benchmark import (
    EvaluationPart,
    combine_results,
    describe_benchmark,
    describe_simulator,
    make_parts,
)
from embodied_rl.evaluate.page import write_page
from embodied_rl.evaluate.protocol import EpisodeResult, evaluate_policy
from embodied_rl.evaluate.report import BENCHMARK, Rate, Report, Summary
from embodied_rl.evaluate.video import film_episodes
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, DeployedPolicy
from embodied_rl.processes.handle import Handle
from embodied_rl.runs import provenance
from embodied_rl.runs.atomic_write import make_folder
from embodied_rl.runs.folder import RunFolder, make_evaluation_folder
from embodied_rl.simulators.trust import check_settings

_NOTED_PACKAGES = ("embodied-rl", "torch", "numpy", "mujoco", "safetensors")


def run(config: EvalConfig) -> int:
    """Evaluate a policy, record videos, write `report.json` and `report.html`, and print a table.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown, or the policy is for another robot.
    """
    who, file = find_policy(config)
    folder = None if file is None else find_run(file)
    parts = make_parts(config, None if file is None else find_simulator(file, folder, config.sim))
    actor = None if file is None else load_deployed(who)
    if actor is not None:
        check_policy_fits(actor.embodiment, parts)
    told = make_metadata(config, who, file, parts)  # fail here, not after hours of episodes
    out = choose_output_folder(config, folder)
    played = [run_part(part, actor, who, config) for part in parts]
    results, spec = combine_results(parts, played)
    found = Report.from_results(results, spec, told)
    found.write(out)
    videos = film_as_configured(parts, played, actor, out, config)
    write_page(out / "report.html", found, metrics=folder.metrics if folder else None, videos=videos)
    console = Console(highlight=False)
    console.print(make_summary_table(found))
    for path in (out / "report.html", *videos):
        console.print(f"Written: {path}", markup=False, soft_wrap=True)
    return 0


def check_evaluation(config: EvalConfig) -> None:
    """Check an evaluation's configuration, before the policy's weights are loaded.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown.
    """
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


def run_part(part: EvaluationPart, actor: Actor | None, who: str, config: EvalConfig) -> list[EpisodeResult]:
    """Run the episodes of a part: the operator in one environment, any other policy in several simulators."""
    if who != "expert":
        return evaluate_parallel(actor or RandomPolicy(part.spec), part, config)
    policy, handle = open_expert(part.kind.build, "evaluation simulator")
    with closing(handle):
        return evaluate_policy(
            policy, [handle], part.spec, part.episodes, config.seed, 1, None, config.ablate, config.episodes_for
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
    said = (
        read_metadata(file).extra.get("sim") if folder is None else configuration.read_config(folder.config).get("sim")
    )
    if said is None:
        return None
    said = {"name": said} if isinstance(said, str) else said
    if not isinstance(said, Mapping):
        raise UserError(f"{file if folder is None else folder.config}: sim is no group of keys.")
    if change.name not in (None, said.get("name")):
        return None
    check_settings(said, change.options, str(file if folder is None else folder.config))
    return freeze_config(SimNode, {str(key): value for key, value in said.items()}, "sim")


def evaluate_parallel(actor: DeployedPolicy, part: EvaluationPart, config: EvalConfig) -> list[EpisodeResult]:
    """Evaluate with one simulator per part of the plan, each in its own process if several run on the CPU."""
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
            actor, handles, spec, episodes, config.seed, envs, None, config.ablate, config.episodes_for
        )
    finally:
        for handle in handles:
            handle.close()


def make_metadata(config: EvalConfig, who: str, file: Path | None, parts: Sequence[EvaluationPart]) -> dict[str, Any]:
    """Return the report's metadata: configuration, code version and hardware of the evaluation."""
    source, _ = provenance.gather_provenance()
    return {
        "checkpoint": who,
        "file": None if file is None else str(file),
        "simulator": parts[0].kind.node.name,
        **describe_benchmark(config, parts),
        "simulators": [describe_simulator(part.kind, part.spec) for part in parts],
        "split": config.split,
        "task": config.task,
        "episodes_for": config.episodes_for if config.benchmark is None else BENCHMARK,
        "ablate": config.ablate,
        "seed": config.seed,
        "commit": source.commit,
        "dirty": source.dirty,
        "packages": {name: source.packages[name] for name in _NOTED_PACKAGES if name in source.packages},
        "hardware": source.hardware,
        "command": source.command,
        "started": source.started,
    }


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


def make_summary_table(report: Report) -> Table:
    """Make a table of success by task, by family, and overall."""
    said = report.metadata
    where = f"split {said.get('split', '')}"
    if said.get("episodes_for") == "publish":
        where += ", episodes to publish"
    if "benchmark" in said:
        changes = "".join(f", sim.{key}={value}" for key, value in said["changed"].items())
        where = f"{said['benchmark']}{'' if said['complete'] else ', not all of it'}{changes}"
    table = Table(title=f"{said.get('checkpoint', '')}, {where}")
    table.add_column("")
    for heading in ("success", "95 %", "at the end", "episodes", "steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in report.tasks.items():
        table.add_row(f"  {name}", *_cells(summary))
    table.add_section()
    for name, summary in report.families.items():
        table.add_row(name, *_cells(summary))
    table.add_section()
    table.add_row("all", *_cells(report.overall), style="bold")
    return table


def _cells(summary: Summary) -> tuple[str, ...]:
    success: Rate = summary.success
    interval = f"{100 * success.low:.1f} – {100 * success.high:.1f}"
    at_end = f"{summary.success_at_end.rate:.1%}"
    return f"{success.rate:.1%}", interval, at_end, str(success.episodes), f"{summary.steps:.1f}"
