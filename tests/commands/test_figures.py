"""Tracked runs keep what a run reported, and the documentation's plots and tables are drawn from them alone."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.commands.figures import check_figures, run
from embodied_rl.reports.figures import Figure, draw_curve, make_table, redraw, replace_table
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import mean_interval
from embodied_rl.reports.tracked_run import TrackedRun
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import FiguresConfig
from tests.support.refusals import refuses

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = """
demo:
  title: Success & time
  runs: {ours: demo}
  plot: docs/demo.svg
  table: docs/page.md
  families: true
"""
PAGE = "# Page\n\n<!-- table: demo -->\nold\n<!-- end of table -->\n\nAfter it.\n"


@pytest.fixture
def make_run(tmp_path, spec):
    """A finished run: reports before and after training, and three iterations, of which two were evaluated."""

    def make(seed, before, after, evaluated=(0.5, 0.75), *words, dirty=False):
        folder = RunFolder.create(tmp_path / "runs", "demo", seed)
        folder.write_config("seed: 0\n", ["experiment=demo", f"seed={seed}", "run.root=/home/me/runs", *words])
        (folder.path / "provenance.json").write_text(
            json.dumps({"commit": "abc", "dirty": dirty, "packages": {"torch": "2", "other": "1"}, "load": [0.5, 1, 2]})
        )
        rows = [
            {"iteration": n, "total/episodes": 10 * n + seed, "total/decisions": 96 * n, "time/elapsed": 60.0 * n}
            for n in (1, 2, 3)
        ]
        for row, success in zip(rows[1:], evaluated, strict=True):
            row["eval/success"] = success
            row |= {f"eval/success/{task.family}": success and success / 2 for task in spec.tasks}
        folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder.evaluations / "before").mkdir()
        for outcomes, place in ((before, folder.evaluations / "before"), (after, folder.path)):
            results = [
                EpisodeResult(i, i % 4, i, "train", bool(success), bool(success), 9, float(success), 0.1)
                for i, success in enumerate(outcomes)
            ]
            Report.from_results(results, spec, {"load_at_end": [3, 3, 3]}).write(place)
        return folder

    return make


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    (tmp_path / "docs").mkdir()
    folder.mkdir()
    (folder / "figures.yaml").write_text(LIST)
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return folder


def test_a_tracked_run_has_what_was_reported(make_run, tmp_path):
    folder = make_run(3, [1, 0, 0, 0] * 2, [1, 1, 1, 0] * 2, (0.5, 0.75), "policy.checkpoint=/home/me/base.safetensors")
    path = tmp_path / "results" / "demo" / "s3.json"
    TrackedRun.of(folder).write(path)
    tracked = TrackedRun.read(path)
    report = Report.read(folder.path / "report.json")
    assert tracked == TrackedRun.of(folder)
    assert tracked.after.rate() == report.success and tracked.after.episodes == "11101110"
    for name, family in report.families.items():
        assert tracked.after.rate(name) == family.success
    assert tracked.before.episodes_sha256 == report.metadata["episodes_sha256"], "they can be paired"
    assert tracked.course["eval/success"] == (None, 0.5, 0.75)
    assert tracked.course["total/episodes"] == (13.0, 23.0, 33.0)
    assert tracked.provenance["packages"] == {"torch": "2"} and tracked.provenance["load_at_end"] == [3, 3, 3]
    assert tracked.settings == ("experiment=demo", "policy.checkpoint=base.safetensors")
    assert "/home/me" not in path.read_text(), "nothing of the machine"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "hf:owner/name/part", "ws://robot:1/a/b"])
def test_only_paths_of_the_machine_are_shortened(make_run, url):
    tracked = TrackedRun.of(make_run(0, [1], [1], (0.5, 0.75), f"reward.url={url}"))
    assert tracked.settings[-1] == f"reward.url={url}"


def test_curves_and_tables_have_means_over_seeds(make_run):
    runs = [
        TrackedRun.of(make_run(seed, [1, 0], after, (0.5, 0.1 * seed))) for seed, after in ((0, [1, 0]), (2, [1, 1]))
    ]
    curve = draw_curve("ours", runs, "episodes")
    assert curve.x == [0, 21, 31] and list(curve.y) == pytest.approx([0.5, 0.5, 0.1])
    assert curve.low[2] == 0.0 and curve.high[2] == pytest.approx(min(1.0, mean_interval([0.0, 0.2]).high or 0.0))
    assert draw_curve("ours", runs, "minutes").x == [0, 2, 3]
    last = make_table({"ours": runs}, Figure("F", families=True)).splitlines()[2].split(" | ")
    assert last[:3] == ["| ours", "0, 2", "50.0 %"] and last[3].startswith("75.0 % [0.0, 100.0]")
    assert last[-3:] == ["31", "288", "3.0 |"]
    assert "50.0 % |" in make_table({"one": runs[:1]}, Figure("F")), "one seed has no interval"


def test_each_family_has_its_curve(make_run, results):
    run = TrackedRun.of(make_run(0, [1, 1, 1, 0], [1, 1, 1, 1]))
    run.write(results / "demo" / "s0.json")
    run = TrackedRun.read(results / "demo" / "s0.json")
    for name in run.after.families:
        curve = draw_curve(name, [run], "iterations", name)
        assert curve.x == [0, 2, 3] and list(curve.y) == [run.before.rate(name).rate, 0.25, 0.375]
    (results / "figures.yaml").write_text(LIST + "  family_plot: docs/families.svg\n")
    drawn = redraw(results)[results.parent / "docs" / "families.svg"]
    assert all(f">{name}<" in drawn for name in run.after.families) and "demo" not in drawn

    course = {name: values for name, values in run.course.items() if not name.startswith("eval/success/")}
    with refuses("tracked-runs-unequal", "track it again"):
        draw_curve("push", [replace(run, course=course)], "iterations", next(iter(run.after.families)))
    (results / "figures.yaml").write_text(LIST.replace("{ours: demo}", "{a: demo, b: demo}") + "  family_plot: a.svg\n")
    with refuses("figure-incomplete", "one group"):
        redraw(results)
    (results / "figures.yaml").write_text(LIST + "  steps: true\n")
    with refuses("figure-incomplete", "evaluations alone"):
        redraw(results)


def test_a_table_tells_when_a_success_was_reached(make_run):
    runs = [
        TrackedRun.of(make_run(seed, [1], [1], evaluated)) for seed, evaluated in enumerate([(0.5, 0.9), (0.9, 0.8)])
    ]
    runs.append(TrackedRun.of(make_run(2, [1], [1], (0.1, 0.2))))
    last = make_table({"ours": runs}, Figure("F", levels=(0.5, 0.9, 0.95))).splitlines()
    assert last[0].endswith("| minutes to 50 % | minutes to 90 % | minutes to 95 % |")
    assert last[2].endswith("| 2.0 | 3.0 | – |"), "2, 2, never; 3, 2, never; and never"


def test_interventions_are_told_by_quarter(make_run, tmp_path):
    folder = make_run(0, [1], [1])
    (folder.path / "audit").mkdir()
    chunk = {"event": "chunk", "purpose": "training", "task": "push", "decision": 0, "version": 0, "success": True}
    by = [[["policy", 2], ["human", 3]]] * 3 + [[["policy", 5]]] * 5
    chunks = [
        chunk | {"time": f"2026-01-01T00:00:0{n}.000+00:00", "episode": n, "seed": n, "by": each, "end": "terminated"}
        for n, each in enumerate(by)
    ]
    (folder.path / "audit" / "collector_0.jsonl").write_text("".join(json.dumps(each) + "\n" for each in chunks))
    run = TrackedRun.of(folder)
    assert run.interventions == (1, 1, 1, 0, 0, 0, 0, 0)
    run.write(tmp_path / "s0.json")
    assert TrackedRun.read(tmp_path / "s0.json") == run
    table = make_table({"ours": [run]}, Figure("F", interventions=True)).splitlines()
    assert table[0].endswith("| interventions an episode, first quarter | last quarter |")
    assert table[2].endswith("| 1.00 | 0.00 |")


def test_interventions_of_a_run_without_a_human_are_not_drawn_as_none(make_run, results):
    TrackedRun.of(make_run(0, [1], [1])).write(results / "demo" / "s0.json")
    (results / "figures.yaml").write_text(LIST + "  interventions: true\n")
    with refuses("tracked-runs-unequal", "interventions"):
        redraw(results)


def test_figures_are_redrawn_to_the_byte(make_run, results, tmp_path, capsys):
    folders = tuple(str(make_run(seed, [1, 0, 0, 0], [1, 1, 0, 1]).path) for seed in (0, 1))
    assert run(FiguresConfig(folders, results=str(results))) == 0
    said = capsys.readouterr().out
    assert said.count("tracked: ") == 2 and said.count("redrawn: ") == 2
    page, plot = (tmp_path / "docs" / name for name in ("page.md", "demo.svg"))
    first = page.read_bytes(), plot.read_bytes()
    assert b"old" not in first[0] and b"After it." in first[0] and b"| ours | 0, 1 |" in first[0]
    assert b"Success &amp; time" in first[1] and b"<polyline" in first[1] and b"ours</text>" in first[1]
    plot.write_text("other")
    run(FiguresConfig(results=str(results)))
    assert (page.read_bytes(), plot.read_bytes()) == first
    assert capsys.readouterr().out == f"redrawn: {plot}\n", "only what differs is written"


@pytest.fixture
def make_evaluation(tmp_path, spec):
    """A finished evaluation of a policy's file."""

    def make(name, outcomes, **metadata):
        results = [
            EpisodeResult(
                i, i % 4, i, "train", bool(won), bool(won), 9, 1.0, 0.1, steps_to_success=i + 1 if won else None
            )
            for i, won in enumerate(outcomes)
        ]
        policy = {"policy": "/home/me/best.safetensors", "file": "/home/me/best.safetensors", "sha256": "ab"}
        described = {
            "kind": "evaluation",
            "policies": [policy],
            "commit": "abc",
            "command": "embodied-rl eval /home/me/r",
        }
        folder = tmp_path / "eval" / name
        folder.mkdir(parents=True)
        Report.from_results(results, spec, described | metadata).write(folder)
        return folder

    return make


def test_evaluations_make_a_table(make_evaluation, results, tmp_path, capsys):
    (results / "figures.yaml").write_text("splits: {title: S, evaluations: {seen: seen}, table: docs/page.md}")
    page = tmp_path / "docs" / "page.md"
    page.write_text("<!-- table: splits -->\n<!-- end of table -->\n")
    folder = make_evaluation("vision", [1, 1, 1, 0] * 2)
    assert run(FiguresConfig((str(folder),), group="seen", results=str(results))) == 0
    rate, file = Report.read(folder / "report.json").success, results / "seen" / "evaluation.json"
    row = f"| seen | 75.0 % [{100 * rate.low:.1f}, {100 * rate.high:.1f}] |"
    assert row in page.read_text() and "| 8 |" in page.read_text()
    assert "/home/me" not in file.read_text() and json.loads(file.read_text())["policies"][0]["sha256"] == "ab"
    drawn = page.read_bytes()
    run(FiguresConfig(results=str(results)))
    assert page.read_bytes() == drawn and "redrawn" not in capsys.readouterr().out.splitlines()[-1:]


def test_evaluations_show_their_steps_to_success(make_evaluation, results, tmp_path):
    page, figure = (
        tmp_path / "docs" / "page.md",
        "d: {title: D, evaluations: {seen: seen}, table: docs/page.md, steps: true}",
    )
    page.write_text("<!-- table: d -->\n<!-- end of table -->\n")
    (results / "figures.yaml").write_text(figure)
    folder = make_evaluation("vision", [0, 1, 0, 1, 1, 0, 0, 1])
    run(FiguresConfig((str(folder),), group="seen", results=str(results)))
    assert "control steps to success | episodes |" in page.read_text() and "| 4.8 | 8 |" in page.read_text()
    file = results / "seen" / "evaluation.json"
    tracked = file.read_text()
    for damaged in ("-1", "NaN"):
        file.write_text(tracked.replace('"steps_to_success":4.75', f'"steps_to_success":{damaged}'))
        with refuses("tracked-run-damaged"):
            redraw(results)
    file.write_text(tracked.replace('"steps_to_success":4.75', '"steps_to_success":null'))
    with refuses("tracked-runs-unequal", "track it again"):
        redraw(results)


def test_evaluations_that_cannot_be_tracked_are_refused(make_evaluation, results):
    (results / "figures.yaml").write_text("splits: {title: S, evaluations: {seen: seen}, table: docs/page.md}")
    with refuses("tracked-run-missing"):
        redraw(results)
    for code, metadata in {"run-not-reproducible": {"dirty": True}, "report-damaged": {"policies": [1]}}.items():
        with refuses(code):
            check_figures(FiguresConfig((str(make_evaluation(code, [1], **metadata)),), "seen", str(results)))
    with refuses("group-missing"):
        check_figures(FiguresConfig((str(make_evaluation("nameless", [1])),), results=str(results)))
    for figure in ("plot: docs/a.svg", "profile: docs/a.svg", "levels: [0.9]", "interventions: true"):
        (results / "figures.yaml").write_text(
            f"splits: {{title: S, evaluations: {{seen: seen}}, table: docs/page.md, {figure}}}"
        )
        with refuses("figure-incomplete"):
            check_figures(FiguresConfig((str(make_evaluation(figure[:4], [1])),), "seen", str(results)))


def test_tables_of_one_page_are_filled_apart():
    page = Path("page.md")
    text = "".join(f"<!-- table: {name} -->\n<!-- end of table -->\n" for name in ("a", "b"))
    filled = replace_table(replace_table(text, "a", "| 1 |\n", page), "b", "| 2 |\n", page)
    assert filled == "".join(
        f"<!-- table: {name} -->\n\n| {cell} |\n\n<!-- end of table -->\n" for name, cell in (("a", 1), ("b", 2))
    )
    assert replace_table(filled, "a", "| 1 |\n", page) == filled


def test_what_cannot_be_tracked_is_refused(make_run, results):
    with refuses("run-not-reproducible"):
        TrackedRun.of(make_run(0, [1], [1], dirty=True))
    renamed = make_run(4, [1], [1])
    with refuses("run-renamed"):
        TrackedRun.of(RunFolder(renamed.path.rename(renamed.path.with_name("mine"))))
    unfinished = make_run(1, [1], [1])
    (unfinished.path / "report.json").unlink()
    with refuses("run-not-finished"):
        run(FiguresConfig((str(unfinished.path),), results=str(results)))
    for seed, file, code in ((5, "provenance.json", "run-not-reproducible"), (6, "metrics.jsonl", "metrics-missing")):
        lacking = make_run(seed, [1], [1])
        (lacking.path / file).unlink()
        with refuses(code, lacking.path / file):
            TrackedRun.of(lacking)
    with refuses("tracked-runs-unequal"):
        draw_curve(
            "a",
            [TrackedRun.of(make_run(seed, [1], [1], (0.5, late))) for seed, late in ((2, 0.5), (3, None))],
            "episodes",
        )


def test_runs_of_one_seed_do_not_take_each_others_place(make_run, results, capsys):
    folders = [str(make_run(0, [1, 0], [1, 1]).path) for _ in range(2)]
    with refuses("runs-equal-seed", "demo/s0.json"):
        run(FiguresConfig(tuple(folders), results=str(results)))
    assert not (results / "demo").exists()
    for path, said in zip(folders, ("tracked: ", "replaced: "), strict=True):
        run(FiguresConfig((path,), results=str(results)))
        assert f"{said}{results / 'demo' / 's0.json'}" in capsys.readouterr().out


def test_families_are_compared_where_all_runs_have_them(make_run, results):
    TrackedRun.of(make_run(0, [1, 0, 1, 0], [1, 1, 1, 1])).write(results / "demo" / "s0.json")
    TrackedRun.of(make_run(1, [1], [1])).write(results / "one" / "s1.json")
    both = LIST.replace("{ours: demo}", "{ours: demo, one: one}")
    (results / "figures.yaml").write_text(both)
    with refuses("tracked-runs-unequal", "ours, one"):
        redraw(results)
    (results / "figures.yaml").write_text(both.replace("families: true", "families: false"))
    assert "| one | 1 |" in redraw(results)[results.parent / "docs" / "page.md"]


def test_results_may_be_the_present_folder(make_run, results, monkeypatch):
    monkeypatch.chdir(results)
    run(FiguresConfig((str(make_run(0, [1], [1]).path),), results="."))
    assert (results.parent / "docs" / "demo.svg").is_file()


def test_a_damaged_folder_of_results_is_refused(make_run, results, tmp_path):
    with refuses("tracked-run-missing"):
        redraw(results)
    path = results / "demo" / "s0.json"
    TrackedRun.of(make_run(0, [1], [1])).write(path)
    content = json.loads(path.read_text())
    unequal = content["course"] | {"iteration": [1.0]}
    miscounted = content["after"] | {"episodes": "0"}
    for change in (
        {"format": "other"}, {"seed": "x"}, {"course": {}}, {"more": 1}, {"course": unequal}, {"after": miscounted},
        {"after": content["after"] | {"episodes": "x"}}, {"course": {name: [] for name in content["course"]}},
        {"course": content["course"] | {"eval/success": [1.0, math.inf, None]}}, {"seed": 1},
        {"after": content["after"] | {"families": {"push": [2, 1], "pick": [-1, 0]}}},
        {"course": content["course"] | {"eval/success": [7.0, 0.5, None]}},
        {"course": content["course"] | {"time/elapsed": [-60.0, 60.0, 120.0]}},
        {"course": content["course"] | {"iteration": [3.0, 2.0, 1.0]}},
        {"after": content["after"] | {"purpose": "nonsense"}},
    ):  # fmt: skip
        path.write_text(json.dumps(content | change))
        with refuses("tracked-run-damaged"):
            redraw(results)
    path.write_text(json.dumps(content))
    (tmp_path / "docs" / "page.md").write_text("# Page\n")
    with refuses("table-place-missing"):
        redraw(results)
    for listed, code in (("a: [", "config-damaged"), ("a: 1", "value-wrong-type"), ("a: {titel: x}", "key-unknown")):
        (results / "figures.yaml").write_text(listed)
        with refuses(code):
            redraw(results)
    for given, other, code in (
        ("docs/page.md", "docs/none.md", "table-place-missing"), ("docs/page.md", "docs", "table-place-missing"),
        ("docs/demo.svg", "''", "figure-incomplete"), ("{ours: demo}", "{}", "figure-incomplete"),
    ):  # fmt: skip
        (results / "figures.yaml").write_text(LIST.replace(given, other))
        with refuses(code):
            redraw(results)
    with refuses("name-invalid"):
        check_figures(FiguresConfig(group="../elsewhere", results=str(results)))
    with refuses("figures-missing"):
        check_figures(FiguresConfig(results=str(tmp_path / "docs")))


def test_a_run_that_does_not_fit_replaces_none(make_run, results, tmp_path):
    """Evaluated less often than the others of its group."""
    folders = tuple(str(make_run(seed, [1, 0, 0, 0], [1, 1, 0, 1]).path) for seed in (0, 1))
    run(FiguresConfig(folders, results=str(results)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = make_run(0, [1, 0, 0, 0], [1, 1, 1, 1])
    rows = other.metrics.read_text().splitlines()
    other.metrics.write_text("\n".join([*rows[:2], rows[2].replace("eval/success", "other")]) + "\n")
    for call in (run, check_figures):
        with refuses("tracked-runs-unequal"):
            call(FiguresConfig((str(other.path),), results=str(results)))
    assert {path: path.read_bytes() for path in before} == before


def test_a_table_without_an_end_takes_no_other_text(results, make_run, tmp_path):
    run(FiguresConfig((str(make_run(0, [1, 0, 0, 0], [1, 1, 0, 1]).path),), results=str(results)))
    page = tmp_path / "docs" / "page.md"
    text = page.read_text()
    page.write_text("<!-- table: demo -->\n\n# What somebody wrote\n\n" + text)
    with refuses("table-place-missing"):
        redraw(results)
    page.write_text(text.replace("<!-- end of table -->", "", 1) + "<!-- table: other -->\n<!-- end of table -->\n")
    with refuses("table-place-missing"):
        redraw(results)


def test_the_documentation_shows_what_its_tracked_runs_say():
    """Every number of these tables and every point of these plots is that of a tracked run."""
    for path, text in redraw(REPOSITORY / "results").items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} differs: run `embodied-rl figures`"
