"""Write self-contained HTML pages: no script, no external files, readable on a phone and on paper."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

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
"""

_LONG = 60
"""Characters from which a table's cell is a paragraph."""
_WHOLE = re.compile(r"[\d.]+ %|\[[^\]]*\]")
"""Parts of a cell without line breaks: a percentage, an interval."""


def write_html(path: Path, title: str, lead: str, sections: Sequence[str], key: str = "run.root") -> None:
    """Write one page from sections that are already HTML. Raises `StorageError` with the configuration key `key`."""
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{escape(title)}</title>'
    body = f'<main><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(sections)}</main>'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n'
    write_text(path, page, key)


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
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
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
