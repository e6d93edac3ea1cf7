"""Report of episodes on a robot: an evaluation's report, with figures of the robot and the bridge."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.trials.episode_runner import ConductedEpisode, add_counts
from embodied_rl.evaluate.protocol import TIME_LIMIT, measure_smoothness
from embodied_rl.evaluate.video import SIZE, Recording, tile_recordings, write_mp4
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.reports.page import make_definitions, make_html_table
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult

FILMED = 16
"""Episodes in the film."""


def make_result(conducted: ConductedEpisode) -> EpisodeResult:
    """Return the result of an episode from what the robot said of it.

    Raises:
        RunFailed: the robot's outcome lacks an entry.
    """
    episode, said = conducted.episode, conducted.outcome
    try:
        success, steps = bool(said["success"]), int(said["steps"])
        return EpisodeResult(
            index=episode.index,
            task=episode.task,
            seed=episode.seed,
            split=episode.split,
            success=success,
            success_at_end=bool(said.get("success_at_end", success)),
            steps=steps,
            reward=float(said["reward"]),
            smoothness=_measure_smoothness(conducted),
            initial_state=episode.initial_state,
            failure="" if success else str(said.get("failure") or TIME_LIMIT),
            steps_to_success=steps if success else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"The outcome of episode {episode.index} is incomplete: {error}: {said}.") from None


def _measure_smoothness(conducted: ConductedEpisode) -> float:
    actions = conducted.executed
    known = actions[np.isfinite(actions).all(axis=1)] if len(actions) else actions
    return measure_smoothness(known) if len(known) else 0.0


def describe_deployment(
    conducted: Sequence[ConductedEpisode], status: Mapping[str, Any], lockstep: bool
) -> dict[str, Any]:
    """Return what a report says of the robot's side.

    Args:
        conducted: the episodes.
        status: the last one of the bridge.
        lockstep: the robot waited for each command.
    """
    sources = add_counts(each.count_sources() for each in conducted)
    return {
        "lockstep": lockstep,
        "control_steps": sum(sources.values()),
        "sources": sources,
        "holds": add_counts(each.count_reasons("hold") for each in conducted),
        "filtered": add_counts(each.count_reasons("safety") for each in conducted),
        **{name: status.get(name) for name in ("latency", "missed_deadlines", "ticks", "counters", "priority", "load")},
    }


def make_deployment_section(said: Mapping[str, Any]) -> str:
    """Make the HTML of what a report says of the robot's side."""
    rows = [
        [escape(name), str(each["count"]), *(_format_ms(each[key]) for key in ("p50_ms", "p99_ms", "max_ms"))]
        for name, each in (said.get("latency") or {}).items()
    ]
    holds, filtered = (
        [[escape(why), str(count)] for why, count in said[name].items()] for name in ("holds", "filtered")
    )
    missed, ticks = said.get("missed_deadlines") or 0, said.get("ticks") or 0
    entries = {
        "time": "lockstep: the robot waits for each command" if said["lockstep"] else "real",
        "control steps": describe_sources(said),
        "missed deadlines": "there are none in lockstep" if said["lockstep"] else f"{missed} of {ticks} ticks",
        "control thread": escape(str(said.get("priority") or "–")),
        "recording": escape(str(said.get("recording") or "none; record=true makes one")),
        "load of the machine": ", ".join(f"{each:.1f}" for each in said.get("load") or ()) or "–",
    }
    return (
        make_definitions(entries)
        + make_html_table(["latency", "measured", "p50", "p99", "longest"], rows)
        + make_html_table(["why the robot held", "control steps"], holds)
        + make_html_table(["what the safety filter changed materially", "control steps"], filtered)
    )


def describe_sources(said: Mapping[str, Any]) -> str:
    """Format the number of control steps by source."""
    parts = ", ".join(f"{name} {count}" for name, count in said["sources"].items())
    return f"{said['control_steps']}: {parts}"


def _format_ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def film(conducted: Sequence[ConductedEpisode], spec: SimulatorSpec, folder: Path) -> list[Path]:
    """Write a film of the first episodes from the camera's pictures; return its path, or nothing without pictures."""
    recordings = [_make_recording(each) for each in conducted[:FILMED] if each.frames]
    if not recordings:
        return []
    path = folder / "grid.mp4"
    write_mp4(path, tile_recordings(recordings, spec.control_hz), spec.control_hz, "out")
    return [path]


def _make_recording(conducted: ConductedEpisode) -> Recording:
    frames = [_enlarge(frame) for frame in conducted.frames]
    return Recording(conducted.episode, conducted.instruction, frames, bool(conducted.outcome["success"]))


def _enlarge(frame: np.ndarray) -> np.ndarray:
    """Repeat pixels until a picture has about the size of a film's."""
    factor = max(1, round(SIZE / max(frame.shape[:2])))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1)


def make_report(conducted: Sequence[ConductedEpisode], spec: SimulatorSpec, metadata: Mapping[str, Any]) -> Report:
    """Return the report on episodes, in the form of an evaluation's."""
    return Report.from_results([make_result(each) for each in conducted], spec, metadata)
