"""Pair the episodes of two reports. Only equal episodes of equal simulators are compared.

An episode is identified by its simulator with its settings, task name, numbered initial state, seed and split. Reports
that differ in anything else that matters are refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.report import Report, describe_delay, read_purpose, select_settings
from embodied_rl.reports.statistics import PairedTest, mcnemar_test

Key = tuple[str, str, int | None, int, str]
"""Simulator, task, initial state, seed and split of an episode."""


@dataclass(frozen=True)
class Pairing:
    """The paired comparison of two reports on the episodes that both ran, with the number of episodes of each.

    `remark` names differences besides the policy, such as a package's version; empty without any.
    """

    test: PairedTest
    sizes: tuple[int, int]
    remark: str = ""


def pair_reports(first: Report, second: Report) -> Pairing:
    """Compare two reports on the episodes that both ran.

    Raises:
        UserError: they share no episode, a report does not identify its episodes, or purposes of episodes, simulators
            or inference delays differ.
    """
    purposes = [read_purpose(report.metadata) for report in (first, second)]
    if purposes[0] != purposes[1]:
        raise UserError(
            f"their episodes are others: episodes_for is {purposes[0]} and {purposes[1]}", code="reports-not-comparable"
        )
    delays = [report.metadata.get("delay") or 0 for report in (first, second)]
    if delays[0] != delays[1]:
        raise UserError(
            f"their inference delays differ: {delays[0]} and {delays[1]} control steps", code="reports-not-comparable"
        )
    outcomes: list[dict[Key, bool]] = []
    for place, report in (("first", first), ("second", second)):
        try:
            outcomes.append(index_outcomes(report))
        except UserError as error:
            raise UserError(f"the {place} report cannot be paired: {error}", code=error.code) from None
    shared = [key for key in outcomes[0] if key in outcomes[1]]
    if not shared:
        splits = [", ".join(sorted({result.split for result in report.episodes})) for report in (first, second)]
        why = "they share no episode: other tasks, seeds or initial states"
        if differences := _list_differences(list_simulators(first), list_simulators(second)):
            why = f"their simulators differ: {'; '.join(differences)}"
        elif splits[0] != splits[1]:
            why = f"their splits differ: {splits[0]} and {splits[1]}"
        raise UserError(why, code="reports-not-comparable")
    strategies = [describe_delay(report.metadata) for report in (first, second)]
    remarks = [f"{strategies[0]} and {strategies[1]}"] if strategies[0] != strategies[1] else []
    old, new = (
        {name: version for each in _read_simulators(report) for name, version in (each.get("depends_on") or {}).items()}
        for report in (first, second)
    )
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    remarks += [f"{name} {old.get(name)} and {new.get(name)}" for name in changed[:3]]
    test = mcnemar_test([outcomes[0][key] for key in shared], [outcomes[1][key] for key in shared])
    return Pairing(test, (len(outcomes[0]), len(outcomes[1])), "; ".join(remarks))


def index_outcomes(report: Report) -> dict[Key, bool]:
    """Return episode → success for a report.

    Raises:
        UserError: the report does not name its simulators, its simulator does not take seeds, or it has an episode
            twice.
    """
    simulators, tasks = list_simulators(report), name_tasks(report)
    found: dict[Key, bool] = {}
    for result in report.episodes:
        number = result.simulator if len(simulators) > 1 else 0
        if number is None or not 0 <= number < len(simulators):
            raise UserError(
                "it ran several simulators and does not name the episodes' simulators: evaluate again",
                code="report-without-simulator",
            )
        start = result.initial_state, result.seed
        key = (json.dumps(simulators[number], sort_keys=True), tasks[result.task], *start, result.split)
        if key in found:
            state = "" if result.initial_state is None else f", initial state {result.initial_state}"
            raise UserError(
                f"its task '{tasks[result.task]}'{state} with seed {result.seed} is in it twice", code="report-damaged"
            )
        found[key] = result.success
    return found


def list_simulators(report: Report) -> list[dict[str, Any]]:
    """Return the settings of a report's simulators that decide what an episode is, without versions of packages.

    Raises:
        UserError: the report does not name them, or a simulator ignores seeds.
    """
    listed = _read_simulators(report)
    for each in listed:
        if each.get("seeded") is False:
            raise UserError(
                f"simulator '{each.get('name')}' does not take seeds, so its episodes are never the same",
                code="simulator-without-seeds",
            )
    return select_settings(listed)


def name_tasks(report: Report) -> dict[int, str]:
    """Return the name of each task number that a report's episodes have.

    Raises:
        UserError: the report names another number of tasks than it ran.
    """
    numbers = sorted({result.task for result in report.episodes})
    if len(numbers) != len(report.tasks):
        raise UserError(
            f"it has episodes of {len(numbers)} tasks, and names {len(report.tasks)}", code="report-damaged"
        )
    return dict(zip(numbers, report.tasks, strict=True))  # both are in the simulator's order


def _read_simulators(report: Report) -> list[Mapping[str, Any]]:
    listed = report.metadata.get("simulators")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise UserError(
            "it does not name its simulator: evaluate again with `embodied-rl eval`", code="report-without-simulator"
        )
    if not all(isinstance(each.get("depends_on") or {}, dict) for each in listed):
        raise UserError(
            "it is damaged: depends_on of a simulator should map packages to versions", code="report-damaged"
        )
    return listed


def _list_differences(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return up to three differences between two lists of settings."""
    if len(first) != len(second):
        return [f"{len(first)} and {len(second)} of them"]
    found: dict[str, None] = {}
    for one, other in zip(first, second, strict=True):
        keys = ["name"] if one.get("name") != other.get("name") else [*one, *(key for key in other if key not in one)]
        found |= {f"{k} {one.get(k)!r} and {other.get(k)!r}": None for k in keys if one.get(k) != other.get(k)}
    return list(found)[:3]
