"""What a finished run reports: the gain on the same episodes, films of both, and where all of it comes from."""

import json
from pathlib import Path

import pytest

from embodied_rl.training.final_report import BEFORE, PAGE

pytestmark = pytest.mark.process


@pytest.mark.thorough
def test_a_run_on_two_ranks_films_the_same_episodes_before_and_after(reference: Path) -> None:
    """Each rank films its share of the episodes before; all of the evaluation's four are there."""
    names = sorted(file.name for file in (reference / "videos" / BEFORE).iterdir())
    assert names == [f"episode_{index}.mp4" for index in range(4)]
    assert all((reference / "videos" / f"pair_{index}.mp4").is_file() for index in range(4))


@pytest.mark.thorough
def test_without_films_the_page_stands_all_the_same(split_reference: Path) -> None:
    """By `train.film=false`."""
    assert not (split_reference / "videos").exists() or not [*(split_reference / "videos").rglob("*.mp4")]
    page = (split_reference / PAGE).read_text()
    assert "exact McNemar test on 4 equal episodes" in page and "<video" not in page


def test_reports_hold_the_training_and_the_reasons_of_failures(reference: Path) -> None:
    for name in ("before", "after"):
        report = json.loads((reference / "eval" / name / "report.json").read_text())
        said, provenance = report["metadata"], json.loads((reference / "provenance.json").read_text())
        assert (said["kind"], said["when"], said["simulator"], said["seed"]) == ("training", name, "tabletop", 0)
        assert said["command"] == provenance["command"] and "train" in said["command"].split()
        assert {episode["split"] for episode in report["episodes"]} == {"eval"}
        assert {episode["conditions"] for episode in report["episodes"]} == {"train"}
        failures = {episode["failure"] for episode in report["episodes"] if not episode["success"]}
        assert all(text.startswith(("time limit: ", "wrong ")) for text in failures)


def test_the_page_shows_both_and_the_whole_configuration(reference: Path) -> None:
    page = (reference / PAGE).read_text()
    assert "<h1>Training of pocket by ppo in tabletop</h1>" in page and "exact McNemar test on 4 equal episodes" in page
    assert page.count("<video") == 4 + len([*(reference / "videos").glob("[gbwf]*.mp4")])
    assert "final_episodes: 4" in page
