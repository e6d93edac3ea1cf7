"""Relations are decided by Welch's interval and a margin, and only if they were written down before one side ran."""

import json
import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.special import stdtrit

from embodied_rl.reports.figures import redraw
from embodied_rl.reports.relations import Relation, decide, find_later_sides, make_relations_table
from embodied_rl.reports.report import Rate
from embodied_rl.reports.statistics import find_difference
from tests.support.refusals import refuses

BEFORE, NOON, LATER = (f"2026-01-01T{hour}:00:00+00:00" for hour in ("09", "12", "15"))


def make_relation(expected: Any = "greater", margin: float = 2.0) -> Relation:
    return Relation("a is above b", "somebody", "a", "b", expected, margin, NOON)


def make_runs(*success: int, started: str = LATER, episodes: str = "same") -> Any:
    """Tracked runs, as far as relations read them: success after training, of a hundred episodes."""
    return [
        SimpleNamespace(
            after=SimpleNamespace(rate=lambda each=each: Rate.from_count(each, 100), episodes_sha256=episodes),
            provenance={"started": started},
        )
        for each in success
    ]


def test_the_interval_is_welchs():
    first, second = [80.0, 83.0, 86.0], [70.0, 70.0, 76.0]  # variances 9 and 12
    terms = 9 / 3, 12 / 3
    freedom = sum(terms) ** 2 / (terms[0] ** 2 / 2 + terms[1] ** 2 / 2)
    half = stdtrit(freedom, 0.975) * math.sqrt(sum(terms))
    assert find_difference(first, second) == pytest.approx((11.0, 11.0 - half, 11.0 + half))
    difference, low, high = find_difference(second, first)
    assert (difference, low, high) == pytest.approx((-11.0, -11.0 - half, -11.0 + half))
    assert find_difference([70.0] * 3, [60.0] * 3) == (10.0, 10.0, 10.0)
    half = 4.302652729911275 * 3**-0.5  # of one side's mean alone
    with warnings.catch_warnings(action="error"):
        assert find_difference([70.0] * 3, [61.0, 60.0, 59.0]) == pytest.approx((10.0, 10.0 - half, 10.0 + half))


@pytest.mark.parametrize(
    ("expected", "low", "high", "verdict"),
    [
        ("greater", 2.1, 9, "reproduced"), ("greater", 1.9, 9, "undecided"), ("greater", -9, 1.9, "refuted"),
        ("greater", -9, 2.1, "undecided"),
        ("equal", -1.9, 1.9, "reproduced"), ("equal", -2.1, 1, "undecided"), ("equal", -1, 2.1, "undecided"),
        ("equal", 2.1, 9, "refuted"), ("equal", -9, -2.1, "refuted"), ("equal", 1.9, 9, "undecided"),
    ],
)  # fmt: skip
def test_a_relation_is_decided_by_where_the_interval_lies(expected, low, high, verdict):
    assert decide(make_relation(expected), low, high) == verdict


def test_a_relation_must_be_older_than_the_runs_of_one_side():
    old, new = make_runs(50, 50, 50, started=BEFORE), make_runs(50, 50, 50)
    assert find_later_sides("r", make_relation(), old, new) == "second"
    assert find_later_sides("r", make_relation(), new, old) == "first"
    assert find_later_sides("r", make_relation(), new, new) == "both"
    mixed = [*new, *make_runs(50, started=BEFORE)]
    unknown = make_runs(50, started="some day")
    for first, second in ((old, old), (mixed, old), (unknown, old)):
        with refuses("relation-registered-late"):
            find_later_sides("r", make_relation(), first, second)


def test_the_table_leaves_open_what_has_too_few_seeds():
    relations = {"r": make_relation()}
    *_, row = make_relations_table({"a": make_runs(80, 83, 86), "b": make_runs(70, 70, 76)}, relations).splitlines()
    assert "| `a`: 80.0, 83.0, 86.0 | `b`: 70.0, 70.0, 76.0 | both | > 2 | +11.0 [+3.6, +18.4] | reproduced |" in row
    *_, row = make_relations_table({"a": make_runs(80, 83, 86), "b": make_runs(70, 71)}, relations).splitlines()
    assert row.endswith("| `b`: 70.0, 71.0 |  | > 2 |  | open |")
    *_, row = make_relations_table({"a": [], "b": []}, {"r": make_relation("equal")}).splitlines()
    assert row.endswith("| `a`: not run | `b`: not run |  | within ± 2 |  | open |")
    other = make_runs(70, 70, 76, episodes="other")
    with refuses("tracked-runs-unequal", "other episodes"):
        make_relations_table({"a": make_runs(80, 83, 86), "b": other}, relations)


def test_the_table_is_drawn_with_the_figures(tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    page.write_text("<!-- table: relations -->\n<!-- end of table -->\n")
    (results / "figures.yaml").write_text("{}\n")
    listed = {"page": "page.md", "relations": {"r": vars(make_relation())}}
    (results / "relations.yaml").write_text(json.dumps(listed))
    assert "| a is above b | somebody | `a`: not run |" in redraw(results)[page]
    changes = [
        ("name-invalid", {"first": "../b"}), ("value-unknown", {"expected": "less"}),
        ("relation-damaged", {"registered": "2026-01-01T12:00:00"}), ("relation-damaged", {"first": "b"}),
        ("relation-damaged", {"margin": -1.0}),
    ]  # fmt: skip
    for code, change in changes:
        listed["relations"]["r"] = vars(make_relation()) | change
        (results / "relations.yaml").write_text(json.dumps(listed))
        with refuses(code):
            redraw(results)
