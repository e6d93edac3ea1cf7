"""Scorers in whole runs: what is refused before anything starts, and the same rewards under every plan."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from embodied_rl.config import plugins
from embodied_rl.judge.reward import reward_hacking
from embodied_rl.runs.metrics_file import read_metrics
from tests.support.running import POLICY, SMALL, TABLETOP, assert_learned_alike, with_plan
from tests.support.stopping import assert_stopped_goes_on_alike

pytestmark = pytest.mark.thorough

ORACLE = ("reward=oracle", "sim.progress=true")
NOISY = "reward.done_error=0.2"
TERMINAL = (*ORACLE, "reward.mode=terminal", "sim.terminate_on_success=false")

MODULE = '''
"""A scorer of another distribution."""

from dataclasses import dataclass

from embodied_rl.interfaces.scorer import Score, Scorer, ScorerTraits

SCORERS = {"outside": "outside_scorer:Liking"}


@dataclass(frozen=True)
class LikingConfig:
    """Settings."""

    value: float = 0.5
    """what it says of everything."""


class Liking(Scorer):
    """Says the same of everything."""

    Config = LikingConfig

    def __init__(self, config, spec):
        self.config, self.traits = config, ScorerTraits(("absolute",), f"liking {config.value}")

    async def score(self, requests):
        return [Score(self.config.value) for _ in requests]
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The distribution, installed."""
    site = tmp_path / "site"
    info = site / "outside_scorer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-scorer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[embodied_rl.scorers]\noutside = outside_scorer:SCORERS\n[embodied_rl.configs]\noutside = outside_scores\n"
    )
    (site / "outside_scorer.py").write_text(MODULE)
    (site / "outside_scores" / "reward").mkdir(parents=True)
    (site / "outside_scores" / "__init__.py").touch()
    (site / "outside_scores" / "reward" / "outside.yaml").write_text("name: outside\nwait_share: null\n")
    monkeypatch.syspath_prepend(str(site))
    plugins.list_plugins.cache_clear()
    yield
    plugins.list_plugins.cache_clear()


def read_logged(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for file in sorted((run / "scores").iterdir()) for line in file.read_text().splitlines()]
    return [line for line in found if "scorer" not in line]


def test_a_scorer_of_another_distribution_is_asked(outside: None, typed: Callable[..., Any], tmp_path: Path) -> None:
    assert "outside" in typed("list", "rewards")[1]
    code, out, err = typed(
        "train", *SMALL, *TABLETOP, "train.iterations=1", "plan.ranks=1", "reward=outside", "reward.value=0.25"
    )
    assert code == 0, out + err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    (row,) = read_metrics(run / "metrics.jsonl")
    assert row["reward/progress"] == 0.25 and row["reward/valid"] == 1.0 and row["reward/held"] == 0.0
    assert {line["value"] for line in read_logged(run)} == {0.25}


@pytest.mark.parametrize(
    "words, says",
    [
        (("reward=oracle",), "reward.judge=oracle.*sim.progress=true"),
        (("reward=oracl",), "oracle"),
        (("reward=oracle", "sim.progress=true", "algo=grpo", "algo.group_size=4"), "cancels.*reward.mode=audit"),
        (("reward.judge=oracle",), "reward.judge has no meaning without a scorer"),
        ((*ORACLE, "reward.jugde=noisy"), "reward.judge"),
        ((*ORACLE, "reward.mode=lat"), "reward.mode.*late"),
        (
            (*ORACLE, "reward.mode=terminal"),
            "ends an episode when its own goal is reached.*sim.terminate_on_success=false",
        ),
        ((*ORACLE, "reward.done_in_a_row=2"), "reward.done_in_a_row=2 has an effect only with reward.mode=terminal"),
        (("reward=replay",), "reward.log is missing"),
        (("reward=vlm",), "reward.file.*looks at camera 'front' of .64, 64. pixels"),
        (("reward=vlm", "reward.url=http://127.0.0.1:9/v1"), "reward.url=http://127.0.0.1:9/v1.*cannot be reached"),
        (("reward=vlm", "reward.url=http://127.0.0.1:9/v1", "reward.prompt=nope"), "reward.prompt.*nope"),
        (("reward=replay", "reward.log=/nowhere"), "/nowhere holds no scores"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    words: tuple[str, ...], says: str, typed: Callable[..., Any], tmp_path: Path
) -> None:
    import re

    settings = [word for word in SMALL if "critic" not in word or "grpo" not in str(words)]
    code, out, err = typed("train", *settings, *TABLETOP, *words)
    assert code != 0 and re.search(says, (out + err).replace("\n", " ")), out + err
    assert "Traceback" not in err
    assert not list((tmp_path / "runs").rglob("config.yaml")) if (tmp_path / "runs").exists() else True


@pytest.mark.parametrize("mode", [("reward.mode=audit",), (*TERMINAL[2:], NOISY)])
def test_groups_may_be_audited_and_judged(mode: tuple[str, ...], typed: Callable[..., Any], tmp_path: Path) -> None:
    """Returns that are compared within groups learn nothing from shaping, but from who says that a task is done."""
    code, out, err = typed(
        "train", *POLICY, *TABLETOP, *ORACLE, "algo=grpo", "algo.group_size=4", "algo.minibatch=16", "sim.num_envs=8",
        "plan.ranks=1", "train.iterations=1", "train.eval_every=0", "train.eval_episodes=2", "train.final_episodes=2",
        *mode, "logger=json",
    )  # fmt: skip
    assert code == 0, out + err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    assert read_metrics(run / "metrics.jsonl")[0]["reward/asked"] > 0


def train(root: Path, *words: str) -> Path:
    """A run of one rank in this process; returns its folder."""
    assert main(with_plan(["train", *SMALL, *TABLETOP, "plan.ranks=1", f"run.root={root}", *words])) == 0
    (run,) = (root / "train").iterdir()
    return run


@pytest.mark.process
@pytest.mark.parametrize("words, other", [(ORACLE, "reward.mode=sync"), ((*TERMINAL, NOISY), "reward.in_flight=1")])
def test_ranks_and_workers_collect_the_same_rewards(
    words: tuple[str, ...], other: str, typed: Callable[..., Any], tmp_path: Path
) -> None:
    """In a rank or in a rollout worker, waited for otherwise, or repeated from the log: the same bits."""
    rank = train(tmp_path / "rank", *words)
    replay = [word for word in words if word not in ("reward=oracle", NOISY)]
    others = {
        "worker": train(tmp_path / "worker", *words, "plan.rollout_workers=1"),
        "other": train(tmp_path / "other", *words, other),
        "repeated": train(tmp_path / "repeated", *replay, "reward=replay", f"reward.log={rank}"),
    }
    for name, run in others.items():
        assert_learned_alike(run, rank)
        rows = read_metrics(run / "metrics.jsonl")
        assert all(row["reward/valid"] == 1.0 and row.get("reward/held", 0.0) == 0.0 for row in rows), name
    if "reward.mode=terminal" in words:
        assert any(row["reward/said_done"] for row in rows), "the test needs tasks that are said to be done"


def test_shaping_changes_learning_but_not_metrics(typed: Callable[..., Any], tmp_path: Path) -> None:
    sparse, shaped = train(tmp_path / "sparse"), train(tmp_path / "shaped", *ORACLE)
    before, after = (read_metrics(run / "metrics.jsonl") for run in (sparse, shaped))
    assert before[0]["total/control_steps"] == after[0]["total/control_steps"]
    assert (sparse / "policy.safetensors").read_bytes() != (shaped / "policy.safetensors").read_bytes()
    assert "reward/asked" not in before[0] and not (sparse / "scores").exists()


@pytest.mark.parametrize("words", [ORACLE, (*TERMINAL, NOISY)])
def test_a_stopped_run_continues_with_the_potentials_it_had(
    words: tuple[str, ...], typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of episodes, whose first frames, last potentials and judgements of done it still needs."""
    settings = (*SMALL, *TABLETOP, *words, "plan.ranks=1")
    assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch)


def test_a_run_with_only_a_scorer_is_marked(typed: Callable[..., Any], tmp_path: Path) -> None:
    """With a budget that is spent in the first iterations."""
    code, out, err = typed(
        "train", *SMALL, *TABLETOP, *TERMINAL, "train.iterations=3", "plan.ranks=1", "reward.budget=40"
    )
    assert code == 0, out + err
    assert out.count("This changes what is optimal") == 1 and out.count("budget of 40 requests is spent") >= 1
    (run,) = (tmp_path / "runs" / "train").iterdir()
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["reward/down"] for row in rows] == [0.0, 1.0, 1.0]
    assert "reward/trouble" not in rows[0] and "reward.budget" in str(rows[1]["reward/trouble"])
    assert 'class="strip"' in (run / "report.html").read_text(), "frames with what it said"
    for text in (out, (run / "report.html").read_text()):
        assert "iteration 3 trained without any reward: its budget of 40" in text


def test_the_guard_of_a_run_that_was_stopped_goes_on(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of its fading, to the bit."""
    monkeypatch.setattr(reward_hacking, "find_hacking", lambda *figures: "a test")
    settings = (*SMALL, *TABLETOP, *ORACLE, "plan.ranks=1")
    straight = assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch)
    weights = [row["reward/weight"] for row in read_metrics(straight / "metrics.jsonl")]
    assert weights == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
