"""`embodied-rl eval`: a checkpoint's success on exact episodes, with a report and videos."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from embodied_rl.acting import deployed
from embodied_rl.actors.checkpoint import read_metadata
from embodied_rl.build import policy_file
from embodied_rl.config import freeze
from embodied_rl.evaluate.page import write_page
from embodied_rl.evaluate.protocol import EpisodeResult, enumerate_episodes, evaluate
from embodied_rl.evaluate.report import Rate, Report, Summary
from embodied_rl.evaluate.video import film
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import Episode
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder, new_evaluation
from embodied_rl.runs.storage import make_folder
from embodied_rl.runtime.handle import Handle
from embodied_rl.schema import EvalConfig, SimNode
from embodied_rl.simulators.kind import SimulatorKind

_NOTED_PACKAGES = ("embodied-rl", "torch", "numpy", "mujoco", "safetensors")


def run(config: EvalConfig) -> int:
    """Evaluate, film, write `report.json` and `report.html`, print a table.

    Raises:
        ValueError: no such checkpoint, simulator, split or task.
    """
    file = policy_file(config.checkpoint)
    actor = deployed(config.checkpoint)
    folder = run_of(file)
    kind = SimulatorKind.of(config.sim or simulator_of(file, folder))
    episodes = enumerate_episodes(kind.spec, config.split, config.episodes, config.task, seed=config.seed)
    results = evaluate_parallel(actor, kind, episodes, config)
    found = Report.of(results, kind.spec, metadata(config, file, kind))
    out = output_folder(config, folder)
    found.write(out)
    videos = [] if config.ablate != "none" else film_as_configured(actor, kind, results, out, config)
    write_page(out / "report.html", found, metrics=folder.metrics if folder else None, videos=videos)
    console = Console(highlight=False)
    console.print(summary_table(found))
    for path in (out / "report.html", *videos):
        console.print(f"Written: {path}", markup=False, soft_wrap=True)
    return 0


def check(config: EvalConfig) -> None:
    """Find what cannot work before anything is loaded.

    Raises:
        ValueError: no such checkpoint, simulator, split or task.
    """
    file = policy_file(config.checkpoint)
    read_metadata(file)
    spec = SimulatorKind.of(config.sim or simulator_of(file, run_of(file))).spec
    enumerate_episodes(spec, config.split, 1, config.task)


def run_of(file: Path) -> RunFolder | None:
    """The run a policy file lies in: <run>/policy.safetensors or <run>/checkpoints/<step>/policy.safetensors."""
    parents = file.resolve().parents
    folders = [RunFolder(parents[level]) for level in (0, 2) if level < len(parents)]
    return next((folder for folder in folders if folder.config.is_file()), None)


def simulator_of(file: Path, folder: RunFolder | None) -> SimNode:
    """The simulator a policy was trained in: from its run's configuration, or from what the file says of itself.

    Raises:
        ValueError: neither says.
    """
    if folder is not None:
        content = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(folder.config), resolve=True))
        return freeze(SimNode, content["sim"], "sim")
    said = read_metadata(file).extra.get("sim")
    if said is None:
        raise ValueError(f"{file} does not say which simulator it was trained in. Add sim=<name>.")
    return freeze(SimNode, {"name": said} if isinstance(said, str) else said, "sim")


def evaluate_parallel(
    actor: Actor, kind: SimulatorKind, episodes: Sequence[Episode], config: EvalConfig
) -> list[EpisodeResult]:
    """Evaluate with the simulators in processes of their own, one per part of the plan."""
    spec, parts = kind.spec, min(config.plan.parts, len(episodes))
    envs = max(1, min(kind.node.num_envs, len(episodes)) // parts)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores - parts))
    handles: list[Handle] = []
    try:
        # A simulator on an accelerator hands out its observations in this process alone.
        apart, names = parts > 1 and spec.device == "cpu", [f"evaluation simulator {part}" for part in range(parts)]
        handles += [
            kind.worker(envs, name, config.plan) if apart else kind.inline(envs, name, config.plan) for name in names
        ]
        return evaluate(actor, handles, spec, episodes, config.seed, envs, None, config.ablate)
    finally:
        for handle in handles:
            handle.close()


def metadata(config: EvalConfig, file: Path, kind: SimulatorKind) -> dict[str, Any]:
    """Where the figures come from."""
    source, _ = provenance.gather()
    return {
        "checkpoint": config.checkpoint,
        "file": str(file),
        "simulator": kind.node.name,
        "split": config.split,
        "task": config.task,
        "ablate": config.ablate,
        "seed": config.seed,
        "commit": source.commit,
        "dirty": source.dirty,
        "packages": {name: source.packages[name] for name in _NOTED_PACKAGES if name in source.packages},
        "hardware": source.hardware,
        "command": source.command,
        "started": source.started,
    }


def output_folder(config: EvalConfig, folder: RunFolder | None) -> Path:
    """`out` where given; else a new folder in the run's `eval/`, or in `eval/` here for a bare file."""
    name = config.split if config.ablate == "none" else f"{config.split}_without_{config.ablate}"
    if config.out is not None:
        return make_folder(Path(config.out), "out")
    return new_evaluation(Path("eval"), name) if folder is None else folder.new_evaluation(name)


def film_as_configured(
    actor: Actor, kind: SimulatorKind, results: Sequence[EpisodeResult], out: Path, config: EvalConfig
) -> list[Path]:
    """The videos that `video` asks for."""
    video = config.video
    counts = {"episodes": video.episodes, "best": video.best, "worst": video.worst}
    return film(actor, kind.build, kind.spec, results, out, **counts, seed=config.seed)


def summary_table(report: Report) -> Table:
    """Success by task and family, and over all."""
    table = Table(title=f"{report.metadata.get('checkpoint', '')}, split {report.metadata.get('split', '')}")
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
