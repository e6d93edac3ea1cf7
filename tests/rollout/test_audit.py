"""The audit says what was executed by whom, a line for each chunk, also after a killed process."""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from embodied_rl.evaluate.protocol import ResultCounter, Results
from embodied_rl.interfaces.sim import Episode, Source, StepResult
from embodied_rl.rollout.audit import AuditWriter, EvaluationAudit, summarise_sources
from embodied_rl.rollout.runner import EpisodeRunner
from embodied_rl.runs.audit_file import AuditFile
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.refusals import refuses

P, H, S = Source.POLICY, Source.HUMAN, Source.SAFETY


def open_audit(path: Path) -> AuditWriter:
    audit = AuditWriter(path)
    spec: Any = SimpleNamespace(tasks=[SimpleNamespace(name="push"), SimpleNamespace(name="pick")])
    audit.prepare(spec, 2, 3)
    return audit


def decide(audit: AuditWriter, *decisions: tuple[int, int, int]) -> None:
    """Column, episode and decision of each environment; the version is 7."""
    columns, episodes, numbers = zip(*decisions, strict=True)
    decision: Any = SimpleNamespace(version=torch.full((len(columns),), 7))
    keys: Any = SimpleNamespace(decision=np.array(numbers))
    of = [Episode(index=number, task=number % 2, seed=number + 100) for number in episodes]
    audit.write_decision(0, torch.tensor(columns), decision, of, None, keys)  # type: ignore[arg-type]


def execute(audit: AuditWriter, columns: list[int], sources: list[list[Source]], **ends: Any) -> None:
    """Rows of two environments; entries beyond those given were not executed."""
    result: Any = SimpleNamespace(
        reward=np.zeros((2, 3), np.float32),
        success=np.zeros((2, 3), bool),
        source=np.full((2, 3), int(S), np.uint8),
        steps=np.zeros(2, np.int64),
        terminated=np.zeros(2, bool),
        truncated=np.zeros(2, bool),
        between=None,
    )
    for row, played in zip(columns, sources, strict=True):
        result.source[row, : len(played)] = played
        result.steps[row] = len(played)
    for name, value in ends.items():
        setattr(result, name, value if isinstance(value, tuple) else np.array(value))
    made: StepResult = result
    audit.write_result(0, torch.tensor(columns), made, np.array(columns))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_what_was_executed_by_whom(tmp_path: Path) -> None:
    audit = open_audit(tmp_path / "audit" / "a.jsonl")
    decide(audit, (0, 4, 0), (1, 5, 3))
    execute(audit, [0, 1], [[P, H, H], [S, P]], success=[[False] * 3, [False, True, False]], terminated=[False, True])
    first, second = read(tmp_path / "audit" / "a.jsonl")
    assert first.pop("time") <= second.pop("time")
    known = {"event": "chunk", "purpose": "training"}
    known |= {"episode": 4, "task": "push", "seed": 104, "decision": 0, "version": 7}
    assert first == known | {"by": [["policy", 1], ["human", 2]], "success": False, "end": None}
    known |= {"episode": 5, "task": "pick", "seed": 105, "decision": 3}
    assert second == known | {"by": [["safety", 1], ["policy", 1]], "success": True, "end": "terminated"}


def test_what_is_in_no_chunk_has_a_line_before_the_next_chunk(tmp_path: Path) -> None:
    audit = open_audit(tmp_path / "a.jsonl")
    decide(audit, (0, 4, 0), (1, 5, 3))
    execute(audit, [0, 1], [[P], [P]], between=((), ((int(Source.REPLAY), 40), (int(H), 2))))
    first, between, second = read(tmp_path / "a.jsonl")
    assert between.pop("time") <= second["time"]
    assert between == {"event": "between", "episode": 5, "by": [["replay", 40], ["human", 2]]}
    assert [line["episode"] for line in (first, second)] == [4, 5]
    assert summarise_sources(audit.figures())["rollout/by_policy"] == 1, "counted are the steps of chunks"


def test_steps_and_interventions_are_counted(tmp_path: Path) -> None:
    """One that goes on in the next chunk is one; one at the begin of the next episode is another."""
    audit = open_audit(tmp_path / "a.jsonl")
    for number, sources in enumerate([[P, P, H], [H, H, P], [H]]):
        decide(audit, (0, 0, number))
        execute(audit, [0], [sources])
    decide(audit, (0, 2, 0))
    execute(audit, [0], [[H, P, P]])
    found = summarise_sources(audit.figures())
    assert found == {"rollout/by_policy": 0.5, "rollout/by_human": 0.5, "rollout/interventions": 3}
    assert summarise_sources(audit.figures()) == {}
    decide(audit, (0, 2, 1))
    execute(audit, [0], [[P, H, S]])
    third = {f"rollout/by_{source}": 1 / 3 for source in ("policy", "human", "safety")}
    assert summarise_sources(audit.figures()) == third | {"rollout/interventions": 1}


def test_an_episode_that_is_lost_is_said(tmp_path: Path) -> None:
    audit = open_audit(tmp_path / "a.jsonl")
    decide(audit, (1, 5, 0))
    audit.lose_episodes(0, torch.tensor([0, 1]), np.zeros(2, np.int64))
    (line,) = read(tmp_path / "a.jsonl")
    assert (line["episode"], line["by"], line["end"]) == (5, [], "lost")


def test_it_goes_on_behind_what_a_killed_process_wrote(tmp_path: Path) -> None:
    """Each line is in the file at once; half a line, which a full disk leaves, does not swallow the next."""
    for _ in range(2):
        audit = open_audit(tmp_path / "a.jsonl")
        decide(audit, (0, 0, 0))
        execute(audit, [0], [[P]])
    assert len(read(tmp_path / "a.jsonl")) == 2
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"time": "20')
    audit = open_audit(tmp_path / "a.jsonl")
    decide(audit, (0, 1, 0))
    execute(audit, [0], [[P]])
    *whole, part, last = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(whole) == 2 and part == '{"time": "20' and json.loads(last)["episode"] == 1


def test_chunks_of_evaluations_are_lines_with_their_purpose(tmp_path: Path) -> None:
    """Their steps are those that the results of the episodes count."""
    handle = InlineHandle(lambda: FakeSimulator(3, FakeSimulator.Config(horizon=10)))
    file, actor = AuditFile(tmp_path / "a.jsonl"), RowwiseFakeActor(handle.spec, 4, seed=5)
    listed = [Episode(20 + number, number % 2, 50 + number) for number in range(5)]
    kept = Results()
    EpisodeRunner(actor, handle.spec, 7).run(
        [handle], 3, listed, ResultCounter(kept), EvaluationAudit(file, handle.spec, "report", 6)
    )
    file.close()
    lines = read(tmp_path / "a.jsonl")
    assert {(line["event"], line["purpose"], line["version"]) for line in lines} == {("chunk", "report", 6)}
    for episode in listed:
        mine = [line for line in lines if line["episode"] == episode.index]
        assert [line["decision"] for line in mine] == list(range(len(mine)))
        assert {(line["task"], line["seed"]) for line in mine} == {(handle.spec.tasks[episode.task].name, episode.seed)}
        assert [line["end"] is None for line in mine] == [True] * (len(mine) - 1) + [False]
        assert sum(steps for line in mine for _, steps in line["by"]) == kept.found[episode.index].steps
        assert any(line["success"] for line in mine) == kept.found[episode.index].success


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with refuses("file-special"):
        AuditWriter(tmp_path / "a.jsonl")


def test_a_full_disk_is_named(tmp_path: Path, files_up_to: Callable[[int], AbstractContextManager[None]]) -> None:
    audit = open_audit(tmp_path / "a.jsonl")
    decide(audit, (0, 0, 0))
    with files_up_to(20), refuses("disk-full", "a.jsonl"):
        execute(audit, [0], [[P]])
