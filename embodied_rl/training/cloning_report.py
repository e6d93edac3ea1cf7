"""The end of cloning: an evaluation, videos, a report, and the command that continues."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import deploy_actor
from embodied_rl.evaluate.benchmark import describe_simulator
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.evaluate.video import film_episodes
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.reports.page import format_percent
from embodied_rl.reports.report import Rate, Report
from embodied_rl.reports.report_page import write_page
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import MetricsWriter
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SftConfig
from embodied_rl.schema.next_command import make_next_command
from embodied_rl.training.final_report import PAGE

AT_ONCE = 64
"""Environments of the evaluation, at most."""


class CloningLog:
    """Prints the progress of cloning and writes it to the run's metrics; a row is numbered by all steps so far."""

    def __init__(self, metrics: MetricsWriter) -> None:
        self._metrics, self._earlier_steps, self._stage, self._step = metrics, 0, "", 0

    def report(self, stage: str, step: int, figures: Mapping[str, float]) -> None:
        """Write and print the figures of a stage at one of its steps, counted from 1."""
        if stage != self._stage or step <= self._step:
            self._earlier_steps += self._step
        self._stage, self._step = stage, step
        self._metrics.write(self._earlier_steps + step, {f"{stage}/{name}": value for name, value in figures.items()})
        print(f"{stage} step {step} ", *(f" {name} {value:.4f}" for name, value in figures.items()), flush=True)


def report_clone(
    config: SftConfig, kind: SimulatorKind, backbone: FlowBackbone, embodiment: Embodiment, folder: RunFolder
) -> tuple[Rate, list[str]]:
    """Evaluate the cloned policy, film it if configured, write the report; return success and the summary's lines."""
    actor = deploy_actor(backbone, embodiment, {"denoise_steps": config.algo.sampler.denoise_steps})
    actor.autocast = bool(config.policy.autocast)
    episodes = enumerate_episodes(kind.spec, "eval", config.eval_episodes, config.task)
    print(f"Evaluating on {len(episodes)} episodes", flush=True)
    envs = min(config.sim.num_envs, AT_ONCE)
    with closing(kind.inline(envs, "evaluation")) as handle:
        results = evaluate_policy(actor, [handle], kind.spec, episodes, 0, envs, embodiment.executed)
    metadata: dict[str, Any] = {
        "kind": "cloning",
        "run": str(folder.path),
        "policy": config.policy.name,
        "source": config.dataset or "the scripted operator",
        "simulator": config.sim.name,
        "split": "eval",
        "episodes_for": "report",
        "task": config.task,
        **({} if config.reward.name is None else {"filtered_by": config.reward.name, "filter": config.filter.rules}),
        "seed": config.seed,
        **provenance.select_for_report(provenance.read_provenance(folder.path)),
        "finished": provenance.current_time(),
        "load_at_end": provenance.measure_load(),
        "simulators": [describe_simulator(kind, kind.spec)],
    }
    found = Report.from_results(results, kind.spec, metadata)
    found.write(folder.path)
    videos: list[Path] = []
    if config.film and not kind.limits.attended and (kind.spec.cameras or hasattr(kind.simulator, "render")):
        print("Filming", flush=True)
        videos = film_episodes(actor, kind.build, kind.spec, results, folder.videos)
    settings = folder.config.read_text(encoding="utf-8")
    write_page(folder.path / PAGE, found, metrics=folder.metrics, videos=videos, configuration=settings)
    rows = {"all families": found.overall, **found.families}
    return found.success, [
        "",
        f"Success on {found.success.episodes} episodes that were not demonstrated (95 % intervals):",
        *(f"  {name:14s} {format_percent(summary.success)}" for name, summary in rows.items()),
        f"Run folder: {folder.path}",
        f"Report: {folder.path / PAGE}",
        *(f"Video:  {video}" for video in videos),
        f"Next:   {advise_next(config, kind, found, folder)}",
    ]


def advise_next(config: SftConfig, kind: SimulatorKind, found: Report, folder: RunFolder) -> str:
    """Return the command that trains further, or advice if no episode succeeded, as RL needs some successes."""
    if found.success.rate:
        return make_next_command(config, kind.spec, folder.path)
    source = "data" if config.dataset is not None else "algo.demonstrations"
    start = "" if config.policy.checkpoint is not None else ", or start from policy.checkpoint=<file>"
    return f"no episode succeeded, so training has nothing to reinforce. More {source} or algo.steps{start}."
