"""The end of a run: a report also where the one from its beginning is lost."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.training.final_report import read_before, summarise_pace, summarise_run

RESULT = EpisodeResult(0, 0, 7, "eval", True, True, 3, 1.0, 0.5)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read: No such file"), ("{", "is not a report"), ("[]", "is not a report")],
)
def test_a_lost_report_from_before_training_costs_no_other(content: str | None, problem: str, tmp_path: Path) -> None:
    said: list[str] = []
    folder = SimpleNamespace(path=tmp_path, evaluations=tmp_path / "eval")
    trainer, log = SimpleNamespace(folder=folder), SimpleNamespace(note=said.append)
    file = tmp_path / "eval" / "before" / "report.json"
    file.parent.mkdir(parents=True)
    if content is not None:
        file.write_text(content)
    assert read_before(trainer, log) is None  # pyright: ignore[reportArgumentType] - all it needs of them
    assert len(said) == 1 and f"{file} {problem}" in said[0]
    assert f"restore that file, remove {tmp_path / 'report.html'} and resume" in said[0]


def test_a_summary_without_the_success_before(tmp_path: Path) -> None:
    after = Report.from_results([RESULT], FakeSimulator.spec_of(FakeSimulator.Config()), {})
    for before, arrow in ((after, True), (None, False)):
        lines = summarise_run(before, after, tmp_path, (), ())
        assert "100.0 %" in lines[2] and ("→" in lines[2]) == arrow
        assert ("before and after" in lines[1]) == arrow


BUSY = {"time/busy/simulators": 0.4, "time/busy/policy": 0.25, "time/busy/learner": 0.3}


def test_the_prediction_stands_beside_the_median() -> None:
    rows = [{"time/iteration": seconds, "time/iteration_predicted": 2.0, **BUSY} for seconds in (1.0, 2.5, 9.0)]
    (line,) = summarise_pace(rows)
    assert "took 2.50 s (2.00 s predicted, +25%); busy: simulators 40%, policy 25%, learner 30%" in line


def test_without_a_prediction_only_measurements_are_printed() -> None:
    (line,) = summarise_pace([{"time/iteration": 1.0, **BUSY}])
    assert "took 1.00 s; busy" in line


def test_runs_of_older_versions_say_nothing() -> None:
    assert summarise_pace([{"time/iteration": 1.0}]) == summarise_pace([]) == []
