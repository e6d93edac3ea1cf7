"""The origin of a report's numbers, as HTML: command, commit, versions, machine and duration."""

from collections.abc import Mapping
from html import escape
from typing import Any

from embodied_rl.reports.page import fold, make_definitions

UNKNOWN = "unknown"
_SHOWN = {
    "kind", "command", "commit", "dirty", "seed", "python", "packages", "hardware", "load", "load_at_end", "seconds",
    "started", "finished", "notes", "simulators", "run", "file", "changed",
}  # fmt: skip
"""Metadata with separate lines; `make_origin` folds the rest."""


def make_origin(metadata: Mapping[str, Any], configuration: str = "") -> str:
    """Make the HTML of a report's origin from its metadata; the whole configuration as YAML is folded."""
    notes = [
        f"{_format_time(n.get('time'))}: {n.get('note')} ({n.get('command')})" for n in metadata.get("notes") or ()
    ]
    changes = ", with changes that are not committed" if metadata.get("dirty") else ""
    versions = {"Python": metadata.get("python"), **(metadata.get("packages") or {})}
    simulators: list[str] = []
    for each in metadata.get("simulators") or ():
        depends = each.get("depends_on") or {}
        simulators.append(f"{each.get('name')}{f' ({format_value(depends)})' if depends else ''}")
    hardware = metadata.get("hardware") or {}
    memory = f"{hardware['memory_gib']} GiB of memory" if "memory_gib" in hardware else ""
    cores, accelerator = f"{hardware.get('cores', UNKNOWN)} cores", hardware.get("accelerator") or "no GPU"
    machine = (hardware.get("cpu", ""), cores, accelerator, memory, hardware.get("system", ""))
    ends = {"at the start": metadata.get("load"), "at the end": metadata.get("load_at_end")}
    loads = ", ".join(f"{load[0]:.1f} {when}" for when, load in ends.items() if load)
    duration = ""
    if (seconds := metadata.get("seconds")) is not None:
        training = metadata.get("kind") == "training"
        kind = "training, without the evaluations before and after" if training else "episodes"
        duration = f"{format_duration(seconds)} of {kind}"
    entries = {
        "command": f"<code>{escape(str(metadata.get('command') or UNKNOWN))}</code>",
        "later": "<br>".join(map(escape, notes)),
        "commit": escape(f"{metadata.get('commit') or UNKNOWN}{changes}"),
        "seed": escape(format_value(metadata.get("seed", UNKNOWN))),
        "versions": escape(", ".join(f"{name} {version}" for name, version in versions.items() if version) or UNKNOWN),
        "simulator": "<br>".join(map(escape, simulators)),
        "changed settings": escape(format_value(metadata.get("changed") or "")),
        "machine": escape(", ".join(str(part) for part in machine if str(part)) if hardware else UNKNOWN),
        "load": escape(f"{loads} (processes that wanted a core, mean over a minute)" if loads else ""),
        "duration": escape(duration),
        "started": escape(_format_time(metadata.get("started"))),
        "finished": escape(_format_time(metadata.get("finished"))),
        "run folder": escape(str(metadata.get("run") or "")),
        "policy file": escape(str(metadata.get("file") or "")),
    }
    rest = {str(name): escape(format_value(value)) for name, value in metadata.items() if name not in _SHOWN}
    settings = f"<pre>{escape(configuration)}</pre>" if configuration else ""
    folded = fold("Whole configuration", settings) + fold("Further entries of report.json", make_definitions(rest))
    return make_definitions({name: value for name, value in entries.items() if value}) + folded


def format_value(value: Any) -> str:
    """Format a JSON value as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return "–" if value is None else str(value)


def format_duration(seconds: float) -> str:
    """Format a duration, such as 1 h 02 min, 3 min 20 s or 4.2 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _format_time(text: Any) -> str:
    return "" if not text else f"{str(text).replace('T', ' ').removesuffix('+00:00')} UTC"
