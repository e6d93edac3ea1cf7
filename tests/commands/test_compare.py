"""Runs side by side: paired where they share episodes, averaged where they differ in seed alone."""

import json
import os
import re
import shutil

import pytest

from embodied_rl.commands.compare import check_reports, compare_sweep, run
from embodied_rl.reports.comparison import average_curve, average_seeds, read_entry, to_markdown
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import mean_interval
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import CompareConfig
from tests.support.refusals import refuses


def results(outcomes, first_seed=0):
    return [
        EpisodeResult(i, i % 4, first_seed + i, "train", bool(success), bool(success), 9, float(success), 0.1)
        for i, success in enumerate(outcomes)
    ]


@pytest.fixture
def make_run(tmp_path, spec):
    """A run folder with an evaluation and five iterations."""

    def make(experiment, seed, outcomes, overrides=(), first_seed=0, split="eval", horizon=9):
        folder = RunFolder.create(tmp_path / "runs", experiment, seed)
        folder.write_config("seed: 0\n", [f"experiment={experiment}", f"seed={seed}", *overrides])
        rows = [{"iteration": i, "eval/success": 0.1 * i + 0.01 * seed} for i in range(1, 6)]
        folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = {"split": split, "simulators": [{"name": "fake", "horizon": horizon, "seeded": True}]}
        report = Report.from_results(results(outcomes, first_seed), spec, told)
        report.write(folder.path)
        return folder.path

    return make


def test_runs_that_differ_in_seed_alone_are_averaged(make_run):
    outcomes = ([1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0])
    entries = [read_entry(make_run("demo", seed, o, ["algo.lr=1e-4"])) for seed, o in enumerate(outcomes)]
    entries.append(read_entry(make_run("demo", 0, [1, 1, 1, 1], ["algo=grpo"])))
    assert average_seeds(entries) == ({"demo algo.lr=1e-4": mean_interval([0.75, 0.5, 0.25])}, [])
    assert [entry.label for entry in entries][2:] == ["demo algo.lr=1e-4 seed 2", "demo algo=grpo seed 0"]


def test_curves_carry_the_interval_over_seeds(make_run):
    entries = [read_entry(make_run("demo", seed, [1, 0])) for seed in (0, 1, 2)]
    found = average_curve(entries, "eval/success")
    expected = [mean_interval([0.1 * i, 0.1 * i + 0.01, 0.1 * i + 0.02]) for i in range(1, 6)]
    assert list(found.x) == [1, 2, 3, 4, 5] and list(found.y) == pytest.approx([mean.mean for mean in expected])
    assert list(found.low) == pytest.approx([mean.low for mean in expected])


def test_markdown_and_a_self_contained_page_are_written(make_run, tmp_path, capsys):
    paths = [
        make_run("demo", 0, [1, 1, 1, 0] * 8),
        make_run("demo", 1, [1, 0, 0, 0] * 8),
        make_run("other", 0, [1] * 32),
    ]
    assert run(CompareConfig(runs=tuple(map(str, paths)), out=str(tmp_path / "out"))) == 0
    printed, markdown = capsys.readouterr().out, (tmp_path / "out" / "compare.md").read_text()
    assert markdown in printed
    assert "| demo seed 0 | 75.0 % [57.9, 86.7] |" in markdown
    assert "| demo seed 0 | demo seed 1 | 32 | 16 | 0 | 3.1e-05 | 6.1e-05 | – |" in markdown, "2 / 2^16, then twice"
    assert "| demo seed 0 | other seed 0 | 32 | 0 | 8 | 0.0078 | 0.0078 | – |" in markdown, (
        "2 / 2^8, the largest of three"
    )
    assert "Not compared" not in markdown
    for row in (line for line in markdown.splitlines() if line.startswith("|")):
        assert row.count("|") >= 3
    html = (tmp_path / "out" / "compare.html").read_text()
    assert not re.search(r"https?:", html) and "<polyline" in html and "<polygon" in html and "75.0 %" in html


def test_a_run_gives_its_own_report_whatever_the_times_of_files(make_run, spec, tmp_path):
    """Not the evaluation before training, nor a later one with fewer episodes."""
    path = make_run("demo", 0, [1, 1])
    (path / "eval" / "before").mkdir(parents=True)
    for folder, split in ((path / "eval" / "before", "eval"), (None, "eval"), (None, "vision")):
        told = {"split": split, **({"when": "before"} if folder else {})}
        Report.from_results(results([0, 0]), spec, told).write(folder or RunFolder(path).new_evaluation(split))
    copy = shutil.copytree(path, tmp_path / "copy")
    for newest in sorted(copy.rglob("report.json")):
        os.utime(newest, (2e9, 2e9))
        entry = read_entry(copy)
        assert entry.report.success.rate == 1.0 and str(copy / "report.json") in to_markdown([entry, entry])
        os.utime(newest, (1e9, 1e9))
    (path / "report.json").unlink()
    with refuses("report-missing", "eval/before"):
        read_entry(path)


def test_other_evaluations_are_given_by_their_folder(make_run, spec):
    path = make_run("demo", 0, [1, 1])
    Report.from_results(results([0, 0]), spec, {"split": "vision"}).write(RunFolder(path).new_evaluation("vision"))
    held_out = next(path.glob("eval/vision_*"))
    assert read_entry(held_out).label == "demo (vision) seed 0"
    assert read_entry(held_out / "report.json").report.success.rate == 0.0
    told = {"split": "eval", "episodes_for": "publish"}
    published = Report.from_results(results([0, 1]), spec, told).write(RunFolder(path).new_evaluation("eval_publish"))
    assert read_entry(published).label == "demo (publish) seed 0", "seeds are averaged with their like"


def test_equal_names_are_numbered(make_run, tmp_path, capsys):
    path = str(make_run("demo", 0, [1, 0]))
    run(CompareConfig(runs=(path, path), out=str(tmp_path / "out")))
    assert "demo seed 0 (1)" in capsys.readouterr().out


def test_what_cannot_be_compared_is_said(make_run, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in (run, check_reports):
        with refuses("too-few-runs"):
            command(CompareConfig(runs=(str(make_run("demo", 0, [1])),)))
    with refuses("report-missing", "embodied-rl eval checkpoint=", "empty"):
        read_entry(tmp_path / "empty")


def test_the_same_run_twice_is_not_two_seeds(make_run, spec):
    """Neither are a run's evaluations before and after; a second report of a seed takes the first one's place."""
    first = make_run("demo", 0, [1] * 8)
    entries = [read_entry(first), read_entry(first)]
    assert average_seeds(entries) == ({}, [])
    before = Report.from_results(results([0] * 8), spec, {"split": "eval", "when": "before"})
    folder = first / "eval" / "before"
    folder.mkdir(parents=True)
    before.write(folder)
    assert read_entry(folder / "report.json").group.endswith("(before)")
    second = make_run("demo", 1, [0] * 8)
    (mean,) = average_seeds([*entries, read_entry(second)])[0].values()
    assert (mean.count, mean.mean) == (2, 0.5)
    assert average_curve([*entries, read_entry(second)], "eval/success").y == pytest.approx(
        [0.105, 0.205, 0.305, 0.405, 0.505]
    )


def test_unequal_reports_are_not_compared_in_silence(make_run, tmp_path, capsys):
    """Neither in pairs nor over seeds: the table says what differs."""
    paths = [
        make_run("demo", 0, [1, 1, 1, 0]),
        make_run("demo", 1, [1, 0, 0, 0] * 2),
        make_run("demo", 2, [1] * 4, horizon=18),
        make_run("old", 0, [1] * 4),
    ]
    old = paths[3] / "report.json"
    content = json.loads(old.read_text())
    del content["metadata"]["simulators"]
    old.write_text(json.dumps(content))
    run(CompareConfig(runs=tuple(map(str, paths)), out=str(tmp_path / "out")))
    printed = capsys.readouterr().out
    assert "| demo seed 0 | demo seed 1 | 4 of 4 and 8 |" in printed
    assert "| demo, over seeds | the reports differ in their tasks, or in episodes of a task |" in printed
    assert "| demo seed 0 and demo seed 2 | their simulators differ: horizon 9 and 18 |" in printed
    assert "| demo seed 0 and old seed 0 | the second report cannot be paired: " in printed
    assert "Over seeds\n" not in printed


def test_seeds_of_other_simulators_are_not_averaged(make_run):
    """Runs of the same words, one of a version in which an episode was shorter."""
    entries = [read_entry(make_run("demo", seed, [1, 0, 0, 0], horizon=9 * (1 + seed // 2))) for seed in range(3)]
    assert average_seeds(entries) == ({}, [("demo, over seeds", "the reports differ in their simulators")])
    assert average_seeds(entries[:2])[0]["demo"].count == 2


def test_labels_name_what_differs_and_the_rest_once(make_run, tmp_path, capsys):
    """Settings that all runs share are left out of labels, and stand in full below."""
    shared = ["algo.lr=1e-4", "sim.num_envs=128"]
    paths = [
        make_run("demo", 0, [1, 1, 1, 0], shared),
        make_run("demo", 0, [1, 0, 0, 0], [*shared, "algo.epochs=2"]),
        make_run("demo", 1, [1, 0, 0, 0], [*shared, "algo.epochs=2"]),
    ]
    run(CompareConfig(runs=tuple(map(str, paths)), out=str(tmp_path / "out")))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| run | success [95 %] |") for line in lines), "success comes first"
    labels = ["demo seed 0", "algo.epochs=2 seed 0", "algo.epochs=2 seed 1"]
    assert [next(i for i, line in enumerate(lines) if line.startswith(f"| {label} |")) for label in labels]
    assert any(line.startswith("| algo.epochs=2 | 2 |") for line in lines), "the group, over seeds"
    settings = f"demo {' '.join(shared)} algo.epochs=2"
    assert f"| algo.epochs=2 seed 1 | {settings} | {paths[2] / 'report.json'} |" in lines


def test_a_sweep_is_compared_in_its_own_folder_over_seeds_too(make_run, tmp_path, capsys):
    rates = ([1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0])
    (tmp_path / "sweep").mkdir()
    compare_sweep([make_run("demo", seed, outcomes) for seed, outcomes in enumerate(rates)], tmp_path / "sweep")
    printed = capsys.readouterr().out
    assert (tmp_path / "sweep" / "compare.md").read_text() in printed
    assert "| demo | 3 | 50.0 % [0.0, 100.0] |" in printed, "50 % ± 62: Student's interval of three seeds, clipped"
    html = (tmp_path / "sweep" / "compare.html").read_text()
    assert "demo seed 2" in html and "mean success" in html


def test_a_run_of_a_sweep_without_a_report_is_named(make_run, tmp_path, capsys):
    for name in ("sweep", "alone"):
        (tmp_path / name).mkdir()
    stopped = make_run("demo", 7, [1, 1])
    (stopped / "report.json").unlink()
    reported = [make_run("demo", seed, [1, 0], [f"algo.epochs={seed + 1}"]) for seed in (0, 1)]
    compare_sweep([*reported, stopped, reported[0]], tmp_path / "sweep")
    printed = capsys.readouterr().out
    assert f"{stopped} has no report and is not compared." in printed
    assert printed.count("| algo.epochs=1 seed 0 |") >= 1 and "(1)" not in printed and "seed 7" not in printed
    compare_sweep([reported[0], stopped], tmp_path / "alone")
    assert not [*(tmp_path / "alone").iterdir()]
