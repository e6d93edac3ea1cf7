"""Two reports are paired episode by episode, and only where their episodes are equal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.reports.pairing import index_outcomes, pair_reports
from embodied_rl.reports.report import Report, read_purpose
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import adjust_by_holm
from embodied_rl.testing.fake_simulator import FakeSimulator

SUITE = {"name": "libero", "suite": "goal", "seeded": True, "depends_on": {"libero": "0.1"}}
SPEC = replace(
    FakeSimulator.spec_of(FakeSimulator.Config()), tasks=tuple(Task(f"task {n}", "family", 50) for n in range(3))
)


def result(task: int, seed: int, success: bool, state: int | None = None, **other: Any) -> EpisodeResult:
    return EpisodeResult(0, task, seed, "train", success, success, 9, 0.0, 0.0, state, **other)


def report(results: list[EpisodeResult], *simulators: dict[str, Any], spec: SimulatorSpec = SPEC) -> Report:
    return Report.from_results(results, spec, {"simulators": list(simulators) or [SUITE]})


def states(seed: int) -> list[EpisodeResult]:
    """Fifty initial states of three tasks, all with one seed, as LIBERO's benchmark has them."""
    drawn = np.random.default_rng(seed).random((3, 50)) < 0.6
    return [result(task, 0, bool(drawn[task, state]), state) for task in range(3) for state in range(50)]


def test_a_report_agrees_with_itself_on_every_initial_state() -> None:
    pairing = pair_reports(report(states(0)), report(states(0)[::-1]))
    assert (pairing.test.episodes, pairing.test.only_first, pairing.test.only_second) == (150, 0, 0)
    assert pairing.test.p_value == 1.0 and pairing.sizes == (150, 150) and not pairing.remark


def test_all_against_nothing_is_found() -> None:
    won, lost = (report([replace(each, success=success) for each in states(0)]) for success in (True, False))
    test = pair_reports(won, lost).test
    assert (test.only_first, test.only_second) == (150, 0) and test.p_value < 1e-40


def test_tasks_are_told_by_name_not_by_number() -> None:
    """A report of another order of tasks, and one that ran only some of them, pair with what is equal."""
    turned = replace(SPEC, tasks=SPEC.tasks[::-1])
    one = report([result(0, 5, True), result(1, 5, False), result(2, 5, True)])
    other = report([result(2, 5, True), result(0, 5, True)], spec=turned)  # task 0, task 2
    test = pair_reports(one, other).test
    assert (test.episodes, test.only_first, test.only_second) == (2, 0, 0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({**SUITE, "suite": "spatial"}, "their simulators differ: suite 'goal' and 'spatial'"),
        ({**SUITE, "name": "tabletop"}, "their simulators differ: name 'libero' and 'tabletop'"),
        ({**SUITE, "settle": 10}, "their simulators differ: settle None and 10"),
    ],
)
def test_other_simulators_are_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        pair_reports(report(states(0)), report(states(0), other))


def test_suites_of_one_benchmark_are_told_apart() -> None:
    """Tasks of equal name, seed and state in two suites are two episodes."""
    suites = [SUITE, {**SUITE, "suite": "spatial"}]
    both = [result(0, 0, True, 1, simulator=0), result(1, 0, False, 1, simulator=1)]
    spec = replace(SPEC, tasks=(Task("open", "a"), Task("open (2)", "a")))
    pairing = pair_reports(report(both, *suites, spec=spec), report(both[1:], *suites, spec=spec))
    assert (pairing.test.episodes, pairing.sizes) == (1, (2, 1))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report([*states(0), states(0)[7]]), "'task 0', initial state 7 with seed 0 stands there twice"),
        (report(states(0), {**SUITE, "seeded": False}), "'libero' does not take seeds"),
        (report(states(0), SUITE, SUITE), "does not say which episode ran in which"),
        (Report.from_results(states(0), SPEC, {}), "does not say which simulator"),
        (replace(report(states(0)), metadata={"simulators": "libero"}), "does not say which simulator"),
    ],
)
def test_what_does_not_tell_its_episodes_apart_is_refused(found: Report, said: str) -> None:
    with pytest.raises(UserError, match=said):
        index_outcomes(found)
    for pair in ((found, report(states(0))), (report(states(0)), found)):
        with pytest.raises(UserError, match=said):
            pair_reports(*pair)


def test_other_seeds_splits_and_versions_are_said() -> None:
    first = report(states(0))
    with pytest.raises(UserError, match="share no episode: other tasks, seeds or initial states"):
        pair_reports(first, report([replace(each, seed=1) for each in states(0)]))
    with pytest.raises(UserError, match="their splits differ: train and vision"):
        pair_reports(first, report([replace(each, split="vision") for each in states(0)]))
    moved = {**SUITE, "assets": "/another/place"}
    assert pair_reports(first, report(states(0), moved)).test.episodes == 150, "the same files in another folder"
    newer = {**SUITE, "depends_on": {"libero": "0.2"}}
    assert pair_reports(first, report(states(0), newer)).remark == "libero 0.1 and 0.2"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {"episodes_for": "publish"}, "report and publish"),
        ({"episodes_for": "publish"}, {"episodes_for": "report"}, "publish and report"),
        ({"benchmark": "libero_goal"}, {"episodes_for": "publish"}, "benchmark and publish"),
    ],
)
def test_episodes_of_different_purposes_are_never_paired(first: dict, second: dict, said: str) -> None:
    """Not even where a file claims equal seeds. Reports of before, which do not say, had those of every report."""
    reports = [replace(report(states(0)), metadata={"simulators": [SUITE], **told}) for told in (first, second)]
    with pytest.raises(UserError, match=f"their episodes are others: episodes_for is {said}"):
        pair_reports(*reports)
    for told, old in ((first, {"episodes_for": read_purpose(first)}), (second, second)):
        same = [replace(report(states(0)), metadata={"simulators": [SUITE], **each}) for each in (told, old)]
        assert pair_reports(*same).test.episodes == 150


def test_drawn_reports_against_a_search_one_by_one() -> None:
    """Every pair is found by looking through the other report, and SciPy has the p-value."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        drawn = [[], []]
        for listed in drawn:
            cells = [(task, seed, state) for task in range(3) for seed in range(2) for state in (None, 0, 1)]
            for place in rng.permutation(len(cells))[: rng.integers(1, len(cells) + 1)]:
                listed.append(result(cells[place][0], cells[place][1], bool(rng.random() < 0.5), cells[place][2]))
        same = lambda a, b: (a.task, a.seed, a.initial_state) == (b.task, b.seed, b.initial_state)  # noqa: E731
        pairs = [(a.success, b.success) for a in drawn[0] for b in drawn[1] if same(a, b)]
        if not pairs:
            continue
        test = pair_reports(report(drawn[0]), report(drawn[1])).test
        first, second = pairs.count((True, False)), pairs.count((False, True))
        assert (test.episodes, test.only_first, test.only_second) == (len(pairs), first, second)
        expected = binomtest(first, first + second).pvalue if first + second else 1.0
        assert test.p_value == pytest.approx(expected, rel=1e-9)


def test_holms_adjustment() -> None:
    """Worked by hand: the least times 4, the next times 3, never below the one before, never above 1."""
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_by_holm([0.6, 0.9]) == [1.0, 1.0] and adjust_by_holm([]) == []


def test_unequal_delays_are_no_pair_and_unequal_strategies_are_named() -> None:
    def under(**said: Any) -> Report:
        made = report(states(0))
        return replace(made, metadata=made.metadata | said)

    late = {"delay": 2, "strategy": "naive", "replan": 2}
    for first, second in ((under(), under(**late)), (under(delay=0), under(**late))):
        with pytest.raises(UserError, match="inference delays differ: 0 and 2 control steps"):
            pair_reports(first, second)
    assert pair_reports(under(), under(delay=0)).remark == ""
    assert pair_reports(under(**late), under(**late)).remark == ""
    remark = pair_reports(under(**late), under(**late | {"strategy": "stop", "replan": 5})).remark
    assert remark == "delay 2, naive, every 2 and delay 2, stop, every 5"
