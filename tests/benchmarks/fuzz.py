"""Fuzz the safety filter and the control core with invalid inputs, and count the limits that are violated."""

from typing import Any

from tests.benchmarks.settings import BenchmarkConfig
from tests.support.core_fuzzing import fuzz_core
from tests.support.filter_fuzzing import VIOLATIONS, fuzz_filter


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the violations by name: of the filter alone, and of the core in all modes."""
    counts, driven = fuzz_filter(config.ticks, config.seed), fuzz_core(config.ticks, config.seed)
    broken = {"safety filter": {name: counts[name] for name in VIOLATIONS}, "control core": dict(driven.violations)}
    ran = {"ticks": config.ticks, "seed": config.seed, "moved": dict(driven.moved)}
    return ran | {"broken": broken, "first": driven.first}
