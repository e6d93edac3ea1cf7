"""Two reports are paired episode by episode, and only where their episodes are equal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy  # which imports its parts when they are used

from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.reports.pairing import index_outcomes, pair_reports
from embodied_rl.reports.report import Report, read_purpose
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.testing.fake_simulator import FakeSimulator
from tests.support.refusals import refuses

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


def test_tasks_are_identified_by_name() -> None:
    turned = replace(SPEC, tasks=SPEC.tasks[::-1])
    one = report([result(0, 5, True), result(1, 5, False), result(2, 5, True)])
    other = report([result(2, 5, True), result(0, 5, True)], spec=turned)  # task 0, task 2
    test = pair_reports(one, other).test
    assert (test.episodes, test.only_first, test.only_second) == (2, 0, 0)


@pytest.mark.parametrize(
    ("other", "data"),
    [
        ({**SUITE, "suite": "spatial"}, "suite 'goal' and 'spatial'"),
        ({**SUITE, "name": "tabletop"}, "name 'libero' and 'tabletop'"),
        ({**SUITE, "settle": 10}, "settle None and 10"),
    ],
)
def test_other_simulators_are_refused(other: dict[str, Any], data: str) -> None:
    with refuses("reports-not-comparable", data):
        pair_reports(report(states(0)), report(states(0), other))


def test_suites_of_one_benchmark_are_distinguished() -> None:
    suites = [SUITE, {**SUITE, "suite": "spatial"}]
    both = [result(0, 0, True, 1, simulator=0), result(1, 0, False, 1, simulator=1)]
    spec = replace(SPEC, tasks=(Task("open", "a"), Task("open (2)", "a")))
    pairing = pair_reports(report(both, *suites, spec=spec), report(both[1:], *suites, spec=spec))
    assert (pairing.test.episodes, pairing.sizes) == (1, (2, 1))


@pytest.mark.parametrize(
    ("found", "code", "data"),
    [
        (report([*states(0), states(0)[7]]), "report-damaged", "'task 0', initial state 7 with seed 0"),
        (report(states(0), {**SUITE, "seeded": False}), "simulator-without-seeds", "'libero'"),
        (report(states(0), SUITE, SUITE), "report-without-simulator", ""),
        (Report.from_results(states(0), SPEC, {}), "report-without-simulator", ""),
        (replace(report(states(0)), metadata={"simulators": "libero"}), "report-without-simulator", ""),
    ],
)
def test_reports_that_do_not_identify_episodes_are_refused(found: Report, code: str, data: str) -> None:
    with refuses(code, data):
        index_outcomes(found)
    for place, pair in {"first": (found, report(states(0))), "second": (report(states(0)), found)}.items():
        with refuses(code, place, data):
            pair_reports(*pair)


def test_other_seeds_and_splits_are_refused_and_versions_remarked() -> None:
    first = report(states(0))
    itself = pair_reports(first, report(states(0)[::-1]))
    assert itself.sizes == (150, 150) and itself.test.p_value == 1.0 and not itself.remark
    with refuses("reports-not-comparable", "no episode"):
        pair_reports(first, report([replace(each, seed=1) for each in states(0)]))
    with refuses("reports-not-comparable", "train and vision"):
        pair_reports(first, report([replace(each, split="vision") for each in states(0)]))
    moved = {**SUITE, "assets": "/another/place"}
    assert pair_reports(first, report(states(0), moved)).test.episodes == 150, "the same files in another folder"
    newer = {**SUITE, "depends_on": {"libero": "0.2"}}
    assert pair_reports(first, report(states(0), newer)).remark == "libero 0.1 and 0.2"


@pytest.mark.parametrize(
    ("first", "second", "data"),
    [
        ({}, {"episodes_for": "publish"}, "report and publish"),
        ({"episodes_for": "publish"}, {"episodes_for": "report"}, "publish and report"),
        ({"benchmark": "libero_goal"}, {"episodes_for": "publish"}, "benchmark and publish"),
    ],
)
def test_episodes_of_different_purposes_are_never_paired(first: dict, second: dict, data: str) -> None:
    reports = [replace(report(states(0)), metadata={"simulators": [SUITE], **each}) for each in (first, second)]
    with refuses("reports-not-comparable", data):
        pair_reports(*reports)
    for new, old in ((first, {"episodes_for": read_purpose(first)}), (second, second)):
        same = [replace(report(states(0)), metadata={"simulators": [SUITE], **each}) for each in (new, old)]
        assert pair_reports(*same).test.episodes == 150


def test_random_reports_against_brute_force() -> None:
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
        expected = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
        assert test.p_value == pytest.approx(expected, rel=1e-9)


def test_unequal_delays_are_refused_and_unequal_strategies_remarked() -> None:
    def under(**said: Any) -> Report:
        made = report(states(0))
        return replace(made, metadata=made.metadata | said)

    late = {"delay": 2, "strategy": "naive", "replan": 2}
    for first, second in ((under(), under(**late)), (under(delay=0), under(**late))):
        with refuses("reports-not-comparable", "0 and 2"):
            pair_reports(first, second)
    assert pair_reports(under(), under(delay=0)).remark == ""
    assert pair_reports(under(**late), under(**late)).remark == ""
    remark = pair_reports(under(**late), under(**late | {"strategy": "stop", "replan": 5})).remark
    assert remark == "delay 2, naive, every 2 and delay 2, stop, every 5"
