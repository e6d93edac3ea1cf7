"""The exact policy gradient through the real queue, service, writer and ledger, with scorers of every speed."""

import zlib
from dataclasses import replace
from itertools import count
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest

from embodied_rl.judge.reward.scoring_writer import ScoringWriter
from embodied_rl.rollout.buffer import Rollout
from tests.support.enumeration import Path, gradient
from tests.support.row_clock import (
    HORIZON,
    NODE,
    START,
    Call,
    RowClockScorer,
    Speed,
    collect,
    fail_sometimes,
    give_change,
    give_opinion,
    make_environments,
    open_writer,
    read_shaping,
    read_state,
)

pytestmark = pytest.mark.thorough


def every(rows: float) -> Speed:
    """One answer after the other, each takes so many rows."""

    def due(scorer: RowClockScorer, call: Call) -> float:
        scorer.free = max(scorer.free, call.begun) + rows
        return scorer.free

    return due


def after(rows: float) -> Speed:
    """Each answer takes so many rows, however many are asked for."""
    return lambda scorer, call: call.begun + rows


def at_random(seed: int) -> Speed:
    def due(scorer: RowClockScorer, call: Call) -> float:
        drawn = zlib.crc32(f"{seed} {call.request.episode} {call.request.decision} {read_state(call.request)}".encode())
        return call.begun + drawn % 64 / 10

    return due


def by_what_follows(scorer: RowClockScorer, call: Call) -> float:
    """A request about an even state hurries the ones before it, about an odd state it delays them."""
    for other in scorer.running:
        other.due = scorer.now if read_state(call.request) % 2 == 0 else other.due + 1
    return call.begun + 2.5


def newest_first(scorer: RowClockScorer, call: Call) -> float:
    for other in scorer.running:
        other.due += 1.5
    return call.begun + 1.5


CASES = {
    f"{name}, {in_flight} in flight": {"speed": speed, "in_flight": in_flight, "truncated": truncated}
    for name, speed in {
        "0.3": every(0.3), "1": every(1), "2.5": every(2.5), "7": every(7), "late 1.25": after(1.25),
        "late 3": after(3), "random": at_random(0), "by what follows": by_what_follows, "newest first": newest_first,
    }.items()
    for in_flight, truncated in ((1, True), (4, False))
} | {
    "two environments": {"speed": every(0.7), "truncated": True, "envs": 2, "horizon": 6},
    "alone": {"speed": every(2.5), "envs": 1},
    "in a second rollout": {"speed": at_random(1), "in_flight": 2, "before": True},
    "failures": {"speed": at_random(2), "in_flight": 2, "answer": fail_sometimes},
    "pairs": {"speed": every(0.3), "answer": give_change, "kind": "pair", "truncated": True},
    "pairs, overload": {"speed": every(0.8), "answer": give_change, "kind": "pair"},
    "pairs, any order": {"speed": at_random(3), "in_flight": 4, "answer": give_change, "kind": "pair"},
    "every second": {"speed": at_random(4), "in_flight": 4, "every": 2},
}  # fmt: skip


def measure(
    folder: Folder, speed: Speed, answer: Any = give_opinion, kind: str = "absolute", truncated: bool = False,
    envs: int = 3, before: bool = False, horizon: int = HORIZON, **keys: Any,
) -> tuple[float, float]:  # fmt: skip
    """Return the error of the gradient of an episode, as a share of the largest entry, and the largest shaping."""
    node, folders, largest = replace(NODE, **{"in_flight": 1} | keys), count(), [0.0]

    def shape(path: Path) -> np.ndarray:
        scorer, cut = RowClockScorer(speed, answer, kind), truncated and not path.terminated
        with open_writer(folder / str(next(folders)), scorer, node, envs, not truncated) as writer:
            rollouts = collect(writer, scorer, make_environments(path, truncated, envs, before))
        found = read_shaping(rollouts, envs if before else 0, len(path.actions), cut)
        largest.append(float(np.abs(found).max()))
        return found

    true = gradient(lambda path: np.zeros(len(path.actions)), START, horizon)
    return float(np.abs(gradient(shape, START, horizon) - true).max() / np.abs(true).max()), max(largest)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_stays_whatever_counts(case: str, tmp_path: Folder) -> None:
    error, shaping = measure(tmp_path, **CASES[case])
    assert error <= 1e-12
    assert shaping > 0.1 or case.startswith("7,"), "nothing was shaped"


def test_scores_that_count_at_the_end_of_a_rollout_fail_the_same_check(
    tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they have come by then depends on what was asked later."""

    def settle_late(writer: ScoringWriter, rollout: Rollout) -> Any:
        return writer._mode.settle(rollout, writer._tabulate(rollout))

    monkeypatch.setattr(ScoringWriter, "_settle", settle_late)
    error, _ = measure(tmp_path, **CASES["two environments"])
    assert error > 1e-2
