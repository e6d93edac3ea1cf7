"""Draw line charts as inline SVG, without scripts, fonts or external files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 38
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#be185d")


@dataclass(frozen=True)
class Series:
    """A curve of a chart.

    Attributes:
        label: text in the legend; "" leaves it out.
        x, y: coordinates of the points; points with y = None are left out.
        low, high: intervals around y, or empty.
        dots: draw points with error bars instead of a line with a band.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    dots: bool = False

    def known_points(self) -> list[tuple[float, float, float, float]]:
        """Return (x, y, low, high) of the points that have a y; low = high = y for points without an interval."""
        lows, highs = self.low or self.y, self.high or self.y
        rows = zip(self.x, self.y, lows, highs, strict=True)
        return [
            (x, y, y if low is None else low, y if high is None else high) for x, y, low, high in rows if y is not None
        ]


def draw_line_chart(title: str, series: Sequence[Series], *, x_label: str, percent: bool = False) -> str:
    """Draw a chart as an HTML figure with SVG; empty if no curve has points.

    Args:
        title: text above the chart.
        series: curves; curves without points are left out.
        x_label: text below the x axis.
        percent: whether y is a fraction, drawn from 0 to 100 %.
    """
    drawn = [(item, item.known_points()) for item in series if item.known_points()]
    points = [point for _, known in drawn for point in known]
    if not points:
        return ""
    frame = _Frame.around(points, percent)
    body = [_draw_axes(frame, x_label, percent)]
    for number, (item, known) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        body.append(
            _draw_dots(frame, known, colour)
            if item.dots or len(known) == 1
            else _draw_line(frame, known, colour, bool(item.low))
        )
    legend = "".join(
        f'<span class="key"><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(item.label)}</span>'
        for number, (item, _) in enumerate(drawn)
        if item.label
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure class="chart">{caption}{svg}<div class="legend">{legend}</div></figure>'


@dataclass(frozen=True)
class _Frame:
    """The mapping from data coordinates to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    counts: bool
    """Whether x is counted, so that no tick lies between whole numbers."""

    @staticmethod
    def around(points: Sequence[tuple[float, float, float, float]], percent: bool) -> "_Frame":
        x_low, x_high = min(point[0] for point in points), max(point[0] for point in points)
        y_low, y_high = (0.0, 1.0) if percent else (min(p[2] for p in points), max(p[3] for p in points))
        if x_low == x_high:
            x_low, x_high = x_low - 0.5, x_high + 0.5
        if y_low == y_high:
            y_low, y_high = y_low - 0.5, y_high + 0.5
        margin = 0.0 if percent else 0.05 * (y_high - y_low)
        counts = all(float(point[0]).is_integer() for point in points)
        return _Frame(x_low, x_high, y_low - margin, y_high + margin, counts)

    def x(self, value: float) -> str:
        return f"{_LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT):.1f}"

    def y(self, value: float) -> str:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return f"{HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM):.1f}"


def choose_ticks(low: float, high: float, count: int = 5, least_step: float = 0.0) -> list[float]:
    """Return about `count` round numbers inside [low, high], spaced by 1, 2 or 5 times a power of ten.

    Args:
        low, high: the range.
        count: the wanted number.
        least_step: their least distance; 1 for what is counted.
    """
    raw = max((high - low) / count, least_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _draw_axes(frame: _Frame, x_label: str, percent: bool) -> str:
    parts: list[str] = []
    for value in choose_ticks(frame.y_low, frame.y_high):
        y, text = frame.y(value), f"{value:.0%}" if percent else f"{value:.4g}"
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y}" dy="4" text-anchor="end">{text}</text>')
    for value in choose_ticks(frame.x_low, frame.x_high, least_step=1.0 if frame.counts else 0.0):
        parts.append(
            f'<text x="{frame.x(value)}" y="{HEIGHT - _BOTTOM + 17}" text-anchor="middle">{_format_tick(value)}</text>'
        )
    bottom = HEIGHT - _BOTTOM
    parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" class="axis"/>')
    middle = (_LEFT + WIDTH - _RIGHT) // 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _draw_line(frame: _Frame, points: Sequence[tuple[float, float, float, float]], colour: str, banded: bool) -> str:
    path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y, _, _ in points)
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    if not banded:
        return line
    outline = [f"{frame.x(x)},{frame.y(low)}" for x, _, low, _ in points]
    outline += [f"{frame.x(x)},{frame.y(high)}" for x, _, _, high in reversed(points)]
    return f'<polygon points="{" ".join(outline)}" fill="{colour}" fill-opacity="0.15"/>{line}'


def _draw_dots(frame: _Frame, points: Sequence[tuple[float, float, float, float]], colour: str) -> str:
    bars = "".join(f"M{frame.x(x)},{frame.y(low)}V{frame.y(high)}" for x, _, low, high in points)
    circles = "".join(f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="4" fill="{colour}"/>' for x, y, _, _ in points)
    return f'<path d="{bars}" stroke="{colour}" stroke-width="2"/>{circles}'


def _format_tick(value: float) -> str:
    """Format a number briefly, such as 1500 as 1.5k and 2000000 as 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
