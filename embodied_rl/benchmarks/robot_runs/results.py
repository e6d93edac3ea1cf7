"""Report of episodes on a robot: an evaluation's report, with figures of the robot and the bridge."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.robot_runs.episode_runner import RobotEpisode, add_counts
from embodied_rl.evaluate.protocol import TIME_LIMIT, measure_smoothness
from embodied_rl.evaluate.video import SIZE, Recording, tile_recordings, write_mp4
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.reports.page import make_definitions, make_html_table
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult

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
    recordings = [
        Recording(
            each.episode, each.instruction, [_enlarge(frame) for frame in each.frames], bool(each.outcome["success"])
        )
        for each in episodes[:FILMED]
        if each.frames
    ]
    if not recordings:
        return []
    path = folder / "grid.mp4"
    write_mp4(path, tile_recordings(recordings, spec.control_hz), spec.control_hz, "out")
    return [path]


def _enlarge(frame: np.ndarray) -> np.ndarray:
    """Repeat pixels until an image has about the size of a video frame."""
    factor = max(1, round(SIZE / max(frame.shape[:2])))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1)


def make_report(episodes: Sequence[RobotEpisode], spec: SimulatorSpec, metadata: Mapping[str, Any]) -> Report:
    """Return the report on episodes, in the form of an evaluation's."""
    return Report.from_results([make_result(each) for each in episodes], spec, metadata)
