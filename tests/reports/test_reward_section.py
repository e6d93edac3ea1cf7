"""What a report says of a run's scorer: its opinion beside the truth, and each time it was not there."""

from collections.abc import Mapping

import pytest

from embodied_rl.reports.scorer_section import describe_guard, describe_outages, make_reward_section
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


def test_a_healthy_run_and_one_without_a_scorer_have_no_outage() -> None:
    assert not list(describe_outages(number(GOOD, GOOD), terminal=False))
    assert not list(describe_outages(number({"rollout/success": 0.5}), terminal=False))
    assert make_reward_section(number({"rollout/success": 0.5}), terminal=False) == ""


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
    assert "iteration 3 trained on" in section and "&lt;b&gt;" in section
