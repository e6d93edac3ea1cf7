"""`embodied-rl trace`: what is kept with a checkpoint, and what a viewer gets."""

import json
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.rollout.timeline import INFER, LEARN, RANK, SIMULATE, Span, Timeline, keep_timelines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks that has kept two iterations."""
    (tmp_path / "checkpoints").mkdir()
    for iteration, began in ((10, 50.0), (20, 90.0)):
        lines = []
        for rank in range(2):
            spans = [
                Span(RANK, INFER, began + rank, 0.5, 8),
                Span("simulator 1", SIMULATE, began + rank + 0.5, 0.25, 4),
                Span("simulator 0", SIMULATE, began + rank + 0.5, 0.125, 4),
                Span(RANK, LEARN, began + rank + 1, 2.0, 64),
            ]
            lines.append(Timeline(spans, began + rank, 1.0))
        keep_timelines(tmp_path, iteration, lines)
    return tmp_path


def test_a_viewer_gets_every_span(run: Path, capsys) -> None:
    assert main(["trace", str(run)]) == 0
    events = json.loads((run / "trace_00000020.json").read_text())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    spans = [(names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"], e["pid"]) for e in events if e["ph"] == "X"]
    assert len(spans) == 8
    assert ("rank", "infer", 0.0, 0.5e6, 0) in spans and ("simulator 1", "simulate", 1.5e6, 0.25e6, 1) in spans
    out = capsys.readouterr().out
    assert "iteration 20" in out and "ui.perfetto.dev" in out


def test_another_iteration_and_file(run: Path) -> None:
    assert main(["trace", str(run), "iteration=10", f"file={run / 'x.json'}"]) == 0
    assert len(json.loads((run / "x.json").read_text())) == 8 + 2 + 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["iteration=15"], "has kept 10, 20"),
        (["iteration=0"], "iteration"),
        (["file=/proc/nowhere/x.json"], "or set file to"),
    ],
)
def test_mistakes(run: Path, capsys, words: list[str], message: str) -> None:
    assert main(["trace", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_checkpoint_has_none(tmp_path: Path, capsys) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert main(["trace", str(tmp_path)]) == 2
    assert "checkpoint.every" in capsys.readouterr().err
