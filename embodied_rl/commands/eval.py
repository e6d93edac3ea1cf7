"""`embodied-rl eval`: measure a checkpoint's success on fixed episodes, and write a report and videos."""

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from embodied_rl.actors.learning.memory_budget import format_bytes
from embodied_rl.actors.scripted import RandomPolicy
from embodied_rl.assembly.evaluated_policies import (
    check_server,
    describe_server,
    disconnect,
    find_policies,
    find_run,
    find_simulator,
    name_simulators,
    place_policies,
    read_stored_chunks,
)
from embodied_rl.assembly.policy_factory import check_operator, is_address, load_deployed, open_expert
from embodied_rl.checkpoints.policy_format import count_weights, read_metadata
from embodied_rl.cli.json_output import offer_json
from embodied_rl.config import freeze as configuration
from embodied_rl.deployment.policy_client.client import PolicyClient, connect
from embodied_rl.evaluate.benchmark import (
    EvaluationPart,
    check_policy_fits,
    combine_results,
    find_delay,
    make_parts,
)
from embodied_rl.evaluate.metadata import describe_delays, describe_policy, make_metadata, measure_end
from embodied_rl.evaluate.protocol import Results, evaluate_policy
from embodied_rl.evaluate.resumption import (
    EPISODES,
    LAST,
    ResultFile,
    add_hardware,
    begin_evaluation,
    check_out,
    check_same,
    check_same_policies,
    choose_output_folder,
    read_evaluation,
)
from embodied_rl.evaluate.resumption import FILE as EVALUATION
from embodied_rl.evaluate.video import AT_ONCE, film_episodes
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.policy import Actor, DeployedPolicy
from embodied_rl.reports.report import Report
from embodied_rl.reports.report_page import write_page
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.summary_table import make_summary_table
from embodied_rl.reports.vla_eval_results import FILE as VLA_EVAL_FILE
from embodied_rl.reports.vla_eval_results import compare_reported, to_vla_eval
from embodied_rl.rollout.delay import Delay, read_chunks
from embodied_rl.rollout.runner import choose_batch
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.provenance import count_cores
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.schema import EvalConfig, SimNode, untrusted_settings
from embodied_rl.schema.checks import check_evaluated_policy
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.signals import reraise_ignored_exceptions
from embodied_rl.system.untrusted_files import check_inside, name_file, shorten
from embodied_rl.training.run_size import check_environments


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A policy to evaluate.

    Attributes:
        who: its name, checkpoint or address.
        file: its file; None for the operator, random actions and servers.
        actor: the policy; None for the operator and random actions.
        folder: the run that made it, if any.
    """

    who: str
    file: Path | None
    actor: Actor | PolicyClient | None
    folder: RunFolder | None


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation whose parts and policies are opened and checked.

    Attributes:
        config: its configuration.
        policies: of the parts, one for each.
        parts: the episodes, by simulator and policy.
        metadata: of the report.
        delays: how long inference takes in each part, and what the robot does during it.
    """

    config: EvalConfig
    policies: tuple[EvaluatedPolicy, ...]
    parts: tuple[EvaluationPart, ...]
    metadata: dict[str, Any]
    delays: tuple[Delay | None, ...]

    @property
    def folder(self) -> RunFolder | None:
        """Return the run of the only policy, if there is one."""
        return self.policies[0].folder if len({each.who for each in self.policies}) == 1 else None


def run(config: EvalConfig) -> int:
    """Evaluate a policy, record videos, write `report.json` and `report.html`, and print a table; or continue that.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown, the policy is for another robot, or
            an evaluation cannot be continued, or would be written over.
    """
    if config.resume is not None:
        return continue_evaluation(config)
    check_out(config.out)
    evaluation = open_evaluation(config)
    out = choose_output_folder(config, evaluation.folder)
    begin_evaluation(out, place_policies(config), evaluation.metadata)
    return finish_evaluation(evaluation, out)


def continue_evaluation(config: EvalConfig) -> int:
    """Run what an evaluation's folder lacks, and write its report; print the report of one that is finished."""
    folder = Path(str(config.resume))
    file = folder / "report.json"
    if (folder / LAST).is_file() and file.is_file():
        if typed := [word for word in config.overrides if not word.startswith("resume=")]:
            message = f"{folder} is finished: {typed[0]} would have no effect. Evaluate again, without resume."
            raise UserError(message, code="key-unused")
        console = Console(highlight=False)
        console.print(f"{folder} is finished: nothing is left to run.", markup=False, soft_wrap=True)
        check_inside(folder, file)
        report = Report.read(file)
        try:
            table = make_summary_table(report)
        except (KeyError, TypeError, AttributeError) as error:  # metadata of a stranger
            message = f"{file} is damaged ({type(error).__name__}: {shorten(error)})."
            raise UserError(message, code="report-damaged") from error
        console.print(table)
        offer_json(report.summarise() | {"folder": str(folder)})
        return 0
    resumed, before = read_resumed(config, folder)
    evaluation = open_evaluation(resumed)
    check_same(folder, before, evaluation.metadata)
    return finish_evaluation(replace(evaluation, metadata=add_hardware(before, evaluation.metadata)), folder)


def read_resumed(config: EvalConfig, folder: Path) -> tuple[EvalConfig, dict[str, Any]]:
    """Return the configuration and metadata of a continued evaluation, with the settings that may be typed again.

    Raises:
        UserError: the folder has no evaluation, or names code to run that the user did not type.
    """
    stored, before = read_evaluation(folder)
    if stored.policies and (config.policy or config.checkpoint):
        raise UserError(f"policy: {folder} has policies of its own for its tasks. Leave it out.", code="key-unused")
    if config.policy is not None or config.checkpoint is not None:
        config = replace(config, policy=config.policy or config.checkpoint, checkpoint=None)
        stored = replace(stored, policy=config.policy, checkpoint=None)
    file, home = folder / EVALUATION, find_home(folder)
    with name_file(file):
        stored = untrusted_settings.merge_typed_settings(
            stored,
            config,
            config.overrides,
            file,
            folder=home,
            free=("resume", "policy", "checkpoint", "sim"),
            unused=("resume", "out"),
            remedy="resume continues an evaluation exactly as it was begun. Evaluate again, without resume.",
        )
        check_evaluated_policy(stored)
    check_same_policies(folder, before, [describe_policy(*each) for each in find_policies(stored).items()])
    change = untrusted_settings.merge_typed_sim_change(
        stored.sim, config.sim, config.overrides, name_simulators(stored), file, home
    )
    return replace(stored, sim=change, resume=None), before


def find_home(folder: Path) -> Path:
    """Return the folder that the paths of an evaluation may lead to: its run's, or its own."""
    run = RunFolder(folder.absolute().parent.parent)
    return run.path if run.evaluations == folder.absolute().parent and run.config.is_file() else folder


def describe_resume(evaluation: PlannedEvaluation, out: Path) -> str:
    """Return the command that continues an evaluation, with the settings that are never taken from its folder."""
    config = place_policies(evaluation.config)
    settings = untrusted_settings.list_settings(EvalConfig, configuration.thaw_config(config))
    for name in name_simulators(config):
        settings += untrusted_settings.list_settings(SimNode, {"name": name, **config.sim.options}, "sim")
    again = untrusted_settings.list_refused([each for each in settings if each.key != "out"], find_home(out))
    return untrusted_settings.format_resume("eval", out, again)


def open_evaluation(config: EvalConfig) -> PlannedEvaluation:
    """Find and check everything that an evaluation needs, so that nothing fails after hours of episodes."""
    files = find_policies(config)
    parts = _make_parts(config, files)
    used = {who: file for who, file in files.items() if any(part.policy in (None, who) for part in parts)}
    metadata = make_metadata(config, used, parts)
    opened: dict[str, EvaluatedPolicy] = {}
    for who, file in used.items():
        actor = connect(who, config.server) if is_address(who) else None if file is None else load_deployed(who)
        opened[who] = EvaluatedPolicy(who, file, actor, None if file is None else find_run(file))
    policies = tuple(opened[part.policy or next(iter(opened))] for part in parts)
    for policy in opened.values():
        own = [part for part, each in zip(parts, policies, strict=True) if each is policy]
        if isinstance(policy.actor, PolicyClient):
            check_server(policy.actor, [part.spec for part in own])
            metadata = {**metadata, "served": {**metadata.get("served", {}), policy.who: describe_server(policy.actor)}}
        elif policy.actor is not None:
            check_policy_fits(policy.actor.embodiment, own)
    delays = tuple(
        find_delay(config, part, policy.who, lambda p=policy: None if p.actor is None else read_chunks(p.actor))
        for part, policy in zip(parts, policies, strict=True)
    )
    return PlannedEvaluation(config, policies, tuple(parts), metadata | describe_delays(config, delays), delays)


def _make_parts(config: EvalConfig, files: Mapping[str, Path | None]) -> list[EvaluationPart]:
    owns = {w: None if f is None else find_simulator(f, find_run(f), config.sim) for w, f in files.items()}
    return make_parts(config, None if config.policies else next(iter(owns.values())), owns)


def finish_evaluation(evaluation: PlannedEvaluation, out: Path) -> int:
    """Run the episodes whose results the folder lacks; write and print the report.

    Raises:
        RunFailed: a required process was lost, and could not be replaced.
    """
    command, began = describe_resume(evaluation, out), time.perf_counter()
    try:
        listed = [each for part in evaluation.parts for each in part.episodes]
        interrupts = reraise_ignored_exceptions(KeyboardInterrupt, signal.SIGINT)
        with interrupts, ResultFile(out / EPISODES, listed) as kept:
            if kept.torn:
                print(f"The last line of {EPISODES} was incomplete; its episode runs again.")
            if kept.found:
                print(f"{len(kept.found)} of {sum(len(part.episodes) for part in evaluation.parts)} episodes are done.")
            for line in dict.fromkeys(delay.describe() for delay in evaluation.delays if delay is not None):
                print(line)
            each = zip(evaluation.parts, evaluation.policies, evaluation.delays, strict=True)
            played = [run_part(part, policy, evaluation.config, kept, delay) for part, policy, delay in each]
        report_results(replace(evaluation, metadata=evaluation.metadata | measure_end(began)), played, out)
    except KeyboardInterrupt:
        print(f"Stopped; every finished episode is saved. Continue with: {command}", file=sys.stderr)
        raise
    except RunFailed as error:
        raise RunFailed(f"{str(error).rstrip()}\nOnce the cause is gone, continue with: {command}") from error
    finally:
        for client in {each.actor for each in evaluation.policies if isinstance(each.actor, PolicyClient)}:
            disconnect(client)
    return 0


def report_results(evaluation: PlannedEvaluation, played: Sequence[list[EpisodeResult]], out: Path) -> None:
    """Write an evaluation's report, videos and page, and print its table."""
    results, spec = combine_results(evaluation.parts, played)
    found, reported = Report.from_results(results, spec, evaluation.metadata), evaluation.config.reported
    if reported is not None:
        status = compare_reported(found.success, reported)
        found = replace(found, metadata={**found.metadata, "reported": reported, "status": status})
    found.write(out)
    if evaluation.config.format == "vla_eval":
        write_text(out / VLA_EVAL_FILE, json.dumps(to_vla_eval(found), indent=1) + "\n", "out")
    videos = film_as_configured(evaluation, played, out)
    metrics = None if evaluation.folder is None else evaluation.folder.metrics
    settings = configuration.to_yaml(evaluation.config)
    write_page(out / LAST, found, metrics=metrics, videos=videos, configuration=settings)
    console = Console(highlight=False)
    console.print(make_summary_table(found))
    offer_json(found.summarise() | {"folder": str(out)})
    if reported is not None:
        print(f"Reported: {reported:.1%}: {found.metadata['status']}")
    for path in (out / LAST, *videos):
        console.print(f"Written: {path}", markup=False, soft_wrap=True)


def check_evaluation(config: EvalConfig) -> list[tuple[str, str]]:
    """Check an evaluation's configuration without loading weights; return what it takes, as rows of text.

    Raises:
        UserError: the policy, simulator, split, task or initial state is unknown, the policy is for another robot,
            the simulator has no operator, or so many environments do not fit into this machine's memory.
    """
    if config.resume is not None:
        folder = Path(config.resume)
        config, before = read_resumed(config, folder)
        check_same(folder, before, open_evaluation(config).metadata)
    else:
        check_out(config.out)
    files = find_policies(config)
    parts = _make_parts(config, files)
    for part in parts:
        check_environments(min(part.kind.node.num_envs, len(part.episodes)), part.spec)
    episodes = ("episodes", f"{sum(len(part.episodes) for part in parts):,}")
    known = {who: file for who, file in files.items() if file is not None}
    for who, file in files.items():
        own = [part for part in parts if part.policy in (None, who)]
        if file is not None:
            check_policy_fits(read_metadata(file).embodiment, own)
        for part in own:
            if who == "expert":
                check_operator(part.kind)
            find_delay(config, part, who, lambda f=file: None if f is None else read_stored_chunks(f))
    if not known:
        return [episodes]
    size = format_bytes(sum(map(count_weights, known.values())))
    return [episodes, ("memory", f"parameters {size}. Simulators and activations come on top")]


def run_part(
    part: EvaluationPart, policy: EvaluatedPolicy, config: EvalConfig, kept: Results, delay: Delay | None
) -> list[EpisodeResult]:
    """Return the results of a part's episodes after running those that are not kept.

    The operator runs in one environment, any other policy in several simulators.
    """
    if all(episode.index in kept.found for episode in part.episodes):
        return [kept.found[episode.index] for episode in part.episodes]
    if policy.who != "expert":
        return evaluate_parallel(policy.actor or RandomPolicy(part.spec), part, config, kept, delay)
    expert, handle = open_expert(part.kind.build, "evaluation simulator")
    with closing(handle):
        return evaluate_policy(
            expert, [handle], part.spec, part.episodes, config.seed, 1, None, config.ablate, config.episodes_for, kept
        )


def evaluate_parallel(
    actor: DeployedPolicy, part: EvaluationPart, config: EvalConfig, kept: Results, delay: Delay | None
) -> list[EpisodeResult]:
    """Evaluate with one simulator per part of the plan, each in its own process if several run on the CPU.

    Sizes of simulators and batches do not depend on the episodes left, so that a continued evaluation gives the same
    bits as an uninterrupted one.
    """
    kind, spec, episodes = part.kind, part.spec, part.episodes
    processes = min(config.plan.parts, kind.limit_environments(len(episodes)))
    envs = max(1, min(kind.limit_environments(kind.node.num_envs), len(episodes)) // processes)
    cores = count_cores()
    torch.set_num_threads(max(1, cores - processes))
    handles: list[Handle] = []
    try:
        # Observations of a simulator on an accelerator can be read only in its own process.
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
            batch=None if isinstance(actor, PolicyClient) and not actor.is_ours else choose_batch(envs),
            delay=delay,
        )
    finally:
        for handle in handles:
            handle.close()


def film_as_configured(evaluation: PlannedEvaluation, played: Sequence[list[EpisodeResult]], out: Path) -> list[Path]:
    """Record the configured videos, and return their paths; several parts have separate folders.

    Ablations, the operator and random actions are not recorded.
    """
    config, video, films = evaluation.config, evaluation.config.video, list[Path]()
    if config.ablate != "none":
        return []
    counts: dict[str, Any] = {"episodes": video.episodes, "best": video.best, "worst": video.worst}
    if not video.worst or len(played) > 1:  # episodes of several parts have the same numbers
        counts["kinds"] = 0
    listed = zip(evaluation.parts, evaluation.policies, evaluation.delays, played, strict=True)
    for number, (part, policy, delay, results) in enumerate(listed):
        if policy.actor is not None and not part.kind.limits.attended:
            place = out if len(played) == 1 else out / f"part_{number}"
            given = (policy.actor, part.kind.build, part.spec, results, place)
            counts["at_once"] = part.kind.limit_environments(AT_ONCE)
            films += film_episodes(*given, **counts, seed=config.seed, purpose=config.episodes_for, delay=delay)
    return films
