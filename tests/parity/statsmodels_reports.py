"""Does statsmodels compute what `compare` says? Run with a Python that has statsmodels, which is no dependency of ours.

    python statsmodels_reports.py drawn.json      # of draw_reports.py

Everything is computed anew from the reports' episodes: which of them two reports share, the discordant pairs, the exact
McNemar test, Wilson's intervals, Holm's adjustment. Works with statsmodels 0.15.0.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint


def read_outcomes(report: dict[str, Any]) -> dict[tuple[Any, ...], bool]:
    numbers = sorted({episode["task"] for episode in report["episodes"]})
    names = dict(zip(numbers, report["tasks"], strict=True))
    suites = report["metadata"]["simulators"]
    return {
        (suites[each["simulator"]]["suite"], names[each["task"]], each["initial_state"], each["seed"]): each["success"]
        for each in report["episodes"]
    }


def list_rates(report: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[bool]]]:
    """Each interval of a report, with the outcomes that it is of."""
    outcomes = read_outcomes(report)
    yield report["success"], list(outcomes.values())
    for name, summary in report["tasks"].items():
        yield summary["success"], [success for key, success in outcomes.items() if key[1] == name]


def main(file: str) -> None:
    families = json.loads(Path(file).read_text())
    counts, largest = 0, {"p": 0.0, "holm": 0.0, "wilson": 0.0}
    intervals, discordant = 0, 0
    for family in families:
        outcomes = [read_outcomes(report) for report in family["reports"]]
        expected = []
        for said in family["pairs"]:
            first, second = (outcomes[place] for place in said["pair"])
            shared = [key for key in second if key in first]
            table = np.zeros((2, 2), int)
            for key in shared:
                table[int(not first[key]), int(not second[key])] += 1
            assert (said["episodes"], said["only_first"], said["only_second"]) == (
                len(shared),
                table[0, 1],
                table[1, 0],
            )
            expected.append(float(mcnemar(table, exact=True).pvalue))
            largest["p"] = max(largest["p"], differ(said["p_value"], expected[-1]))
            discordant = max(discordant, int(table[0, 1] + table[1, 0]))
        if expected:
            for said, value in zip(family["pairs"], multipletests(expected, method="holm")[1], strict=True):
                largest["holm"] = max(largest["holm"], differ(said["holm"], float(value)))
        counts += len(expected)
        for report in family["reports"]:
            for rate, listed in list_rates(report):
                low, high = proportion_confint(sum(listed), len(listed), alpha=0.05, method="wilson")
                assert rate["episodes"] == len(listed) and rate["rate"] == sum(listed) / len(listed)
                largest["wilson"] = max(largest["wilson"], abs(rate["low"] - low), abs(rate["high"] - high))
                intervals += 1
    assert max(largest["p"], largest["holm"]) < 1e-9 and largest["wilson"] < 1e-12, largest
    print(
        f"{counts} pairs in {len(families)} families, {intervals} intervals, up to {discordant} discordant pairs: agree"
    )
    print(", ".join(f"{name} differs by {value:.1e} at most" for name, value in largest.items()), "(p: relative)")


def differ(one: float, other: float) -> float:
    """The relative difference; exact where both are 0."""
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other))


if __name__ == "__main__":
    main(*sys.argv[1:])
