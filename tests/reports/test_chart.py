"""Points of a chart land where they should."""

import re
from itertools import pairwise

import pytest

from embodied_rl.reports.chart import HEIGHT, WIDTH, Series, choose_ticks, draw_chart_file, draw_line_chart


def points(svg, element="polyline"):
    text = re.search(rf'<{element} points="([^"]*)"', svg).group(1)
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


def test_a_line_is_a_linear_map_of_its_points():
    (x0, y0), (x1, y1), (x2, y2) = points(
        draw_line_chart("t", [Series("", [0, 1, 4], [0.0, 0.25, 1.0])], x_label="", percent=True)
    )
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=1e-3)
    assert (y0 - y1) / (y0 - y2) == pytest.approx(0.25, abs=1e-3) and y2 < y0, "up is small in SVG"
    assert 0 < x0 < x2 < WIDTH and 0 < y2 < y0 < HEIGHT


def heights(y, *, percent):
    """Pixels from the first point up to the others, by the largest of them."""
    (_, start), *others = points(draw_line_chart("t", [Series("", range(len(y)), y)], x_label="", percent=percent))
    return [start - height for _, height in others]


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.6), (0.0, 1.0)])
def test_percent_is_drawn_from_0_to_100_whatever_the_values(low, high):
    whole = heights([0.0, 1.0], percent=True)[0]
    assert heights([low, high], percent=True)[0] == pytest.approx((high - low) * whole, abs=0.11)


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.6), (200.0, 300.0), (-7.0, -6.0)])
def test_other_values_fill_the_chart_but_a_margin_of_5_percent(low, high):
    """Their range is 1 / 1.1 of what is drawn; 0 to 100 % is all of it."""
    whole = heights([0.0, 1.0], percent=True)[0]
    assert heights([low, high], percent=False)[0] == pytest.approx(whole / 1.1, abs=0.11)


def test_a_band_encloses_its_line():
    svg = draw_line_chart("t", [Series("", [0, 1], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7])], x_label="", percent=True)
    line, band = points(svg), points(svg, "polygon")
    assert band[0][1] > line[0][1] > band[3][1] and band[1][1] > line[1][1] > band[2][1]


def test_text_is_escaped_and_a_constant_is_drawn():
    svg = draw_line_chart("<t>", [Series("<a>", [0, 1], [2.0, 2.0])], x_label="<x>")
    assert draw_line_chart("t", [Series("", [0, 1], [None, None])], x_label="") == ""
    assert len(points(draw_line_chart("t", [Series("", [0, 1, 2], [1.0, None, 3.0])], x_label=""))) == 2
    assert "<t>" not in svg and "<a>" not in svg and "<x>" not in svg and len(points(svg)) == 2


@pytest.mark.parametrize("labels", ["abcd", ["three seeds, one core each", "one seed"] * 2, ["m" * 50, "w" * 9, "x"]])
def test_keys_of_a_file_do_not_overlap(labels):
    """A label takes at least 6 pixels a letter beside its square of 15; all stand inside of the drawing."""
    svg = draw_chart_file("t", [Series(label, [0, 1], [0.1, 0.2]) for label in labels], x_label="x", percent=True)
    found = re.findall(r'<rect x="(\d+)"[^>]*/><text x="\d+" y="(\d+)">([^<]*)<', svg)
    keys = [(int(x), int(y), 15 + 6 * len(label)) for x, y, label in found]
    assert len(keys) == len(labels)
    top, height = map(int, re.search(r'viewBox="0 (-\d+) \d+ (\d+)"', svg).groups())
    assert all(y < top + height for _, y, _ in keys)
    assert all(x + wide <= other for (x, y, wide), (other, below, _) in pairwise(keys) if y == below)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 100), (-3e-4, 7e-4), (0.99, 1.01), (12, 3456789)])
def test_ticks_are_round_and_inside(low, high):
    found = choose_ticks(low, high)
    steps = [b - a for a, b in pairwise(found)]
    assert 3 <= len(found) <= 8 and low - 1e-9 <= found[0] and found[-1] <= high + 1e-9
    assert all(step == pytest.approx(steps[0]) for step in steps)
    assert float(f"{steps[0]:.0e}") == pytest.approx(steps[0]) and f"{steps[0]:.0e}"[0] in "125"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 3, [-2, 0, 2]), (0, 100, [0, 20, 40, 60, 80, 100]), (1, 9, [2, 4, 6, 8])],
)
def test_ticks_by_hand(low, high, expected):
    assert choose_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("last", [1, 3, 7, 8, 40])
def test_what_is_counted_has_whole_ticks(last):
    svg = draw_line_chart("t", [Series("", range(last + 1), [0.5] * (last + 1))], x_label="iteration", percent=True)
    ticks = re.findall(r'text-anchor="middle">([^<]*)</text>', svg)[:-1]
    assert ticks and all(re.fullmatch(r"\d+", tick) for tick in ticks), ticks


def test_a_curve_keeps_its_colour_where_others_have_no_points():
    """So that a run has one colour in all charts of a page."""
    both = [Series("a", [0, 1], [0.1, 0.2]), Series("b", [0, 1], [0.3, 0.4])]
    alone = [Series("a", [0, 1], [None, None]), both[1]]
    colours = [re.findall(r'stroke="(#[0-9a-f]+)"', draw_line_chart("t", each, x_label="")) for each in (both, alone)]
    assert colours[1] == [colours[0][1]] and colours[0][0] != colours[0][1]
