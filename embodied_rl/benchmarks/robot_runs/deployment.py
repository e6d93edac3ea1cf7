"""`deploy`: server, bridge and a simulated robot as processes on the loopback interface, episodes, report and film."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from embodied_rl.assembly.evaluated_policies import find_run, find_simulator
from embodied_rl.assembly.policy_factory import find_policy_file, names_file
from embodied_rl.benchmarks.robot_runs.episode_runner import RobotEpisode, RobotEpisodeRunner, add_counts
from embodied_rl.benchmarks.robot_runs.processes import DeploymentProcesses, reserve_domain_id
from embodied_rl.checkpoints.policy_format import verify_weights
from embodied_rl.config import freeze as configuration
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.evaluate.benchmark import EvaluationPart, make_parts
from embodied_rl.evaluate.metadata import make_metadata, measure_end
from embodied_rl.evaluate.protocol import TIME_LIMIT, measure_smoothness
from embodied_rl.evaluate.video import SIZE, Recording, tile_recordings, write_mp4
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.reports.page import make_definitions, make_html_table
from embodied_rl.reports.report import Report
from embodied_rl.reports.report_page import write_page
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.summary_table import make_summary_table
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.runs.folder import make_evaluation_folder
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import DeployConfig, EvalConfig, SimChange

FILMED = 16
"""Episodes in the film."""


def make_result(recorded: RobotEpisode) -> EpisodeResult:
    """Return the result of an episode from the robot's outcome message.

    Raises:
        RunFailed: the robot's outcome lacks an entry.
    """
    episode, outcome, actions = recorded.episode, recorded.outcome, recorded.executed
    finite = actions[np.isfinite(actions).all(axis=1)] if len(actions) else actions
    try:
        success, steps = bool(outcome["success"]), int(outcome["steps"])
        return EpisodeResult(
            index=episode.index,
            task=episode.task,
            seed=episode.seed,
            split=episode.split,
            success=success,
            success_at_end=bool(outcome.get("success_at_end", success)),
            steps=steps,
            reward=float(outcome["reward"]),
            smoothness=measure_smoothness(finite) if len(finite) else 0.0,
            initial_state=episode.initial_state,
            failure="" if success else str(outcome.get("failure") or TIME_LIMIT),
            steps_to_success=steps if success else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"The outcome of episode {episode.index} is incomplete: {error}: {outcome}.") from None


def describe_deployment(episodes: Sequence[RobotEpisode], status: Mapping[str, Any], lockstep: bool) -> dict[str, Any]:
    """Return the report's figures of the robot and the bridge.

    Args:
        episodes: the episodes.
        status: the bridge's last status.
        lockstep: the robot waited for each command.
    """
    sources = add_counts(each.count_sources() for each in episodes)
    return {
        "lockstep": lockstep,
        "control_steps": sum(sources.values()),
        "sources": sources,
        "holds": add_counts(each.count_reasons("hold") for each in episodes),
        "filtered": add_counts(each.count_reasons("safety") for each in episodes),
        **{name: status.get(name) for name in ("latency", "missed_deadlines", "ticks", "counters", "priority", "load")},
    }


def make_deployment_section(figures: Mapping[str, Any]) -> str:
    """Make the HTML of the figures of `describe_deployment`."""

    def milliseconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f} ms"

    rows = [
        [escape(name), str(each["count"]), *(milliseconds(each[key]) for key in ("p50_ms", "p99_ms", "max_ms"))]
        for name, each in (figures.get("latency") or {}).items()
    ]
    holds, filtered = (
        [[escape(why), str(count)] for why, count in figures[name].items()] for name in ("holds", "filtered")
    )
    missed, ticks = figures.get("missed_deadlines") or 0, figures.get("ticks") or 0
    entries = {
        "time": "lockstep: the robot waits for each command" if figures["lockstep"] else "real",
        "control steps": describe_sources(figures),
        "missed deadlines": "there are none in lockstep" if figures["lockstep"] else f"{missed} of {ticks} ticks",
        "control thread": escape(str(figures.get("priority") or "–")),
        "recording": escape(str(figures.get("recording") or "none; record=true makes one")),
        "load of the machine": ", ".join(f"{each:.1f}" for each in figures.get("load") or ()) or "–",
    }
    return (
        make_definitions(entries)
        + make_html_table(["latency", "measured", "p50", "p99", "longest"], rows)
        + make_html_table(["why the robot held", "control steps"], holds)
        + make_html_table(["what the safety filter changed materially", "control steps"], filtered)
    )


def describe_sources(figures: Mapping[str, Any]) -> str:
    """Format the number of control steps by source."""
    parts = ", ".join(f"{name} {count}" for name, count in figures["sources"].items())
    return f"{figures['control_steps']}: {parts}"


def film(episodes: Sequence[RobotEpisode], spec: SimulatorSpec, folder: Path) -> list[Path]:
    """Write a video of the first episodes from the camera's images; return its path, or [] without images."""
    recordings = list[Recording]()
    for each in episodes[:FILMED]:
        if each.frames:  # pixels are repeated until an image has about the size of a video frame
            factor = max(1, round(SIZE / max(each.frames[0].shape[:2])))
            frames = [frame.repeat(factor, axis=0).repeat(factor, axis=1) for frame in each.frames]
            recordings.append(Recording(each.episode, each.instruction, frames, bool(each.outcome["success"])))
    if not recordings:
        return []
    path = folder / "grid.mp4"
    write_mp4(path, tile_recordings(recordings, spec.control_hz), spec.control_hz, "out")
    return [path]


START_S = 300.0
"""Timeout of loading a policy or a simulator, in seconds."""
SILENCE_S = 60.0
"""Seconds without a message of the bridge until a deployment fails; it publishes its status ten times a second."""
OWN_VARIABLES = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")
"""ROS 2 variables that a deployment sets for its processes."""
PAGE, RECORDING = "report.html", "recording"
ADDRESS = re.compile(r"ws://[^;\s]+")


@dataclass(frozen=True)
class PlannedDeployment:
    """A deployment that has been checked.

    Attributes:
        config: its configuration. robot: the robot's description.
        part: the episodes, and the robot's simulator.
        metadata: metadata of the report.
    """

    config: DeployConfig
    robot: RobotDescription
    part: EvaluationPart
    metadata: dict[str, Any]


def plan_deployment(config: DeployConfig) -> PlannedDeployment:
    """Find and check what a deployment needs, before a process is started.

    Raises:
        UserError: policy, robot, split or task are unknown, the policy was made for another robot, or a variable of
            ROS 2 has an unsupported value. Unavailable: an extra is missing.
    """
    if not names_file(config.policy):
        raise UserError(
            f"policy={config.policy}: deploy starts the policy server itself. Give a run, a file or asset:<name>.",
            code="policy-not-a-file",
        )
    if config.transport == "dds":
        require("cyclonedds", "deploy with transport=dds")
        read_environment({name: value for name, value in os.environ.items() if name not in OWN_VARIABLES})
    robot, file = load_robot(config.robot), find_policy_file(config.policy)
    verify_weights(file)
    asked = EvalConfig(
        policy=config.policy, seed=config.seed, episodes=config.episodes,
        split=config.split, task=config.task, episodes_for=config.episodes_for,
    )  # fmt: skip
    own = find_simulator(file, find_run(file), asked.sim)
    asked = asked if own is not None else replace(asked, sim=SimChange(name=robot.name))
    (part,) = make_parts(asked, own)
    for what in (each.name for each in fields(Body)):
        if (theirs := getattr(part.spec.body, what)) != (ours := getattr(robot.body, what)):
            raise UserError(
                f"robot={config.robot}: {config.policy} was trained on another robot: {what} {theirs} "
                f"there, {ours} here. Choose the robot that it was trained for, or another policy.",
                code="policy-robot-mismatch",
            )
    metadata = make_metadata(asked, {config.policy: file}, [part])
    return PlannedDeployment(config, robot, part, metadata | {"kind": "deployment", "robot": robot.name})


def check_deployment(config: DeployConfig) -> list[tuple[str, str]]:
    """Check a deployment for a dry run; see `plan_deployment`."""
    planned = plan_deployment(config)
    return [("robot", f"{planned.robot.name}: {planned.robot.verified}"), ("episodes", f"{config.episodes:,}")]


def deploy_policy(config: DeployConfig) -> int:
    """Run the episodes; write `report.json`, `report.html` and a film; print success and latencies.

    Raises:
        UserError: see `plan_deployment`. RunFailed: a process has ended, or an episode does not end in time.
    """
    planned, began = plan_deployment(config), time.perf_counter()
    folder = make_evaluation_folder(Path(config.out), "lockstep" if config.lockstep else "deploy", key="out")
    episodes, figures = run_episodes(planned, folder)
    if config.record:
        figures["recording"] = str(folder / RECORDING)
    metadata = {**planned.metadata, "deployment": figures, **measure_end(began)}
    report_deployment(replace(planned, metadata=metadata), episodes, folder)
    return 0


def run_episodes(planned: PlannedDeployment, folder: Path) -> tuple[list[RobotEpisode], dict[str, Any]]:
    """Start the processes, run all episodes, end the processes; return the episodes and the report's robot figures."""
    config, robot = planned.config, planned.robot
    with ExitStack() as stack:
        variables = stack.enter_context(reserve_domain_id())
        processes = stack.enter_context(DeploymentProcesses(folder, variables))
        print(f"Starting server, robot and bridge; their output is in {folder}/*.log", flush=True)
        start_processes(planned, processes, folder / RECORDING if config.record else None)
        node = stack.enter_context(open_transport(config.transport, "deploy", read_environment(os.environ | variables)))
        runner = RobotEpisodeRunner(node, robot, processes.check)
        if config.film:
            runner.film(robot)
        runner.wait_for_bridge(START_S, 3 if config.record else 2)  # the robot, the bridge, the recorder
        print(processes.started[-1].read_log().strip(), flush=True)
        longest = START_S if config.lockstep else START_S + 3 * planned.part.spec.horizon / robot.control_hz
        episodes = list[RobotEpisode]()
        for episode in planned.part.episodes:
            episodes.append(last := runner.run_episode(episode, SILENCE_S, longest))
            success = sum(bool(each.outcome.get("success")) for each in episodes)
            how = "success" if last.outcome.get("success") else str(last.outcome.get("failure") or "failure")
            said = f"{how}, {last.outcome.get('steps')} steps; {success} successes"
            print(f"{len(episodes)} of {len(planned.part.episodes)}: {said}", flush=True)
        return episodes, describe_deployment(episodes, runner.status, config.lockstep)


def start_processes(planned: PlannedDeployment, processes: DeploymentProcesses, recording: Path | None = None) -> None:
    """Start server, robot and bridge; the bridge records into `recording`.

    Raises:
        RunFailed: one of them ended, or the server does not answer.
    """
    config = planned.config
    server = processes.start("server", "serve", config.policy, "port=0", "batch=1", "threads=1")
    lockstep = f"lockstep={str(config.lockstep).lower()}"
    common = (f"robot={config.robot}", f"transport={config.transport}", lockstep)
    processes.start("robot", "robot", *common, *list_simulator_arguments(planned.part.kind))
    processes.wait_for("The server's start", lambda: ADDRESS.search(server.read_log()) is not None, START_S)
    seed = derive_noise_seed(config.episodes_for, config.seed)
    given = {"replan": config.replan, "record": None if recording is None else json.dumps(str(recording))}
    more = [f"{key}={value}" for key, value in given.items() if value is not None]
    address = ADDRESS.search(server.read_log())
    assert address is not None, "it was waited for"
    processes.start(
        "bridge", "bridge", *common, f"policy={address[0]}", "episodes=true", "deadman=false", f"seed={seed}",
        f"strategy={config.strategy}", f"patience={START_S}", *more,
    )  # fmt: skip


def list_simulator_arguments(kind: SimulatorKind) -> list[str]:
    """Return command-line arguments for the policy's simulator: its name, and each setting that is not the default.

    Raises:
        UserError: a setting cannot be written as an argument.
    """
    defaults, arguments = type(kind.options)(), [f"sim={kind.node.name}"]
    for item in fields(kind.options):
        value = getattr(kind.options, item.name)
        if value == getattr(defaults, item.name):
            continue
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
            raise UserError(
                f"sim.{item.name}={value!r}: the policy was trained with this, and it cannot be passed to the robot.",
                code="sim-setting-unsupported",
            )
        arguments.append(f"sim.{item.name}={text}")
    return arguments


def report_deployment(planned: PlannedDeployment, episodes: list[RobotEpisode], folder: Path) -> Report:
    """Print the report, then write it. Raises `StorageError`: the disk is full, or the folder is gone."""
    report = Report.from_results([make_result(each) for each in episodes], planned.part.spec, planned.metadata)
    figures, settings = planned.metadata["deployment"], configuration.to_yaml(planned.config)
    console = Console(highlight=False)
    console.print(make_summary_table(report))
    for name, each in (figures["latency"] or {}).items():
        if each["count"]:
            print(f"{name}: p50 {each['p50_ms']:.2f} ms, p99 {each['p99_ms']:.2f} ms, longest {each['max_ms']:.2f} ms")
    print(f"Control steps, by who decided: {describe_sources(figures)}. Load {figures['load']}.")
    report.write(folder, "out")
    videos, robot = film(episodes, planned.part.spec, folder), make_deployment_section(figures)
    write_page(folder / PAGE, report, videos=videos, configuration=settings, robot=robot, key="out")
    for path in (folder / PAGE, *videos):
        console.print(f"Written: {path}", markup=False, soft_wrap=True)
    if recording := figures.get("recording"):
        words = f"Recorded: {recording}; a dataset of it: embodied-rl collect from={recording} out=<folder>"
        console.print(words, markup=False, soft_wrap=True)
    return report
