"""Content and checks of report.json."""

import json
from dataclasses import replace

import pytest

from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import wilson_interval
from tests.support.refusals import refuses


def result(index, task, success, **changes):
    fields = {"seed": 100 + index, "split": "train", "steps": 10 + index, "reward": float(success), "smoothness": 0.5}
    return EpisodeResult(index=index, task=task, success=success, success_at_end=success, **(fields | changes))


@pytest.fixture
def results():
    """pick: 3 of 4 (red 2 of 2, blue 1 of 2); push: 0 of 1; open: none."""
    solved = [(0, True), (1, True), (0, True), (1, False), (2, False)]
    return [result(index, task, success) for index, (task, success) in enumerate(solved)]


@pytest.fixture
def report(results, spec):
    return Report.from_results(
        results, spec, {"checkpoint": "runs/<demo>", "split": "eval", "packages": {"torch": "2.13"}}
    )


def test_json_has_the_names_that_scripts_rely_on(report, tmp_path):
    content = json.loads(report.write(tmp_path).read_text())
    assert Report.read(tmp_path / "report.json") == report
    low, high = wilson_interval(3, 5)
    assert content["success"] == {"rate": 0.6, "low": low, "high": high, "episodes": 5}
    assert content["families"].keys() == {"pick", "push"}
    assert content["tasks"].keys() == {"pick red", "pick blue", "push red"}
    low, high = wilson_interval(3, 4)
    assert content["families"]["pick"]["success"] == {"rate": 0.75, "low": low, "high": high, "episodes": 4}
    for entry in (content, *content["families"].values(), *content["tasks"].values()):
        assert {"success", "success_at_end", "steps", "reward", "smoothness"} <= entry.keys()
        assert entry["success"].keys() == {"rate", "low", "high", "episodes"}
    assert content["steps"] == 12.0 and content["tasks"]["push red"]["steps"] == 14.0
    assert len(content["episodes"]) == 5 and content["metadata"]["packages"] == {"torch": "2.13"}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"success": {"rate": 1}}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with refuses("report-damaged", "report.json"):
        Report.read(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (lambda content: content["success"].update(rate=0.9), ["success:", "0.9 of 5", "5 with 3"]),
        (lambda content: content["success"].update(episodes=500), ["success:", "0.6 of 500", "lists 5"]),
        (lambda content: content["success"].update(high=1.5), ["success:"]),
        (lambda content: content["episodes"].pop(), ["success:", "0.6 of 5", "lists 4"]),
        (lambda content: content["families"].pop("push"), ["families", "5"]),
        (lambda content: content["tasks"]["push red"]["success"].update(rate=1.0), ["push red:", "1 of 1"]),
        (lambda content: content.update(tasks=dict(sorted(content["tasks"].items()))), ["pick blue:"]),  # order matters
    ],
)
def test_rates_that_differ_from_the_episodes_are_refused(report, tmp_path, change, data):
    """Tables show the rates, paired tests use the episodes."""
    file = report.write(tmp_path)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with refuses("report-damaged", "report.json", *data):
        Report.read(file)


def test_hash_of_episodes_ignores_their_order(results, spec):
    def hashed(listed):
        return Report.from_results(listed, spec, {}).metadata["episodes_sha256"]

    assert hashed(results) == hashed(results[::-1])
    assert hashed(results) != hashed(results[:-1])
    assert hashed(results) != hashed([*results[:-1], result(4, 2, False, seed=7)])
    states = [hashed([*results[:-1], result(4, 2, False, initial_state=state)]) for state in (None, 0, 1)]
    assert states[0] == hashed(results) and len(set(states)) == 3
    others = replace(spec, tasks=(replace(spec.tasks[0], name="pick green"), *spec.tasks[1:]))
    assert hashed(results) != Report.from_results(results, others, {}).metadata["episodes_sha256"]


def test_hash_of_episodes_includes_settings_but_not_machines(results, spec):
    def hashed(listed, *simulators):
        return Report.from_results(listed, spec, {"simulators": list(simulators)}).metadata["episodes_sha256"]

    desk = {"name": "desk", "horizon": 50, "settle": 10, "num_envs": 4, "seeded": True, "depends_on": {"mujoco": "3.3"}}
    others = ({"horizon": 60}, {"settle": 5}, {"rendering": "light"}, {"name": "kitchen"})
    assert len({hashed(results, desk), *(hashed(results, desk | change) for change in others)}) == 5
    for change in ({"num_envs": 8}, {"python": "/there/python"}, {"depends_on": {"mujoco": "3.4"}}):
        assert hashed(results, desk | change) == hashed(results, desk)
    kitchen = desk | {"name": "kitchen"}
    first, second = ([replace(each, simulator=number) for each in results] for number in (0, 1))
    assert hashed(first, desk, kitchen) == hashed(second, kitchen, desk) != hashed(first, kitchen, desk)


def test_episodes_have_split_and_conditions(report, tmp_path):
    content = json.loads(report.write(tmp_path).read_text())
    assert {(entry["split"], entry["conditions"]) for entry in content["episodes"]} == {("eval", "train")}
    for entry in content["episodes"]:  # as earlier versions wrote it
        entry["split"] = entry.pop("conditions")
        del entry["failure"]
    assert Report.from_dict(content) == report
