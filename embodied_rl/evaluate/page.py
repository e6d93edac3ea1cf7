"""Write self-contained HTML pages: images and videos embedded, no script, nothing to load."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from embodied_rl.evaluate.chart import Series, draw_line_chart
from embodied_rl.evaluate.report import Rate, Report, Summary
from embodied_rl.runs.atomic_write import write_text
from embodied_rl.runs.metrics_file import Value, read_metrics

_STYLE = """
:root { color-scheme: light; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --accent: #2563eb; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 40px 24px 80px; background: #fff; color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 44px 0 14px; }
p.lead { color: var(--soft); margin: 0 0 28px; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; }
.card { border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; background: #f8fafc; }
.card b { display: block; font-size: 30px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--soft); font-size: 13px; border-bottom: 2px solid var(--line); }
td { text-align: right; border-bottom: 1px solid var(--line); }
th, td { padding: 7px 10px; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.bar { display: inline-block; position: relative; width: 150px; height: 10px; border-radius: 5px; background: #e2e8f0; }
.bar i { position: absolute; inset: 0 auto 0 0; border-radius: 5px; background: var(--accent); }
.bar u { position: absolute; top: 3px; height: 4px; background: #0f172a; opacity: .55; border-radius: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 20px; }
figure { margin: 0; }
figure.chart { border: 1px solid var(--line); border-radius: 12px; padding: 14px 14px 10px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); }
svg .grid { stroke: #eef2f7; } svg .axis { stroke: #94a3b8; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12px; color: var(--soft); min-height: 18px; }
.key i { display: inline-block; width: 12px; height: 3px; margin-right: 6px; vertical-align: middle; }
.videos { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 20px; }
.videos .wide { grid-column: 1 / -1; }
video { width: 100%; border-radius: 12px; background: #0f172a; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; font-size: 13px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""

_CURVES = (
    ("Return of training episodes", "rollout/return"),
    ("KL divergence per update", "update/kl"),
    ("Share of clipped ratios", "update/clip_share"),
    ("Entropy", "update/entropy"),
    ("Loss of localisation", "localise/loss"),
    ("Loss of cloning", "clone/loss"),
)
"""Learning curves after that of success: title, metric."""

_CAPTIONS = {"grid": "Side by side", "best": "The quickest successes", "worst": "Failures"}


def write_page(
    path: Path,
    report: Report,
    *,
    before: Report | None = None,
    metrics: Path | None = None,
    videos: Sequence[Path] = (),
) -> None:
    """Write `report.html`.

    Args:
        path: the file.
        report: the results.
        before: results on the same episodes before training, shown for comparison.
        metrics: the run's metrics.jsonl, for the learning curves.
        videos: MP4 files to embed; the first is shown in full width.
    """
    metadata = report.metadata
    where = [str(metadata[name]) for name in ("checkpoint", "run") if name in metadata]
    lead = " · ".join([*where, f"split {metadata.get('split', '–')}", f"{report.success.episodes} episodes"])
    sections = [
        _cards(report.overall, before.overall if before else None),
        make_section("By family", _table("family", report.families, before.families if before else None)),
        make_section("By task", _table("task", report.tasks, before.tasks if before else None)),
        make_section("Learning curves", draw_learning_curves(read_metrics(metrics) if metrics else ())),
        make_section("Videos", _videos(videos)),
        make_section("Where these numbers come from", _details(metadata)),
    ]
    write_html(path, "Evaluation", lead, sections)


def write_html(path: Path, title: str, lead: str, sections: Sequence[str]) -> None:
    """Write one page from sections that are already HTML."""
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{escape(title)}</title>'
    body = f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(sections)}'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n'
    write_text(path, page)


def make_section(title: str, content: str) -> str:
    """Make a section with a heading; empty if there is no content."""
    return f"<h2>{escape(title)}</h2>{content}" if content else ""


def format_percent(rate: Rate) -> str:
    """Format a rate with its interval, such as 83.2 % [78.1, 87.3]."""
    return f"{100 * rate.rate:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def make_bar(rate: Rate) -> str:
    """Draw a rate as an HTML bar, with its interval as a darker stroke."""
    left, width = 100 * rate.low, 100 * (rate.high - rate.low)
    fill = f'<i style="width:{100 * rate.rate:.1f}%"></i>'
    return f'<span class="bar">{fill}<u style="left:{left:.1f}%;width:{width:.1f}%"></u></span>'


def make_html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make an HTML table; cells must already be HTML; empty if there are no rows."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>' if rows else ""
    )


def draw_learning_curves(metrics: Sequence[Mapping[str, Value]]) -> str:
    """Draw success in training and in evaluations (with intervals), then the other curves that have values."""
    iterations = [_number(row.get("iteration")) or 0.0 for row in metrics]

    def column(name: str) -> list[float | None]:
        return [_number(row.get(name)) for row in metrics]

    evaluations = Series(
        "evaluation, without noise",
        iterations,
        column("eval/success"),
        column("eval/low"),
        column("eval/high"),
        dots=True,
    )
    training = Series("training, with exploration", iterations, column("rollout/success"))
    charts = [draw_line_chart("Success", [training, evaluations], x_label="iteration", percent=True)]
    for title, name in _CURVES:
        values = column(name)
        if any(values):  # with fixed noise the entropy is always 0
            charts.append(draw_line_chart(title, [Series("", iterations, values)], x_label="iteration"))
    drawn = "".join(charts)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _cards(overall: Summary, before: Summary | None) -> str:
    def card(value: str, label: str) -> str:
        return f'<div class="card"><b>{value}</b><span>{label}</span></div>'

    success, at_end = overall.success, overall.success_at_end
    gained = "" if before is None else f"<br>before training {format_percent(before.success)}"
    cards = (
        card(_share(success.rate), f"success, 95 % interval {_share(success.low)} to {_share(success.high)}{gained}"),
        card(_share(at_end.rate), f"success at the end, {_share(at_end.low)} to {_share(at_end.high)}"),
        card(f"{overall.steps:.1f}", "control steps per episode"),
        card(f"{overall.smoothness:.4f}", "roughness of actions (mean squared second difference)"),
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _table(kind: str, summaries: Mapping[str, Summary], before: Mapping[str, Summary] | None) -> str:
    headings = [kind, "", "success [95 %]", "at the end", "episodes", "steps", "roughness"]
    rows: list[list[str]] = []
    for name, summary in summaries.items():
        figures = [f"{summary.success.episodes}", f"{summary.steps:.1f}", f"{summary.smoothness:.4f}"]
        row = [
            escape(name),
            make_bar(summary.success),
            format_percent(summary.success),
            _share(summary.success_at_end.rate),
        ]
        rows.append([*row, *figures])
        if before is not None:
            rows[-1].insert(2, format_percent(before[name].success) if name in before else "–")
    if before is not None:
        headings.insert(2, "before")
    return make_html_table(headings, rows)


def _videos(videos: Sequence[Path]) -> str:
    figures: list[str] = []
    for number, path in enumerate(videos):
        data = base64.b64encode(path.read_bytes()).decode()
        player = (
            f'<video controls loop muted playsinline preload="metadata" src="data:video/mp4;base64,{data}"></video>'
        )
        caption = _CAPTIONS.get(path.stem, path.stem.replace("_", " "))
        wide = ' class="wide"' if number == 0 else ""
        figures.append(f"<figure{wide}><figcaption>{escape(caption)}</figcaption>{player}</figure>")
    return f'<div class="videos">{"".join(figures)}</div>' if figures else ""


def _details(metadata: Mapping[str, object]) -> str:
    def text(value: object) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {entry}" for name, entry in value.items())
        return "–" if value is None else str(value)

    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text(value))}</dd>" for name, value in metadata.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None
