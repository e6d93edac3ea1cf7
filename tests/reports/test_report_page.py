"""What people see in report.html."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from embodied_rl.interfaces.sim import Task
from embodied_rl.reports.page import format_duration
from embodied_rl.reports.report import Report
from embodied_rl.reports.report_page import (
    count_failures,
    draw_learning_curves,
    make_failure_table,
    make_lead,
    make_title,
    write_page,
)
from embodied_rl.reports.result import EpisodeResult

TRAINED = {
    "kind": "training", "policy": "pocket", "algorithm": "ppo", "simulator": "desk", "split": "eval", "seed": 3,
    "simulators": [{"name": "desk", "depends_on": {"mujoco": "3.3"}}], "run": "runs/<demo>", "commit": None,
    "command": "embodied-rl train task='<b>'", "packages": {"torch": "2.13"}, "python": "3.11.7", "load": [2.25, 1, 1],
    "hardware": {"cores": 2, "cpu": "EPYC", "memory_gib": 23.5}, "load_at_end": [3.5, 1, 1], "seconds": 200.4,
}  # fmt: skip
DROPPED = "dropped <b>"


def make_report(spec, outcomes, failure=DROPPED, metadata=TRAINED, **changes):
    """Episodes of tasks 0, 1 and 2 in turn; of two families."""
    results = [
        EpisodeResult(
            i, i % 3, 100 + i, "train", bool(good), bool(good), 10 + i, float(good), 0.5, None, None,
            "" if good else failure,
        )
        for i, good in enumerate(outcomes)
    ]  # fmt: skip
    return Report.from_results([replace(result, **changes) for result in results], spec, metadata)


@pytest.fixture
def before(spec):
    return make_report(spec, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1], failure="time limit")


@pytest.fixture
def after(spec):
    return make_report(spec, [1, 1, 1, 1, 1, 1, 1, 1, 0, 0])


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
def page(after, before, tmp_path):
    rows = [
        {"iteration": i, "rollout/success": i / 10, "update/kl": 0.01 * i, "update/entropy": 0.0} for i in range(1, 8)
    ]
    rows[3] |= {"eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {name: tmp_path / f"{name}.mp4" for name in ("grid", "worst", "pair_0", "pair_1")}
    for name, file in files.items():
        file.write_bytes(name.encode())
    files["pair_0"].with_suffix(".jpg").write_bytes(b"still")
    told = {"metrics": tmp_path / "metrics.jsonl", "videos": [*files.values()], "configuration": "seed: 3  # <b>"}
    write_page(tmp_path / "report.html", after, before=before, **told)
    return (tmp_path / "report.html").read_text()


def words(page):
    return re.sub(r"\s+", " ", Page(page).words)


def shown(tmp_path, report, **told):
    write_page(tmp_path / "report.html", report, **told)
    return words((tmp_path / "report.html").read_text())


def test_the_page_loads_nothing_and_runs_nothing(page):
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[\w+/=]+", "", page))
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "b>"} & set(parsed.tags)
    assert all(value.startswith("data:") for name, value in parsed.attributes if name in ("src", "href"))
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]


@pytest.mark.parametrize("text", ["runs/<demo>", "task='<b>'", "dropped <b>", "seed: 3 # <b>"])
def test_text_from_outside_is_escaped(page, text):
    assert text in words(page)


def test_names_of_tasks_are_escaped_and_a_scorer_has_a_section(spec, tmp_path):
    row = {"iteration": 1, "reward/asked": 9.0, "reward/valid": 0.0, "reward/down": 1.0, "rollout/success": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    named = replace(spec, tasks=(Task("pick <i>", "family <i>"), *spec.tasks[1:]))
    judged = make_report(named, [1, 0, 1], metadata=TRAINED | {"reward": "terminal"})
    text = shown(tmp_path, judged, metrics=tmp_path / "metrics.jsonl")
    assert text.count("family <i>") == 1 and "pick <i>" in text
    assert "iteration 1 trained without any reward: no score came in time" in text


def test_the_gain_stands_first_with_intervals_and_the_paired_test(page):
    """8 of 10 after 2 of 10, Wilson's intervals; 7 gained and 1 lost: p = 2 (1 + 8) / 2^8."""
    text = words(page)
    assert "20.0 → 80.0 %" in text and "+60.0 points, 95 % intervals [5.7, 51.0] and [49.0, 94.3] %" in text
    assert "p = 0.07exact McNemar test on 10 equal episodes: 7 solved only after training, 1 only before" in text
    assert text.index("20.0 → 80.0 %") < text.index("By family")


def test_episodes_that_are_not_the_same_are_not_tested(before, spec, tmp_path):
    others = make_report(spec, [1] * 10, metadata=TRAINED | {"simulators": [{"name": "kitchen"}]})
    text = shown(tmp_path, others, before=before)
    assert "not pairedtheir simulators differ" in text and "McNemar" not in text
    assert "No episode was filmed before training." in text


def test_films_of_the_same_episodes_say_how_each_ended(page):
    text = words(page)
    assert "pick red: success → success" in text and "pick blue: failure (time limit) → success" in text
    sources = [value for name, value in Page(page).attributes if name == "src"]
    contents = [base64.b64decode(source.removeprefix("data:video/mp4;base64,")) for source in sources]
    assert contents == [b"pair_0", b"pair_1", b"grid", b"worst"]
    assert "Of all 10 episodes 7 were gained, 1 lost, 1 solved both times, 1 never" in text
    posters = [value for name, value in Page(page).attributes if name == "poster"]
    assert posters == ["data:image/jpeg;base64," + base64.b64encode(b"still").decode()]


def test_tables_have_the_values_before_the_gain_and_now(page):
    """pick: tasks 0 and 1, seven episodes; of the first three tasks' ten episodes 0, 3, 6, 9 are "pick red"."""
    cells = re.findall(r"<tr>(<td .*?</td>)</tr>", page)
    rows = {row[0]: row for row in ([Page(cell).words for cell in re.findall(r"<td .*?</td>", r)] for r in cells)}
    assert rows["pick red"][2:] == ["50.0 % [15.0, 85.0]", "+25.0", "75.0 % [30.1, 95.4]", "4", "14.5"]
    assert rows["push red"][2:] == ["0.0 % [0.0, 56.1]", "+66.7", "66.7 % [20.8, 93.9]", "3", "15.0"]
    assert rows[DROPPED][2:4] == ["0 of 10", "2 of 10"] and rows["time limit"][2:4] == ["8 of 10", "0 of 10"]


def test_each_cell_names_its_column_so_that_rows_can_be_stacked(page):
    headings = [re.findall(r"<t[hd]>(.*?)</t[hd]>", head) for head in re.findall(r"<thead>.*?</thead>", page)]
    bodies = re.findall(r"<tbody>.*?</tbody>", page)
    assert len(headings) == len(bodies) == 3
    for names, body in zip(headings, bodies, strict=True):
        for row in re.findall(r"<tr>.*?</tr>", body):
            assert re.findall(r'data-label="(.*?)"', row) == names
    parsed = Page(page)
    assert parsed.tags.count("main") == 1
    assert parsed.attributes.count(("tabindex", "0")) == parsed.tags.count("table") > 0, "can be scrolled by keyboard"


def test_what_means_nothing_to_a_reader_is_left_out(after, tmp_path, spec):
    text = shown(tmp_path, after)
    assert "filmed before" not in text and "Reward" not in text and "Learning curves" not in text
    assert "Videos" not in text and "oughness" not in text
    assert "the end" not in text.partition("Why")[0] and text.count("80.0 %") == 1
    text = shown(tmp_path, make_report(spec, [1] * 10, success_at_end=False, metadata={}))
    assert "No episode failed." in text and "commandunknown" in text and "machineunknown" in text
    assert "0.0 %success that lasts to the end, [0.0, 27.8] %" in text and "at the end" in text


def test_the_origin_says_what_was_typed_where_and_how_long(page):
    text = words(page)
    for part in ("commitunknown", "seed3", "Python 3.11.7, torch 2.13", "desk (mujoco 3.3)", "3 min 20 s of training"):
        assert part in text
    assert "EPYC, 2 cores, no GPU, 23.5 GiB of memory" in text and "2.2 at the start, 3.5 at the end" in text
    assert "<details><summary>Whole configuration</summary><pre>seed: 3" in page


def test_failures_are_counted_by_kind_the_most_frequent_first(spec):
    texts = ("late", None, "fell", "late", "fell", "late")
    results = [replace(make_report(spec, [0]).episodes[0], failure=text) for text in texts]
    assert list(count_failures(results).items()) == [("late", 3), ("fell", 2), ("not told", 1)]
    assert make_failure_table(make_report(spec, [1, 0], None).episodes, None).startswith("<p>1 of 2 episodes failed.")


def test_films_of_failures_stand_with_their_kind_and_task(spec, tmp_path):
    report = make_report(spec, [1, 0, 0], "fell <over>")
    film = tmp_path / "failure_1.mp4"
    film.write_bytes(b"film")
    write_page(tmp_path / "report.html", report, videos=[film])
    page = (tmp_path / "report.html").read_text()
    section = page.partition("Why episodes failed")[2].partition("<h2>")[0]
    task = [*report.tasks][1]
    assert f"<figcaption>fell &lt;over&gt;: {task}</figcaption><video" in section
    assert page.count("<video") == 1, "not among the other films"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (TRAINED, "Training of pocket by ppo in desk"),
        (
            {"kind": "cloning", "policy": "act", "source": "data/demos", "simulator": "desk"},
            "Cloning of data/demos by act in desk",
        ),
        (
            {"kind": "evaluation", "checkpoint": "runs/a", "simulator": "desk", "split": "vision"},
            "Evaluation of runs/a in desk",
        ),
        (
            {"kind": "evaluation", "checkpoint": "expert", "simulator": "desk", "benchmark": "libero"},
            "Evaluation of expert in benchmark libero",
        ),
        ({"run": "runs/old", "split": "eval"}, "Evaluation of runs/old"),
    ],
)
def test_the_title_says_what_the_report_is_of(metadata, expected):
    assert make_title(metadata) == expected


def test_the_line_below_says_which_episodes(spec, after):
    assert make_lead(after) == "10 episodes · never trained on · split eval"
    told = {"kind": "evaluation", "split": "vision", "task": "pick red", "ablate": "image"}
    assert make_lead(make_report(spec, [1], metadata=told)) == "1 episodes · split vision · pick red · without image"
    part = {"benchmark": "libero", "complete": False, "split": "eval"}
    assert make_lead(make_report(spec, [1, 1], metadata=part)) == "2 episodes · not all of the benchmark"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(4.24, "4.2 s"), (59.94, "59.9 s"), (200.4, "3 min 20 s"), (3599.7, "1 h 00 min"), (7380, "2 h 03 min")],
)
def test_durations_are_told_in_round_numbers(seconds, expected):
    assert format_duration(seconds) == expected


def test_curves_are_drawn_where_there_are_values(page):
    parsed = Page(page)
    assert parsed.tags.count("svg") == 2, (
        "success and KL have values, the entropy is 0 throughout, the others have none"
    )
    assert parsed.tags.count("circle") == 1 + 2, "one evaluation, and the reports before and after training"


def test_figures_of_no_iteration_are_drawn_at_0(after):
    rows = [{"rollout/success": 0.2}, {"iteration": 0, "rollout/success": 0.2}, {"iteration": 5, "rollout/success": 1}]
    line = re.search(r'<polyline points="([^"]*)"', draw_learning_curves(rows, None, after)).group(1).split()
    assert line[0] == line[1] != line[2]


def read_colours(page, dark):
    """The colours that the page's style names for a light or a dark screen, as linear red, green and blue."""
    light, _, rest = page.partition("<style>")[2].partition("@media screen and (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#\w+)", light)) | (dict(re.findall(r"--(\w+): (#\w+)", rest)) if dark else {})
    wide = {
        name: "#" + "".join(2 * digit for digit in text[1:]) if len(text) == 4 else text for name, text in found.items()
    }
    channels = {name: [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)] for name, text in wide.items()}
    return {
        name: [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in row]
        for name, row in channels.items()
    }


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_the_contrast_that_wcag_asks_for(page, dark):
    """4.5 of text to what is behind it (WCAG 2.2, 1.4.3), by its relative luminance."""
    colours = read_colours(page, dark)
    luminance = {name: 0.2126 * r + 0.7152 * g + 0.0722 * b for name, (r, g, b) in colours.items()}
    for text in ("ink", "soft", "accent"):
        for behind in ("page", "raised"):
            low, high = sorted([luminance[text], luminance[behind]])
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)


def test_screen_readers_are_told_what_is_what(page):
    parsed = Page(page)
    assert ("lang", "en") in parsed.attributes and re.search(r"<title>[^<]+</title>", page)
    headings = [tag for tag in parsed.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == "h1" and set(headings[1:]) == {"h2"}
    assert re.findall(r"<svg(?! viewBox=\"[^\"]*\" role=\"img\" aria-label=\"[^\"]+\")", page) == []
    assert not re.search(r"<th[^>]*></th>", page), "a heading without words"
    regions = re.findall(r'role="region" aria-label="([^"]+)"', page)
    assert len(regions) == len(set(regions)) == parsed.tags.count("table")
    assert len(re.findall(r"<figcaption>[^<]+</figcaption><video controls", page)) == parsed.tags.count("video") > 0


def test_on_paper_nothing_is_split_folded_or_hidden(page):
    style = re.search(r"@media print {\n(.*?)\n}\n", page, re.DOTALL).group(1)
    rules = {rule: set(names.strip().split(", ")) for names, rule in re.findall(r"([^{}]+){ ([^{}]+); }", style)}
    assert {".card", "figure", "tr", ".strip"} <= rules["break-inside: avoid"]
    assert {"h2", "thead", "figcaption", "summary"} <= rules["break-after: avoid"]
    assert rules["content-visibility: visible"] == {"details::details-content"}, "what is folded on the screen"
    assert rules["overflow: visible"] == {".scroll"}, "what is scrolled to on the screen"
    assert rules["print-color-adjust: exact"] == {"*"}, "bars and legends are backgrounds"
    assert rules["display: none"] == {"video::-webkit-media-controls"}, "which hide the still"
    assert {"details", "summary", "figure", "figcaption", "h2", "thead", "tr"} <= set(Page(page).tags)
    assert page.index("@media print {") > page.index("@media (max-width"), "the later rules are in force"
