"""Write self-contained HTML pages: no script, no external files, readable on a phone and on paper."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.reports.report import Rate
from embodied_rl.system.atomic_write import write_text

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --raised: #f8fafc; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0;
  --accent: #2563eb; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #0f172a; --raised: #1e293b; --ink: #e2e8f0; --soft: #94a3b8; --line: #334155; --accent: #60a5fa; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { margin: 0 auto; max-width: 1320px; padding: 40px 24px 80px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 14px; }
p.lead { color: var(--soft); margin: 0 0 28px; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); gap: 14px; }
.card { border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; background: var(--raised); }
.card b { display: block; font-size: 30px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--soft); font-size: 13px; border-bottom: 2px solid var(--line); }
td { text-align: right; border-bottom: 1px solid var(--line); }
th, td { padding: 7px 9px; overflow-wrap: break-word; } td span { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 112px; }
td.long { text-align: left; min-width: 320px; overflow-wrap: anywhere; }
.bar { display: inline-block; position: relative; width: 120px; height: 10px; border-radius: 5px;
  background: var(--line); }
.bar i { position: absolute; inset: 0 auto 0 0; border-radius: 5px; background: var(--accent); }
.bar u { position: absolute; top: 3px; height: 4px; background: var(--ink); opacity: .55; border-radius: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 20px; }
figure { margin: 0; }
figure.chart { border: 1px solid var(--line); border-radius: 12px; padding: 14px 14px 10px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .axis { stroke: #94a3b8; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12px; color: var(--soft); min-height: 18px; }
.key i { display: inline-block; width: 12px; height: 3px; margin-right: 6px; vertical-align: middle; }
.videos { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 20px; }
.pairs { grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.videos .wide { grid-column: 1 / -1; }
video { width: 100%; border-radius: 12px; background: #0f172a; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; font-size: 13px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: 8px 0 0; padding: 12px 14px; border-radius: 8px; background: var(--raised); }
details { margin-top: 12px; font-size: 13px; } summary { cursor: pointer; color: var(--accent); }
p.note { color: var(--soft); font-size: 13px; margin: 10px 0 0; }
@media (max-width: 640px) {
  main { padding: 24px 16px 56px; }
  h1 { font-size: 22px; } h2 { margin-top: 34px; }
  thead { display: none; }
  table, tbody, tr, td { display: block; }
  tr { border: 1px solid var(--line); border-radius: 10px; padding: 8px 12px; margin-bottom: 10px; }
  td, td:first-child { display: flex; justify-content: space-between; align-items: center; gap: 16px; border: 0;
    padding: 3px 0; white-space: normal; overflow-wrap: anywhere; }
  td:first-child { font-weight: 600; }
  td::before { content: attr(data-label); color: var(--soft); font-size: 13px; font-weight: 400; text-align: left; }
  td:first-child::before, td[data-label=""]::before { content: none; }
  td.long { display: block; min-width: 0; } td.long::before { display: block; }
  td[data-label=""] div, td .bar { width: 100%; } td:first-child { min-width: 0; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 10px; }
}
@media print {
  * { print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  h2, thead, figcaption, summary { break-after: avoid; }
  .card, figure, tr, .strip { break-inside: avoid; }
  .scroll { overflow: visible; }
  video::-webkit-media-controls { display: none; }
  details::details-content { content-visibility: visible; }
}
"""

UNKNOWN = "unknown"
_SHOWN = {
    "kind", "command", "commit", "dirty", "seed", "python", "packages", "hardware", "load", "load_at_end", "seconds",
    "started", "finished", "notes", "simulators", "run", "file", "changed",
}  # fmt: skip
"""Metadata with separate lines; `make_origin` folds the rest."""
_LONG = 60
"""Characters from which a table's cell is a paragraph."""
_WHOLE = re.compile(r"[\d.]+ %|\[[^\]]*\]")
"""Parts of a cell without line breaks: a percentage, an interval."""


def write_html(path: Path, title: str, lead: str, sections: Sequence[str], key: str = "run.root") -> None:
    """Write one page from sections that are already HTML. Raises `StorageError` with the configuration key `key`."""
    write_text(path, make_page(title, lead, sections), key)


def make_page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Make the text of one page from sections that are already HTML."""
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{escape(title)}</title>'
    body = f'<main><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(sections)}</main>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n'


def make_section(title: str, content: str) -> str:
    """Make a section with a heading; empty without content."""
    return f"<h2>{escape(title)}</h2>{content}" if content else ""


def format_percent(rate: Rate) -> str:
    """Format a rate with its interval, such as 83.2 % [78.1, 87.3]."""
    return f"{format_share(rate.rate)} {format_interval(rate)}"


def format_interval(rate: Rate) -> str:
    """Format the interval of a rate in percent, such as [78.1, 87.3]."""
    return f"[{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def format_share(value: float) -> str:
    """Format a number of [0, 1], such as 83.2 %."""
    return f"{100 * value:.1f} %"


def make_bar(rate: Rate) -> str:
    """Draw a rate as an HTML bar, with its interval as a darker stroke."""
    left, width = 100 * rate.low, 100 * (rate.high - rate.low)
    fill = f'<i style="width:{100 * rate.rate:.1f}%"></i>'
    return f'<span class="bar">{fill}<u style="left:{left:.1f}%;width:{width:.1f}%"></u></span>'


def make_card(value: str, label: str) -> str:
    """Make a card with a large value and its label."""
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def make_html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make an HTML table from cells that are already HTML; empty without rows.

    On a narrow screen each row becomes a block, with one cell and its heading per line.
    """
    if not rows:
        return ""
    head = "".join(f"<th>{escape(heading)}</th>" if heading else "<td></td>" for heading in headings)
    body = ""
    for row in rows:
        cells: list[str] = []
        for heading, cell in zip(headings, row, strict=True):
            size = ' class="long"' if len(cell) > _LONG and "<" not in cell else ""
            text = cell if "<" in cell else _WHOLE.sub(r"<span>\g<0></span>", cell)
            cells.append(f'<td data-label="{escape(heading)}"{size}><div>{text}</div></td>')
        body += f"<tr>{''.join(cells)}</tr>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {escape(headings[0])}">'
    return f"{scroll}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def make_definitions(entries: Mapping[str, str]) -> str:
    """Make an HTML list of names and values that are already HTML; empty without entries."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in entries.items())
    return f"<dl>{rows}</dl>" if rows else ""


def fold(summary: str, content: str) -> str:
    """Fold HTML content below a line that unfolds it; empty without content."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>" if content else ""


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
