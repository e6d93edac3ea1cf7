"""What a judge costs in a whole run: in metrics, terminal and report; and a budget that ends the asking."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from embodied_rl.runs.metrics_file import read_metrics
from tests.support.faulty_server import COUNTING, TOKENS, served
from tests.support.running import SMALL, TABLETOP

pytestmark = pytest.mark.thorough

JUDGED = ("reward=vlm", "reward.deadline=20", "reward.wait_share=null", "reward.probes.mismatch=0", "plan.ranks=1")
PRICED = ("reward.price_per_1k_tokens=2", "reward.price_per_1k_written=10", "train.iterations=3")
PRICE = (TOKENS[0] * 2 + TOKENS[1] * 10) / 1000


@pytest.fixture
def judged(typed: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[int, str, Path | None]]:
    def run(count: int | None, *words: str) -> tuple[int, str, Path | None]:
        with served(COUNTING, Random(0), 0, count) as server:
            code, out, err = typed("train", *SMALL, *TABLETOP, *JUDGED, f"reward.url={server.url}", *words)
        return code, out + err, next((tmp_path / "runs").glob("*/*"), None)

    return run


@pytest.mark.parametrize("mode", ["late", "distill"])
def test_a_run_reports_the_cost_of_its_scorer(mode: str, judged: Callable[..., Any]) -> None:
    """The same picture under the same words is asked about once."""
    code, said, run = judged(None, *PRICED, f"reward.mode={mode}")
    assert code == 0, said
    rows = read_metrics(run / "metrics.jsonl")
    questions = [row["reward/tokens_read"] / TOKENS[0] for row in rows]
    assert 0 < questions[0] < questions[-1] <= sum(row["reward/asked"] for row in rows)
    for row, count in zip(rows, questions, strict=True):
        assert row["reward/cost"] == pytest.approx(count * PRICE) and not row["reward/tokens_uncounted"]
    assert f"scorer healthy, cost {rows[-1]['reward/cost']:.4g}" in said
    assert f"The judge cost {rows[-1]['reward/cost']:.4g}" in (run / "report.html").read_text()


def test_a_server_that_stops_counting_has_an_unknown_cost(judged: Callable[..., Any]) -> None:
    code, said, run = judged(20, *PRICED)
    assert code == 0, said
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert last["reward/cost"] == "unknown" and last["reward/tokens_uncounted"] > 0 < last["reward/tokens_read"]
    assert "cost unknown" in said and "What the judge cost is unknown" in (run / "report.html").read_text()


def test_a_budget_of_money_ends_the_asking(judged: Callable[..., Any]) -> None:
    code, said, run = judged(None, *PRICED, f"reward.budget_money={20.5 * PRICE}")
    assert code == 0, said
    rows = read_metrics(run / "metrics.jsonl")
    assert rows[-1]["reward/cost"] == pytest.approx(20 * PRICE)
    assert rows[-1]["reward/down"] == 1.0 and "budget_money" in rows[-1]["reward/trouble"]
    assert "reward.budget_money" in said


@pytest.mark.parametrize(
    "count, words, says",
    [
        (0, (*PRICED, "reward.budget_money=1"), "reward.budget_money=1: the server does not count tokens"),
        (None, ("reward.budget_money=1",), "reward.budget_money needs reward.price_per_1k_tokens"),
        (None, ("reward.price_per_1k_tokens=-1",), "reward.price_per_1k_tokens"),
    ],
)
def test_a_cost_that_cannot_be_counted_is_refused(
    count: Any, words: Any, says: str, judged: Callable[..., Any]
) -> None:
    code, said, run = judged(count, *words)
    assert code != 0 and re.search(says, said.replace("\n", " ")), said
    assert run is None and "Traceback" not in said


def test_a_scorer_without_tokens_has_no_price(typed: Callable[..., Any], tmp_path: Path) -> None:
    code, out, err = typed("train", *SMALL, *TABLETOP, "reward=oracle", "sim.progress=true", PRICED[0], "plan.ranks=1")
    assert code != 0 and "reward.price_per_1k_tokens: reward=scripted is paid by no tokens" in out + err
    assert not (tmp_path / "runs").exists()
