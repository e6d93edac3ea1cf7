"""Draw line charts as SVG, inside of a page or as files, without scripts, fonts or external files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 38
_KEYS, _LETTER = 4, 6.5
"""Keys in a row of the legend of a file, at most, and the width of a letter of 11 pixels, at most in the mean."""
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#475569} .title{font-size:13px;font-weight:600;fill:#0f172a} "
    ".grid{stroke:#e2e8f0} .axis{stroke:#94a3b8}"
)
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#be185d")


@dataclass(frozen=True)
class Series:
    """A curve of a chart.

    Points with y = None are left out, and so is an empty label. `low` and `high` are intervals around y, or empty;
    `dots` draws points with error bars instead of a line with a band.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    dots: bool = False


def draw_line_chart(title: str, series: Sequence[Series], *, x_label: str, percent: bool = False) -> str:
    """Draw a chart as an HTML figure with SVG; empty if no curve has points.

    With `percent`, y is a fraction, drawn from 0 to 100 %.
    """
    body, keys = _draw_axes_and_curves(series, x_label, percent)
    if not body:
        return ""
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(label)}</span>' for label, colour in keys
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure class="chart">{caption}{svg}<div class="legend">{legend}</div></figure>'


def draw_chart_file(title: str, series: Sequence[Series], *, x_label: str, percent: bool = False) -> str:
    """Draw a chart as a separate SVG file, with title and legend, on white; empty if no curve has points."""
    body, keys = _draw_axes_and_curves(series, x_label, percent)
    if not body:
        return ""
    legend, longest = "", max(len(label) for label, _ in keys)
    columns = max(1, min(_KEYS, int((WIDTH - _LEFT) / (25 + _LETTER * longest))))
    for number, (label, colour) in enumerate(keys):
        x, y = _LEFT + (number % columns) * (WIDTH - _LEFT) // columns, HEIGHT + 16 + 16 * (number // columns)
        legend += f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        legend += f'<text x="{x + 15}" y="{y}">{escape(label)}</text>'
    top, height = 24, HEIGHT + 24 + 16 * math.ceil(len(keys) / columns)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-top} {WIDTH} {height + top}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect y="{-top}" width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="-8" class="title">{escape(title)}</text>{body}{legend}</svg>\n'
    )


def _draw_axes_and_curves(series: Sequence[Series], x_label: str, percent: bool) -> tuple[str, list[tuple[str, str]]]:
    """Draw what is inside of a chart; return it, empty if no curve has points, and the labels with their colours."""
    drawn = [(item, points, n) for n, item in enumerate(series) if (points := _list_points(item))]
    points = [point for _, known, _ in drawn for point in known]
    if not points:
        return "", []
    x_low, x_high = min(point[0] for point in points), max(point[0] for point in points)
    y_low, y_high = (0.0, 1.0) if percent else (min(p[2] for p in points), max(p[3] for p in points))
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    if y_low == y_high:
        y_low, y_high = y_low - 0.5, y_high + 0.5
    margin = 0.0 if percent else 0.05 * (y_high - y_low)
    y_low, y_high = y_low - margin, y_high + margin
    bottom = HEIGHT - _BOTTOM

    def x(value: float) -> str:
        return f"{_LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT):.1f}"

    def y(value: float) -> str:
        return f"{bottom - (value - y_low) / (y_high - y_low) * (bottom - _TOP):.1f}"

    body = ""
    for value in choose_ticks(y_low, y_high):
        text = f"{value:.0%}" if percent else f"{value:.4g}"
        body += f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}" class="grid"/>'
        body += f'<text x="{_LEFT - 8}" y="{y(value)}" dy="4" text-anchor="end">{text}</text>'
    counted = all(float(point[0]).is_integer() for point in points)  # no tick between whole numbers
    for value in choose_ticks(x_low, x_high, least_step=1.0 if counted else 0.0):
        sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
        size, letter = next(each for each in sizes if abs(value) >= each[0] or each[0] == 1)
        body += f'<text x="{x(value)}" y="{bottom + 17}" text-anchor="middle">{value / size:g}{letter}</text>'
    body += f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" class="axis"/>'
    middle = (_LEFT + WIDTH - _RIGHT) // 2
    body += f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    keys: list[tuple[str, str]] = []
    for item, known, number in drawn:
        colour = COLOURS[number % len(COLOURS)]
        if item.label:
            keys.append((item.label, colour))
        if item.dots or len(known) == 1:
            bars = "".join(f"M{x(at)},{y(low)}V{y(high)}" for at, _, low, high in known)
            body += f'<path d="{bars}" stroke="{colour}" stroke-width="2"/>'
            body += "".join(f'<circle cx="{x(at)}" cy="{y(v)}" r="4" fill="{colour}"/>' for at, v, _, _ in known)
            continue
        if item.low:
            outline = [f"{x(at)},{y(low)}" for at, _, low, _ in known]
            outline += [f"{x(at)},{y(high)}" for at, _, _, high in reversed(known)]
            body += f'<polygon points="{" ".join(outline)}" fill="{colour}" fill-opacity="0.15"/>'
        line = " ".join(f"{x(at)},{y(value)}" for at, value, _, _ in known)
        body += f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    return body, keys


def _list_points(series: Series) -> list[tuple[float, float, float, float]]:
    """Return (x, y, low, high) of the points that have a y; low = high = y for points without an interval."""
    rows = zip(series.x, series.y, series.low or series.y, series.high or series.y, strict=True)
    return [(x, y, y if low is None else low, y if high is None else high) for x, y, low, high in rows if y is not None]


def join_charts(charts: Sequence[str]) -> str:
    """Place charts side by side; empty if all are."""
    drawn = "".join(charts)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def choose_ticks(low: float, high: float, count: int = 5, least_step: float = 0.0) -> list[float]:
    """Return about `count` round numbers inside [low, high], spaced by 1, 2 or 5 times a power of ten.

    `least_step` is their least distance; 1 for what is counted.
    """
    raw = max((high - low) / count, least_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
