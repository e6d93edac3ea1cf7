"""The section of a run's report about its scorer: outages, guard, head and cost."""

from collections.abc import Mapping
from typing import Any

import pytest

from embodied_rl.reports.scorer_section import (
    describe_cost,
    describe_guard,
    describe_head,
    describe_outages,
    make_reward_section,
)
from embodied_rl.runs.metrics_file import Value

GOOD = {"reward/asked": 100.0, "reward/valid": 0.98, "reward/down": 0.0, "reward/critic_return": 0.6,
        "rollout/success": 0.5, "reward/held": 0.02}  # fmt: skip
GONE = GOOD | {"reward/valid": 0.0, "reward/down": 1.0, "reward/trouble": "nobody answers at http://here <b>"}
PART = GONE | {"reward/valid": 0.4}


def number(*rows: Mapping[str, Value]) -> list[dict[str, Value]]:
    return [{"iteration": place, **row} for place, row in enumerate(rows, 1)]


def test_each_stretch_without_scores_is_named_with_its_cause() -> None:
    rows = number(GOOD, GONE, GONE, PART, GOOD, GOOD | {"reward/valid": 0.0})
    assert list(describe_outages(rows, terminal=False)) == [
        "iterations 2-3 trained on the simulator's reward only: nobody answers at http://here <b>",
        "iteration 4 trained with only a part of the scores: nobody answers at http://here <b>",
        "iteration 6 trained on the simulator's reward only: no score came in time",
    ]
    assert next(describe_outages(number(GONE), terminal=True)).startswith("iteration 1 trained without any reward")
    assert not list(describe_outages(number(GOOD, {"rollout/success": 0.5}), terminal=False))


@pytest.mark.parametrize("terminal, did", [(True, "it warned"), (False, "faded out")])
def test_the_guard_is_reported_once(terminal: bool, did: str) -> None:
    fired = GOOD | {"reward/guard": 1.0}
    (said,) = describe_guard(number(GOOD, fired, fired), terminal)
    assert said.startswith("iteration 2:") and did in said and "0.60 and 50.0%" in said


def test_the_section_draws_opinion_beside_truth_and_marks_the_run() -> None:
    section = make_reward_section(number(GOOD, GOOD | {"reward/mismatch_gap": 0.4}, GONE), terminal=False)
    for title in ("Scorer and truth", "Scores in time", "under another task"):
        assert title in section, title
    assert "true success" in section and "Judgements of done" not in section and "Weight of" not in section
    assert "iteration 3 trained on" in section and "&lt;b&gt;" in section and "Head and judge" not in section
    assert make_reward_section(number({"rollout/success": 0.5}), terminal=False) == ""
    page = make_reward_section(rows(0.0, 1.0, **AGREED, **{"reward/cost": 0.5}), terminal=False)
    assert "Head and judge" in page and "The judge cost 0.5" in page and "The head, not the judge" in page


# -- head and cost

HEAD = {"reward/asked": 50.0, "reward/labels": 40.0, "reward/down": 0.0, "reward/valid": 1.0,
        "reward/head_version": 1, "reward/head_labels": 36}  # fmt: skip
AGREED = {"reward/head_agreement": 0.8, "reward/head_agreement_low": 0.7, "reward/head_agreement_high": 0.9}


def rows(*shares: float, **last: Any) -> list[dict[str, Value]]:
    made: list[dict[str, Value]] = [
        {"iteration": n, "total/decisions": 100 * n, "reward/head_share": share, **HEAD}
        for n, share in enumerate(shares, 1)
    ]
    made[-1] |= last
    return made


def test_the_shares_of_head_and_judge_are_told() -> None:
    first, second = describe_head(rows(0.0, 1.0, 0.8, **AGREED))
    assert "scored 60.0% of the decisions" in first and "about 120 observations, for 300 decisions" in first
    assert "in no reward" in first
    assert (
        "learned 1 times, at last from 36 labels" in second and "In iteration 3 it put 80 [70, 90] % of pairs" in second
    )


def test_an_agreement_that_is_not_known_is_not_told() -> None:
    assert "not known" in describe_head(rows(0.0, 1.0))[1]
    assert "put 80 % of pairs" in describe_head(rows(0.0, 1.0, **{"reward/head_agreement": 0.8}))[1]
    assert not describe_head([{"iteration": 1, "reward/asked": 3.0}])


@pytest.mark.parametrize(
    "cost, says", [(1.25, "The judge cost 1.25: 300 tokens read and 2 written."), ("unknown", "is unknown: 1 answers")]
)
def test_a_cost_is_told_or_unknown(cost: Any, says: str) -> None:
    tokens = {"reward/tokens_read": 300, "reward/tokens_written": 2, "reward/tokens_uncounted": int(cost == "unknown")}
    assert says in describe_cost(rows(0.0, **{"reward/cost": cost}, **tokens))[0]
    assert not describe_cost(rows(0.0))


def test_a_head_goes_on_scoring_while_its_judge_is_down() -> None:
    down = {"reward/down": 1.0, "reward/valid": 0.0, "reward/trouble": "nobody answers"}
    assert list(describe_outages(rows(0.0, 1.0, 1.0, **down), terminal=False)) == [
        "iteration 1 trained on the simulator's reward only: the head had learned nothing yet",
        "iteration 3 trained with a head that got only a part of the labels: nobody answers",
    ]
    quiet = [{name: x for name, x in row.items() if name != "reward/valid"} for row in rows(1.0)]
    assert not list(describe_outages(quiet, terminal=False))
