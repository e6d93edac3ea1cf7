"""Training loop of one rank, from the start of a run to its report."""

import time
from collections.abc import Callable
from contextlib import closing

from embodied_rl.config.freeze import thaw_config
from embodied_rl.config.plugins import configure_plugin
from embodied_rl.interfaces.logger import LoggedRun
from embodied_rl.judge.reward.run_scoring import describe_reward
from embodied_rl.reports.audit_section import summarise_audit
from embodied_rl.reports.page import format_percent
from embodied_rl.rollout.replay.experience import choose_episodes
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.forecast import Forecast
from embodied_rl.runs.log import RunLog, open_log
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.launch import Stopped, raise_on_signals, stop_on_signals
from embodied_rl.schema import TrainConfig
from embodied_rl.training.extension import describe_resume
from embodied_rl.training.final_report import film_before, finish_run, makes_films, write_report
from embodied_rl.training.run_parts import Parts, assemble_parts
from embodied_rl.training.trainer import Trainer


def train(job: tuple[TrainConfig, RunFolder], ranks: Ranks) -> None:
    """Build one rank of a run and train it."""
    config, folder = job
    parts = assemble_parts(config, folder, ranks)
    with stop_on_signals(ranks) as stop_requested, closing(parts):
        learn(parts, stop_requested)


def learn(parts: Parts, stop_requested: Callable[[], bool]) -> None:
    """Collect, learn, evaluate and save in each iteration, then write the report.

    Args:
        parts: the parts of this rank.
        stop_requested: returns whether the run must stop after this iteration.

    Raises:
        Stopped: a stop was requested while everything was already saved.
    """
    trainer, config, ranks = Trainer(parts), parts.config, parts.ranks
    resumes = parts.resumed is not None
    if resumes:
        trainer.restore()
    if parts.audit is not None and ranks.rank == 0:
        parts.audit.append("start", {"iteration": trainer.iteration})
    logger, keys = configure_plugin("loggers", config.logger, "logger")
    run = LoggedRun(parts.folder.path, config.run.experiment, thaw_config(config), trainer.iteration or None)
    options = {"writes": ranks.rank == 0, "live": config.logger.live, "make_logger": lambda: logger(keys, run)}
    forecast = Forecast.read(parts.folder.path, skip=parts.needs.warmup)
    with open_log(parts.folder, config.train.iterations, trainer.iteration, **options) as log:
        for note in describe_beginning(parts, trainer.iteration):
            log.note(note)
        trainer.begin_phase = log.begin_phase
        log.begin_iterations(closing=0.0 if resumes else evaluate_before(trainer, log))
        while trainer.iteration < config.train.iterations:
            figures = trainer.step() | forecast.figures()
            if drifted := forecast.note(figures["time/iteration"]):
                log.note(drifted)
            stopping = ranks.any_(stop_requested())
            last, every = trainer.iteration == config.train.iterations, config.train.eval_every
            if last or (every > 0 and trainer.iteration % every == 0):
                figures |= trainer.evaluate_and_choose()
            log.write(trainer.iteration, figures)
            if stopping or "eval/success" in figures or trainer.iteration % config.checkpoint.every == 0:
                trainer.save()
            if stopping:
                log.note(f"Stopped and saved. Continue with: {describe_resume(config, parts.folder)}")
                return
        with raise_on_signals(ranks):
            if stop_requested():
                raise Stopped
            summary = finish_run(trainer, log)
    if ranks.rank == 0:
        print("\n".join(summary))


def evaluate_before(trainer: Trainer, log: RunLog) -> float:
    """Evaluate a new run before it trains, write the report, and film if configured. Return the seconds it took."""
    began = time.perf_counter()
    log.begin_phase("evaluating before training", announce=True)
    with raise_on_signals(trainer.ranks):
        results = trainer.evaluate(trainer.config.train.final_episodes, "report")
        report = write_report(trainer, results, "before")
        log.note(f"Before training: {format_percent(report.success)} success, deployed")
        if makes_films(trainer):
            log.begin_phase("filming before training", announce=True)
            film_before(trainer, results)
    return time.perf_counter() - began


def describe_beginning(parts: Parts, iteration: int) -> list[str]:
    """Return the notes that the user reads when a run starts, or goes on, after so many iterations."""
    config = parts.config
    notes = [
        f"Training {config.policy.name} by {config.algo.name} in {config.sim.name}",
        f"Run folder: {parts.folder.path}",
    ]
    if parts.needs.warmup > iteration:
        which = f"{iteration + 1}-{parts.needs.warmup}"
        notes.append(f"Iterations {which}: the critic alone learns, the policy stays as it is")
    if parts.kept != "images":
        notes.append(f"Computed once for all epochs: {parts.kept} of what the network keeps frozen")
    if parts.replay is not None and parts.replay.offline:
        chosen = [choose_episodes(storage, parts.replay.tasks) for storage in parts.replay.offline]
        good = sum(episode.success for episodes in chosen for episode in episodes)
        notes.append(f"Offline: {sum(map(len, chosen))} episodes of {config.replay.preload}, {good} of them successful")
    audit = None if parts.audit is None else summarise_audit(parts.folder.path)
    if audit is not None and audit.restarts:
        notes += ["On the robot so far:", *(f"  {line}" for line in audit.describe())]
    return [*notes, *describe_reward(config.reward)]
