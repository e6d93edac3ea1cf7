"""Success in the text of pages: that of the tracked runs and evaluations whose tables and plots a page shows.

Tables between marks are drawn from the same files, which `tests/commands/test_figures.py` compares.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import pytest

from embodied_rl.reports.figures import read_evaluation, read_figures, read_group
from embodied_rl.reports.report import Rate
from embodied_rl.reports.statistics import find_difference, mean_interval
from embodied_rl.reports.tracked_run import Outcomes, TrackedRun

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
DRAWN = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)
SHARE = re.compile(r"((?:\d+\.\d(?:, | and | to | against | → ))*\d+\.\d) %")
"""Percentages with a decimal, one or a list of them."""
INTERVAL = re.compile(r"\[[−-]?\d+\.\d, \d+\.\d\]")
OTHER = {
    "docs/measurements.md": "benchmarks, with their commands",
    "docs/recipes.md": "what others published, with the source",
    "docs/judges.md": "scores of the shipped critic by `critic eval`",
    "docs/rewards/embedded.md": "the same",
    "docs/ros2.md": "messages, not success",
    "docs/scoring.md": "simulated courses of training, which a benchmark draws",
    "docs/simulators/tabletop_warp.md": "pixels",
}
"""Page whose percentages are not success of tracked runs → what they are."""
COUNTS = {"docs/deploy.md": (14, 16), "docs/simulators/libero.md": (28, 30)}
"""Page → successes and episodes that it gives beside their percentage, without a tracked file."""
ALSO = {
    "docs/rewards/rises.md": ("rewards_rises", "rewards_sparse_progress"),
    "docs/tutorial_algorithm.md": ("tutorial_leave_one_out", "tutorial_grpo"),
    "docs/example_plugin/README.md": ("example_plugin",),
    **{f"docs/tutorial_{name}.md": (f"tutorial_{name}",) for name in ("policy", "reward", "dataset", "simulator")},
}
"""Page without a table → groups that its text is about."""
PAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md") if ".venv" not in path.parts)


def list_groups(page: str) -> Iterator[str]:
    """Yield the groups of the tables and plots that a page shows, and those that it is said to be about."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, figure in read_figures(RESULTS).items():
        if f"<!-- table: {name} -->" in text:
            yield from (*figure.runs.values(), *figure.evaluations.values())
    yield from ALSO.get(page, ())


def say(mean: float, low: float | None, high: float | None) -> set[str]:
    """Return how a page may write a share and its interval."""
    interval = () if low is None or high is None else (f"[{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−"),)
    return {f"{100 * mean:.1f}", *interval}


def say_rates(outcomes: Outcomes) -> set[str]:
    rates = [outcomes.rate(), *map(outcomes.rate, outcomes.families)]
    return set().union(*(say(rate.rate, rate.low, rate.high) for rate in rates))


def say_group(group: str) -> set[str]:
    """Return what a page may write of a group: of each run, of its mean, and of the evaluations while training."""
    if not (runs := read_group(RESULTS, group)):
        return say_rates(read_evaluation(RESULTS, group).outcomes)
    found = set().union(*(say_rates(each) for run in runs for each in (run.before, run.after)))
    for successes in ([run.before.rate().rate for run in runs], [run.after.rate().rate for run in runs]):
        mean = mean_interval(successes)
        found |= say(mean.mean, mean.low, mean.high)
    return found | {f"{100 * each:.1f}" for run in runs for each in run.course["eval/success"] if each is not None}


def say_four_families() -> set[str]:
    """Return what docs/algorithms/dsrl.md writes of four families on a simulated robot."""

    def average(kind: str, before: bool = False) -> list[float]:
        groups = [read_group(RESULTS, f"robot_{kind}_{name}") for name in ("push", "pick", "put", "press")]
        pick = (lambda run: run.before) if before else (lambda run: run.after)
        return [fmean(pick(run).rate().rate for run in seed) for seed in zip(*groups, strict=True)]

    learned, cloned = average("average"), average("filtered")
    paired = mean_interval([one - other for one, other in zip(learned, cloned, strict=True)])
    means = (fmean(each) for each in (learned, cloned, average("dsrl"), average("filtered", before=True)))
    found = {f"{100 * mean:.1f}" for mean in means} | say(*find_difference(learned, cloned))
    return found | say(paired.mean, paired.low, paired.high)


def find_untracked(page: str, text: str) -> list[str]:
    """Return the percentages and intervals of a text, outside of drawn tables, that nothing tracked gives."""
    known = set().union(*map(say_group, list_groups(page)))
    if page == "docs/algorithms/dsrl.md":
        known |= say_four_families()
    text = DRAWN.sub("", text)
    if page in COUNTS:
        rate = Rate.from_count(*COUNTS[page])
        known |= say(rate.rate, rate.low, rate.high)
    written = [
        *INTERVAL.findall(text),
        *(each for found in SHARE.findall(text) for each in re.findall(r"\d+\.\d", found)),
    ]
    return [each for each in written if each not in known]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHER])
def test_success_in_the_text_is_tracked(page: str) -> None:
    assert find_untracked(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_another_figure_is_noticed() -> None:
    runs: Sequence[TrackedRun] = read_group(RESULTS, "headline")
    success = f"{100 * runs[0].after.rate().rate:.1f}"
    assert find_untracked("docs/results.md", f"It came to {success} %.") == []
    assert find_untracked("docs/results.md", f"It came to 1.3, {success} and 2.7 % [1.1, 98.9].") == [
        "[1.1, 98.9]",
        "1.3",
        "2.7",
    ]
    assert find_untracked("docs/deploy.md", "It came to 77.7 %, 14 of 16, 87.5 % [64.0, 96.5].") == ["77.7"]


def test_pages_of_other_figures_have_some() -> None:
    for page in OTHER:
        text = DRAWN.sub("", (ROOT / page).read_text(encoding="utf-8"))
        assert SHARE.search(text) or INTERVAL.search(text), f"{page} needs no exception"
