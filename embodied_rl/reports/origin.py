"""Where the numbers of a report come from, as HTML: what was typed, which source, on which machine, how long."""

from collections.abc import Mapping
from html import escape
from typing import Any

from embodied_rl.reports.page import fold, make_definitions

UNKNOWN = "unknown"
_SHOWN = {
    "kind", "command", "commit", "dirty", "seed", "python", "packages", "hardware", "load", "load_at_end", "seconds",
    "started", "finished", "notes", "simulators", "run", "file", "changed",
}  # fmt: skip
"""Metadata that has a line of its own; `make_origin` folds the rest."""


def make_origin(metadata: Mapping[str, Any], configuration: str = "") -> str:
    """Make the HTML of a report's origin.

    Args:
        metadata: of the report.
        configuration: the whole configuration as YAML, which is folded; left out if empty.
    """
    entries = {name: value for name, value in _list_entries(metadata).items() if value}
    rest = {str(name): escape(format_value(value)) for name, value in metadata.items() if name not in _SHOWN}
    settings = f"<pre>{escape(configuration)}</pre>" if configuration else ""
    folded = fold("Whole configuration", settings) + fold("What else report.json says", make_definitions(rest))
    return make_definitions(entries) + folded


def format_value(value: Any) -> str:
    """Format a JSON value in words."""
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


def _list_entries(said: Mapping[str, Any]) -> dict[str, str]:
    """Return name → HTML of each line; lines without a value are empty."""
    command = str(said.get("command") or UNKNOWN)
    return {
        "command": f"<code>{escape(command)}</code>",
        "later": "<br>".join(escape(_describe_note(note)) for note in said.get("notes") or ()),
        "commit": escape(_describe_commit(said)),
        "seed": escape(format_value(said.get("seed", UNKNOWN))),
        "versions": escape(_describe_versions(said)),
        "simulator": "<br>".join(escape(_describe_simulator(each)) for each in said.get("simulators") or ()),
        "changed settings": escape(format_value(said.get("changed") or "")),
        "machine": escape(_describe_machine(said.get("hardware") or {})),
        "load": escape(_describe_load(said)),
        "duration": escape(_describe_duration(said)),
        "started": escape(_describe_time(said.get("started"))),
        "finished": escape(_describe_time(said.get("finished"))),
        "run folder": escape(str(said.get("run") or "")),
        "policy file": escape(str(said.get("file") or "")),
    }


def _describe_note(note: Mapping[str, Any]) -> str:
    return f"{_describe_time(note.get('time'))}: {note.get('note')} ({note.get('command')})"


def _describe_commit(said: Mapping[str, Any]) -> str:
    changes = ", with changes that are not committed" if said.get("dirty") else ""
    return f"{said.get('commit') or UNKNOWN}{changes}"


def _describe_versions(said: Mapping[str, Any]) -> str:
    versions = {"Python": said.get("python"), **(said.get("packages") or {})}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version) or UNKNOWN


def _describe_simulator(said: Mapping[str, Any]) -> str:
    depends = said.get("depends_on") or {}
    return f"{said.get('name')}{f' ({format_value(depends)})' if depends else ''}"


def _describe_machine(hardware: Mapping[str, Any]) -> str:
    if not hardware:
        return UNKNOWN
    memory = f"{hardware['memory_gib']} GiB of memory" if "memory_gib" in hardware else ""
    parts = (
        str(hardware.get("cpu", "")),
        f"{hardware.get('cores', UNKNOWN)} cores",
        str(hardware.get("accelerator") or "no GPU"),
        memory,
        str(hardware.get("system", "")),
    )
    return ", ".join(part for part in parts if part)


def _describe_load(said: Mapping[str, Any]) -> str:
    ends = {"at the start": said.get("load"), "at the end": said.get("load_at_end")}
    known = [f"{load[0]:.1f} {when}" for when, load in ends.items() if load]
    return f"{', '.join(known)} (processes that wanted a core, mean over a minute)" if known else ""


def _describe_duration(said: Mapping[str, Any]) -> str:
    if said.get("seconds") is None:
        return ""
    kind = "training, without the evaluations before and after" if said.get("kind") == "training" else "episodes"
    return f"{format_duration(said['seconds'])} of {kind}"


def _describe_time(text: Any) -> str:
    return "" if not text else f"{str(text).replace('T', ' ').removesuffix('+00:00')} UTC"
