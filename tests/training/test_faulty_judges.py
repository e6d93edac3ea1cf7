"""Whatever becomes of a judge's server, and whenever: the run ends well, says what happened, and makes up no score.

A few cases by default. `--fault-cases 50 --fault-seed 1000` draws others: a case is a seed, which reproduces it alone.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from embodied_rl.judge.reward import run_scoring
from embodied_rl.runs.metrics_file import read_metrics
from tests.support.faulty_server import KINDS, LYING, served
from tests.support.running import SMALL, TABLETOP

pytestmark = pytest.mark.thorough
HONEST = 5 / 9
JUDGED = ("reward=vlm", "reward.timeout=0.3", "reward.deadline=0.5", "reward.wait_share=null", "reward.in_flight=4")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first: int = metafunc.config.getoption("--fault-seed")
    metafunc.parametrize("seed", range(first, first + metafunc.config.getoption("--fault-cases")))


@pytest.fixture
def patient_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server, which is in order then, take long before the run starts: the machine may be busy."""
    ask = run_scoring._ask_scorer
    monkeypatch.setattr(run_scoring, "_ask_scorer", lambda scorer, question, _: ask(scorer, question, 60.0))


@pytest.mark.usefixtures("patient_start")
def test_a_judge_that_fails_costs_neither_the_run_nor_the_truth(
    seed: int, typed: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(seed)
    kind, first = KINDS[seed % len(KINDS)], random.randrange(1, 60)
    count = random.choice([None, 1, 5, 30])
    mode = random.choice(["late", "distill", "sync", "audit"])
    with served(kind, random, first, count) as server:
        words = (f"reward.url={server.url}", f"reward.mode={mode}", "plan.ranks=1", "train.iterations=3")
        code, out, err = typed("train", *SMALL, *TABLETOP, *JUDGED, *words)
    said = out + err + caplog.text
    assert code == 0 and "Traceback" not in said, said
    (run,) = (tmp_path / "runs" / "train").iterdir()
    rows = read_metrics(run / "metrics.jsonl")
    reasons = check_scores(run, lying=kind == LYING)
    print(f"case {seed}: {kind} from request {first}, {count or 'all'} of them, {mode}: {dict(reasons)}")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert all(math.isfinite(value) for row in rows for value in row.values() if not isinstance(value, str))
    if server.wrong and kind != LYING:
        assert sum(reasons.values()) > reasons["ok"] or "retr" in said or count == 1, "what failed is in the log"
    if reasons["unavailable"]:
        assert "The scorer is down" in said
    if sum(reasons.values()) > reasons["ok"]:
        assert min(row.get("reward/valid", 0.0) for row in rows) < 1.0


def check_scores(run: Path, lying: bool) -> Counter[str]:
    """Each line of the log is what the server said, or no score with its reason; return how often which reason."""
    reasons: Counter[str] = Counter()
    for line in (run / "scores" / "0.jsonl").read_text().splitlines():
        noted = json.loads(line)
        if "scorer" in noted:
            continue
        reasons[noted["reason"]] += 1
        if noted["reason"] == "ok":
            assert any(abs(noted["value"] - each) < 1e-6 for each in ((HONEST, 1.0) if lying else (HONEST,))), noted
        else:
            assert noted["value"] is None or math.isnan(noted["value"]), noted
    return reasons
