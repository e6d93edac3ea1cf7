"""The summary of a robot's audit against lines written by hand."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.reports.audit_section import AuditSummary, make_audit_section, summarise_audit
from tests.support.refusals import refuses

By = list[list[Any]]


class Audit:
    """Writes lines whose times rise."""

    def __init__(self, run: Path) -> None:
        self.folder, self._times = run / "audit", count()
        self.folder.mkdir()

    def add(self, file: str, event: str, **what: Any) -> None:
        line = {"time": f"2026-01-01T00:{next(self._times):02d}:00.000+00:00", "event": event, **what}
        with (self.folder / file).open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def start(self, iteration: int) -> None:
        self.add("rank_0.jsonl", "start", iteration=iteration)

    def train(
        self, episode: int, decision: int, by: By, end: str | None = None, file: str = "collector_0.jsonl"
    ) -> None:
        self.add(file, "chunk", purpose="training", episode=episode, decision=decision, by=by, end=end)


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


def read(run: Path) -> AuditSummary:
    found = summarise_audit(run)
    assert found is not None
    return found


def test_steps_are_counted_by_place_and_source(audit: Audit, tmp_path: Path) -> None:
    audit.start(0)
    audit.add("rank_0.jsonl", "chunk", purpose="report", episode=0, decision=0, by=[["policy", 5]], end="terminated")
    audit.add("rank_0.jsonl", "chunk", purpose="select", episode=0, decision=0, by=[["human", 1]], end=None)
    audit.train(0, 0, [["policy", 3], ["human", 2]])
    audit.train(0, 1, [["human", 1], ["safety", 4]], "truncated")
    audit.add("collector_0.jsonl", "between", episode=1, by=[["replay", 40], ["human", 2]])
    audit.train(1, 0, [["hold", 1], ["policy", 4]])
    found = read(tmp_path)
    assert found.steps == {
        "training": {"policy": 7, "human": 3, "safety": 4, "hold": 1},
        "evaluations": {"policy": 5, "human": 1},
        "between chunks": {"replay": 40, "human": 2},
    }
    assert (found.ended, found.cut, found.evaluated, found.restarts, found.damaged) == (1, 1, 1, [], 0)
    assert found.interventions == [1, 0], "one that goes on in the next chunk is one"
    lines = found.describe()
    assert "15 control steps in training: policy 7 (47%), safety 4 (27%), human 3 (20%), hold 1 (7%)" in lines
    assert "1 episodes ended in training, 1 did not; 1 in evaluations" in lines
    page = make_audit_section(found)
    assert all(line in page for line in lines) and "<div>40</div>" in page


@pytest.mark.parametrize("decision", [0, 2])
def test_a_killed_episode_that_begins_again_is_another(decision: int, audit: Audit, tmp_path: Path) -> None:
    """It has the same number; after a kill in its first or in a later chunk."""
    audit.start(0)
    for number in range(decision + 1):
        audit.train(7, number, [["policy", 4], ["human", 1]])
    audit.start(3)
    audit.train(7, 0, [["human", 5]])
    audit.train(7, 1, [["policy", 5]], "terminated")
    found = read(tmp_path)
    assert (found.ended, found.cut, found.restarts) == (1, 1, [3])
    assert found.interventions == [decision + 1, 1]
    assert "The run was restarted after iteration 3" in found.describe()


def test_quarters_are_of_episodes_in_the_order_of_their_begins(audit: Audit, tmp_path: Path) -> None:
    """Of two collectors that take turns: 3, 3, 2, 2, 1, 1, 0 and 0 interventions."""
    for number, helped in enumerate((3, 3, 2, 2, 1, 1, 0, 0)):
        audit.train(number, 0, [["human", 1], ["policy", 1]] * helped, "terminated", f"collector_{number % 2}.jsonl")
    found = read(tmp_path)
    assert found.interventions == [3, 3, 2, 2, 1, 1, 0, 0]
    told = "12 interventions of a human in training; an episode, by quarter: 3.00, 2.00, 1.00, 0.00"
    assert told in found.describe()


def test_damaged_lines_are_counted_and_a_run_without_an_audit_has_no_summary(audit: Audit, tmp_path: Path) -> None:
    assert summarise_audit(tmp_path) is None and make_audit_section(None) == ""
    audit.train(0, 0, [["policy", 5]], "terminated")
    wrong = [{"event": "chunk"}, [], {"event": "other"}, {"time": "", "event": "between", "by": [["robot", 3]]}]
    wrong += [{"time": "", "event": "chunk", "episode": 1, "decision": 0, "by": []}]
    with (audit.folder / "collector_0.jsonl").open("ab") as stream:
        for line in wrong:
            stream.write(json.dumps(line).encode() + b"\n")
        stream.write(b'\xff\n{"time": "20')
    found = read(tmp_path)
    assert (found.damaged, found.ended) == (7, 1)
    assert "7 damaged lines of the audit were not counted" in found.describe()


def test_a_pipe_is_not_read(audit: Audit, tmp_path: Path) -> None:
    os.mkfifo(audit.folder / "collector_0.jsonl")
    with refuses("file-special", "collector_0.jsonl"):
        summarise_audit(tmp_path)


def test_a_link_out_of_the_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.jsonl").write_text("")
    run = tmp_path / "run"
    (run / "audit").mkdir(parents=True)
    (run / "audit" / "collector_0.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with refuses("link-outside-folder"):
        summarise_audit(run)
