"""`embodied-rl trace`: write a trace of one iteration of a run, for ui.perfetto.dev or chrome://tracing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embodied_rl.rollout.timeline import RANK, Timeline, read_timelines
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import TraceConfig
from embodied_rl.system.atomic_write import explain_errors, write_text
from embodied_rl.system.untrusted_files import make_printable


def run(config: TraceConfig) -> None:
    """Write the trace, and print a table of the times of each rank and simulator.

    Raises:
        UserError: the run does not exist, or has not stored this iteration.
    """
    folder = RunFolder.latest("runs") if config.folder == "last" else RunFolder.open(config.folder)
    iteration, timelines = read_timelines(folder.path, config.iteration)
    file = Path(config.file) if config.file else folder.path / f"trace_{iteration:08d}.json"
    with explain_errors(file, "file"):
        write_text(file, json.dumps(list_events(timelines)) + "\n", "file")
    Console().print(make_trace_table(iteration, timelines))
    print(f"Written: {file}. Open it at https://ui.perfetto.dev or chrome://tracing.")


def list_events(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Return Chrome trace events: a process for each rank, with a thread for the rank itself and each simulator."""
    start = min(timeline.began for timeline in timelines)
    found: list[dict[str, Any]] = []
    for rank, timeline in enumerate(timelines):
        threads = {name: number for number, name in enumerate(list_lanes(timeline))}
        found.append(_name("process_name", f"rank {rank}", rank, 0))
        found += [_name("thread_name", name, rank, number) for name, number in threads.items()]
        found += [
            {
                "name": span.what,
                "ph": "X",
                "ts": (span.began - start) * 1e6,
                "dur": span.seconds * 1e6,
                "pid": rank,
                "tid": threads[span.who],
                "args": {"size": span.size},
            }
            for span in timeline.spans
        ]
    return found


def list_lanes(timeline: Timeline) -> list[str]:
    """Return the names of the rank and of the simulators in a timeline, the rank first."""
    return [RANK, *sorted({span.who for span in timeline.spans} - {RANK})]


def make_trace_table(iteration: int, timelines: Sequence[Timeline]) -> Table:
    """Make a table of how often, and for how long, each rank and simulator performed each stage."""
    found = Table(title=f"iteration {iteration}", caption="Seconds of one iteration.", box=SIMPLE_HEAD)
    for heading in ("rank", "who", "what"):
        found.add_column(heading)
    for heading in ("times", "seconds", "median", "longest"):
        found.add_column(heading, justify="right", no_wrap=True)
    for rank, timeline in enumerate(timelines):
        for who in list_lanes(timeline):
            for what in sorted({span.what for span in timeline.spans if span.who == who}):
                seconds = sorted(s.seconds for s in timeline.spans if (s.who, s.what) == (who, what))
                middle, longest = seconds[len(seconds) // 2], seconds[-1]
                cells = [str(len(seconds)), f"{sum(seconds):.3f}", f"{middle:.4f}", f"{longest:.4f}"]
                found.add_row(str(rank), escape(make_printable(who)), escape(make_printable(what)), *cells)
    return found


def _name(kind: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
