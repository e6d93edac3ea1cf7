"""Measure a deployment: lockstep against the simulator, real time, and the stopping time after a fault."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.benchmarks.dds_loopback import STREAMS, measure_stream
from embodied_rl.benchmarks.robot_runs.deployment import PlannedDeployment, plan_deployment, run_episodes
from embodied_rl.benchmarks.robot_runs.stop_measurement import Fault, measure_stop
from embodied_rl.interfaces.sim import Array, Observation, StepResult
from embodied_rl.reports.report import Rate
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.schema import DeployConfig
from embodied_rl.system.atomic_write import make_folder

FAULTS: tuple[Fault, ...] = ("server killed", "bridge killed", "emergency stop", "camera frozen")
EQUAL = 1e-6
"""Actions that differ by no more count as equal."""


@dataclass(frozen=True)
class Figure:
    """Name of the measurement, the formatted figure, the requirement, and the machine's load during it."""

    what: str
    measured: str
    wanted: str
    load: float

    def describe(self) -> str:
        """Return a line for the screen."""
        return f"{self.what}: {self.measured} (asked for: {self.wanted}; load {self.load:.1f})"


class ActionObserver(Observer):
    """Records the executed actions of each episode, and whether it succeeded."""

    def __init__(self) -> None:
        self.actions: dict[int, list[Array]] = {}
        self.success: dict[int, bool] = {}

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            row, steps, index = each.row, int(result.steps[each.row]), each.episode.index
            self.actions.setdefault(index, []).append(result.executed[row, :steps].copy())
            self.success[index] = self.success.get(index, False) or bool(result.success[row, :steps].any())


def run_measurements(policy: str, episodes: int, seconds: float, out: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Run all measurements; return the formatted figures, and the values for a file.

    Args:
        policy: a run, a file or asset:<name>, trained on the tabletop.
        episodes: number of episodes, in lockstep and in real time each.
        seconds: length of each stream of messages.
        out: folder for the logs of the processes.

    Raises:
        UserError, RunFailed: see `deploy_policy`.
    """
    config = DeployConfig(policy, episodes=episodes, film=False)
    figures, values = list[Figure](), dict[str, Any]()
    for name, measure in (("lockstep", compare_lockstep), ("real_time", measure_real_time), ("stops", measure_stops)):
        rows, found = measure(config, out)
        figures += rows
        values[name] = found
    streams = [measure_stream(stream, seconds) for stream in STREAMS]
    lost = [(each.stream, f"{each.sent - each.received} of {each.sent} lost", each.load) for each in streams]
    figures += [Figure(name, said, "nothing lost", load) for name, said, load in lost]
    return figures, values | {"streams": [asdict(each) for each in streams]}


def compare_lockstep(config: DeployConfig, out: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Run the same episodes over topics in lockstep and in the simulator, and compare actions and outcomes."""
    planned = plan_deployment(replace(config, lockstep=True))
    episodes, _ = run_episodes(planned, make_folder(out / "lockstep", "out"))
    observer = run_in_simulator(planned)
    differences, outcomes = list[float](), list[bool]()
    for each in episodes:
        expected = np.concatenate(observer.actions[each.episode.index])
        same_shape = each.executed.shape == expected.shape
        differences.append(float(np.abs(each.executed - expected).max()) if same_shape else np.inf)
        outcomes.append(bool(each.outcome["success"]) == observer.success[each.episode.index])
    worst = max(differences)
    said = f"actions differ by at most {worst:.1g}; {sum(outcomes)} of {len(outcomes)} outcomes equal"
    wanted = f"{EQUAL:g}; all"
    values = {"largest_difference": worst, "equal_outcomes": sum(outcomes), "episodes": len(outcomes)}
    return [Figure("lockstep and simulator, the same episodes", said, wanted, os.getloadavg()[0])], values


def run_in_simulator(planned: PlannedDeployment) -> ActionObserver:
    """Run the episodes of a deployment as `eval` does, and record the executed actions."""
    observer, config = ActionObserver(), planned.config
    handle = planned.part.kind.inline(1, "simulator")
    seed = derive_noise_seed(config.episodes_for, config.seed)
    try:
        EpisodeRunner(load_deployed(config.policy), planned.part.spec, seed).run(
            [handle], 1, planned.part.episodes, observer
        )
    finally:
        handle.close()
    return observer


def measure_real_time(config: DeployConfig, out: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Run episodes in real time; return success rate, latencies and missed deadlines."""
    episodes, said = run_episodes(plan_deployment(config), make_folder(out / "real_time", "out"))
    rate = Rate.from_count(sum(bool(each.outcome["success"]) for each in episodes), len(episodes))
    load, latency = os.getloadavg()[0], said["latency"]
    share = 100 * said["missed_deadlines"] / max(1, said["ticks"])
    rows = [
        ("success in real time", f"{100 * rate.rate:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]", "–"),
        ("wake-up of the control loop, p99", format_p99(latency["wake-up"]), "≤ 3 ms"),
        ("missed deadlines", f"{share:.2f} % of {said['ticks']}", "≤ 0.5 %"),
        ("waking to command, p99", format_p99(latency["tick"]), "≤ 5 ms"),
        ("age of the state that a command follows from, p99", format_p99(latency["observation to command"]), "–"),
        ("inference, p99", format_p99(latency["inference"]), "–"),
    ]
    return [Figure(*row, load) for row in rows], {**said, "success": asdict(rate)}


def format_p99(said: Mapping[str, Any]) -> str:
    """Format a 99 % quantile."""
    return "–" if said["p99_ms"] is None else f"{said['p99_ms']:.2f} ms"


def measure_stops(config: DeployConfig, out: Path) -> tuple[list[Figure], list[dict[str, Any]]]:
    """Inject each fault in a separate deployment, and measure when the robot is still."""
    planned = plan_deployment(config)
    ramp = max(each.speed / each.acceleration + each.acceleration / each.jerk for each in planned.robot.entry_limits)
    budget = load_deployed(config.policy).network.spec.horizon / planned.robot.control_hz
    camera = max(planned.robot.topics[each.topic].max_age_s for each in planned.robot.cameras)
    wanted = {
        "server killed": f"still ≤ {1e3 * (budget + ramp + 0.15):.0f} ms (budget + ramp + 150)",
        "bridge killed": "still ≤ 350 ms",
        "emergency stop": "ramp ≤ 100 ms",
        "camera frozen": f"still ≤ {1e3 * (camera + ramp):.0f} ms (camera's limit + ramp)",
    }
    figures, values = list[Figure](), list[dict[str, Any]]()
    for fault in FAULTS:
        found = measure_stop(planned, make_folder(out / fault.replace(" ", "_"), "out"), fault)
        ramped = "" if found.ramp_s is None else f", ramp after {1e3 * found.ramp_s:.0f} ms"
        figures.append(Figure(fault, f"still after {1e3 * found.still_s:.0f} ms{ramped}", wanted[fault], found.load))
        values.append(asdict(found))
    return figures, values
