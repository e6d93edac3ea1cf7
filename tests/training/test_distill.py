"""A head in whole runs: the same bits under every plan and after a stop, and what is refused before anything starts."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.runs.metrics_file import read_metrics
from tests.support.running import SMALL, TABLETOP, assert_learned_alike, complete
from tests.support.stopping import assert_stopped_goes_on_alike

pytestmark = pytest.mark.thorough
ORACLE = ("reward=oracle", "sim.progress=true")
LEARNING = ("reward.distill.steps=4", "reward.distill.batch=32", "reward.distill.held_out=0.3")
DISTILL = (*ORACLE, "reward.mode=distill", *LEARNING)
HEADS = ("hash", "classifier", "ranking")
APART = ("plan=split", "plan.ranks=2", "plan.rollout_workers=2", "plan.workers=1", "mode=async", "staleness=0")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return complete(tmp_path_factory.mktemp("two ranks"), "train", *SMALL, *TABLETOP, *DISTILL)


def check_head(run: Path) -> list[dict[str, Any]]:
    """Everything but the first iteration was scored by the head, and nothing by the judge."""
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["reward/head_share"] for row in rows] == [0.0] + [1.0] * (len(rows) - 1)
    assert [row["reward/head_version"] for row in rows] == list(range(1, len(rows) + 1))
    return rows


@pytest.mark.process
def test_two_ranks_have_one_head(two_ranks: Path) -> None:
    rows = check_head(two_ranks)
    assert rows[-1]["reward/head_labels"] > 0.4 * sum(row["reward/asked"] for row in rows)
    assert all(row["reward/labels"] == row["reward/asked"] for row in rows)


@pytest.mark.process
@pytest.mark.parametrize(
    "cluster", [(), pytest.param(("runtime=ray", "cluster=local"), marks=pytest.mark.slow)], ids=["local", "ray"]
)
def test_workers_elsewhere_change_no_bit(cluster: tuple[str, ...], two_ranks: Path, tmp_path: Path) -> None:
    if cluster:
        pytest.importorskip("ray")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if cluster else {}
    run = complete(tmp_path, "train", *SMALL, *TABLETOP, *DISTILL, *APART, *cluster, **token)
    check_head(run)
    assert_learned_alike(run, two_ranks)


@pytest.mark.process
def test_segments_are_settled_one_after_the_other(tmp_path: Path) -> None:
    """Learning while others collect; the head learns between two segments."""
    words = ("plan=colocated", "plan.ranks=1", "plan.rollout_workers=1", "mode=stream", "segments=3")
    rows = read_metrics(complete(tmp_path, "train", *SMALL, *TABLETOP, *DISTILL, *words) / "metrics.jsonl")
    assert [row["reward/head_version"] for row in rows] == [3.0 * (place + 1) for place in range(len(rows))]
    assert rows[0]["reward/head_share"] == pytest.approx(2 / 3) and rows[1]["reward/head_share"] == 1.0


@pytest.mark.parametrize("head", HEADS)
def test_a_stopped_run_continues_with_the_head_it_had(
    head: str, typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments, labels, potentials in mid-episode: to the bit."""
    settings = (*SMALL, *TABLETOP, *DISTILL, f"reward.head={head}", "plan.ranks=1")
    straight = assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch)
    rows = read_metrics(straight / "metrics.jsonl")
    assert rows[-1]["reward/head_version"] == len(rows)
    if head != "hash":
        check_head(straight)
        assert "reward/head_agreement" in rows[-1]


@pytest.mark.parametrize(
    "words, says",
    [
        ((*ORACLE, "reward.head=hash"), "reward.head=hash has an effect only with reward.mode=distill"),
        ((*DISTILL, "reward.head=forest"), "reward.head.*forest"),
        ((*DISTILL, "algo=grpo", "algo.group_size=4"), "reward.mode=distill.*cancels|cancels.*reward.mode=distill"),
        (
            (
                "reward=vlm",
                "reward.url=http://127.0.0.1:9/v1",
                "reward.model=judge",
                "reward.prompt=pair_delta",
                "reward.mode=distill",
            ),
            "single observations; reward.name=vlm answers only: pair",
        ),
        (("reward.mode=distill",), "reward.mode=distill needs a scorer"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    words: tuple[str, ...], says: str, typed: Callable[..., Any], tmp_path: Path
) -> None:
    settings = [word for word in SMALL if "critic" not in word or "grpo" not in str(words)]
    code, out, err = typed("train", *settings, *TABLETOP, *words)
    assert code != 0 and re.search(says, (out + err).replace("\n", " ")), out + err
    assert "Traceback" not in err
    assert not list((tmp_path / "runs").rglob("config.yaml")) if (tmp_path / "runs").exists() else True
