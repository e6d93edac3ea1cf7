"""Drawn reports and what `compare` makes of them, for `statsmodels_reports.py` to compute once more.

    PYTHONPATH=. python draw_reports.py 500 > drawn.json         # so many pairs of reports
    <python with statsmodels> statsmodels_reports.py drawn.json

Reports are drawn in families of two to five, whose p-values `compare` adjusts together: several suites, numbered
initial states or none, several seeds, any part of the episodes missing, in any order.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.reports.comparison import ComparedReport, pair_all
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult

SUITES = [{"name": "kitchen", "suite": suite, "seeded": True} for suite in ("goal", "spatial", "object")]


def draw_report(rng: np.random.Generator, suites: int, tasks: int, states: int, seeds: int) -> Report:
    names = tuple(
        Task(f"task {number} of {suite}", f"family {suite}") for suite in range(suites) for number in range(tasks)
    )
    spec = SimulatorSpec((), (), ("x",), (-1.0,), (1.0,), 10.0, 10, names)
    numbered = [None, *range(states)]
    cells = [
        (task, state, seed) for task in range(len(names)) for state in numbered for seed in range(seeds)
    ]  # fmt: skip
    kept = rng.permutation(len(cells))[: max(1, round(len(cells) * rng.choice([1.0, rng.random()])))]
    rate = rng.choice([0.0, 1.0, rng.random(), rng.random()])
    results = [
        EpisodeResult(index, task, seed, "train", bool(rng.random() < rate), False, 9, 0.0, 0.0, state, task // tasks)
        for index, (task, state, seed) in enumerate(cells[cell] for cell in kept)
    ]
    return Report.from_results(results, spec, {"simulators": SUITES[:suites], "split": "eval"})


def draw_family(rng: np.random.Generator) -> dict[str, Any]:
    sizes = (int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.choice([0, 3, 50])), int(rng.integers(1, 5)))
    reports = [draw_report(rng, *sizes) for _ in range(rng.integers(2, 6))]
    entries = [
        ComparedReport((), str(place), str(place), None, each, (), Path("report.json"))
        for place, each in enumerate(reports)
    ]
    pairs, refused = pair_all(entries)
    found = [
        {"pair": [int(first), int(second)], **asdict(pairing.test), "holm": adjusted}
        for first, second, pairing, adjusted in pairs
    ]
    return {"reports": [each.to_dict() for each in reports], "pairs": found, "refused": len(refused)}


def main(pairs: str) -> None:
    rng, families, count = np.random.default_rng(0), list[dict[str, Any]](), 0
    while count < int(pairs):
        families.append(draw_family(rng))
        count += len(families[-1]["pairs"])
    json.dump(families, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
