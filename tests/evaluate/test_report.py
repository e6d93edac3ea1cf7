"""What programs read from report.json, and what people see in report.html."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from embodied_rl.evaluate.page import draw_learning_curves, write_page
from embodied_rl.evaluate.protocol import EpisodeResult
from embodied_rl.evaluate.report import Report
from embodied_rl.evaluate.statistics import wilson_interval


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


def test_json_is_read_back(report, tmp_path):
    assert Report.read(report.write(tmp_path)) == report


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"success": {"rate": 1}}'])
def test_a_file_that_is_no_report_is_named(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"report\.json is not a report"):
        Report.read(tmp_path / "report.json")


def test_the_hash_of_episodes_tells_lists_apart_whatever_their_order(results, spec):
    def hashed(listed):
        return Report.from_results(listed, spec, {}).metadata["episodes_sha256"]

    assert hashed(results) == hashed(results[::-1])
    assert hashed(results) != hashed(results[:-1])
    assert hashed(results) != hashed([*results[:-1], result(4, 2, False, seed=7)])


def test_the_hash_of_episodes_tells_simulators_settings_apart_but_not_machines(results, spec):
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


class Page(HTMLParser):
    """Collects text, tags and attributes, and complains about what is not closed."""

    VOID = frozenset({"meta", "br", "line", "polyline", "polygon", "circle", "path"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], ""
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.fixture
def page(report, tmp_path):
    rows = [
        {"iteration": i, "rollout/success": i / 10, "update/kl": 0.01 * i, "update/entropy": 0.0} for i in range(1, 8)
    ]
    rows[3] |= {"eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "grid.mp4").write_bytes(b"first video")
    (tmp_path / "worst.mp4").write_bytes(b"second video")
    videos = [tmp_path / "grid.mp4", tmp_path / "worst.mp4"]
    write_page(tmp_path / "report.html", report, before=report, metrics=tmp_path / "metrics.jsonl", videos=videos)
    return (tmp_path / "report.html").read_text()


def test_the_page_loads_nothing_and_runs_nothing(page):
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[\w+/=]+", "", page))
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert all(value.startswith("data:") for name, value in parsed.attributes if name in ("src", "href"))
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]


def test_the_page_holds_figures_videos_and_curves(page):
    import base64

    parsed = Page(page)
    sources = [value for name, value in parsed.attributes if name == "src"]
    contents = [base64.b64decode(source.removeprefix("data:video/mp4;base64,")) for source in sources]
    assert contents == [b"first video", b"second video"]
    assert "75.0 % [30.1, 95.4]" in parsed.words and "pick blue" in parsed.words and "before" in parsed.words
    assert parsed.tags.count("svg") == 2, (
        "success and KL have values, the entropy is 0 throughout, the others have none"
    )
    assert parsed.tags.count("circle") == 1, "one evaluation"
    assert "runs/<demo>" in parsed.words, "text from outside is escaped"


def test_the_page_begins_with_checkpoint_split_and_size(report, tmp_path):
    write_page(tmp_path / "report.html", report)
    assert "runs/<demo> · split eval · 5 episodes" in Page((tmp_path / "report.html").read_text()).words
    write_page(tmp_path / "report.html", replace(report, metadata={"run": "a run"}))
    assert "a run · split – · 5 episodes" in Page((tmp_path / "report.html").read_text()).words


def test_figures_of_no_iteration_are_drawn_at_0():
    """As those of an evaluation before training may be."""
    rows = [{"rollout/success": 0.2}, {"iteration": 0, "rollout/success": 0.2}, {"iteration": 5, "rollout/success": 1}]
    line = re.search(r'<polyline points="([^"]*)"', draw_learning_curves(rows)).group(1).split()
    assert line[0] == line[1] != line[2]


def test_a_page_without_curves_and_videos_leaves_their_sections_out(report, tmp_path):
    write_page(tmp_path / "report.html", report)
    parsed = Page((tmp_path / "report.html").read_text())
    assert "Learning curves" not in parsed.words and "Videos" not in parsed.words and "60.0 %" in parsed.words
