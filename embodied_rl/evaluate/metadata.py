"""Metadata of an evaluation's report: policy, simulators, configuration, code, packages and hardware."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.config.plugins import list_plugins
from embodied_rl.evaluate.benchmark import EvaluationPart, describe_benchmark, describe_simulator
from embodied_rl.reports.report import BENCHMARK
from embodied_rl.rollout.delay import Delay
from embodied_rl.runs import provenance
from embodied_rl.schema import EvalConfig


def make_metadata(
    config: EvalConfig, policies: Mapping[str, Path | None], parts: Sequence[EvaluationPart]
) -> dict[str, Any]:
    """Return the report's metadata: configuration, policies with their files, code version and hardware."""
    listed: list[dict[str, Any]] = []
    for policy, path in policies.items():
        own = [part for part in parts if part.policy == policy]
        tasks = [part.spec.tasks[number].name for part in own for number in sorted({e.task for e in part.episodes})]
        listed.append({**describe_policy(policy, path), **({"tasks": tasks} if own else {})})
    who = next(iter(policies)) if len(policies) == 1 else f"{len(policies)} policies"
    file = next(iter(policies.values())) if len(policies) == 1 else None
    source, _ = provenance.gather_provenance()
    return {
        "kind": "evaluation",
        "checkpoint": who,
        "file": None if file is None else str(file),
        "policies": listed,
        "simulator": parts[0].kind.node.name,
        **describe_benchmark(config, parts),
        "simulators": [describe_simulator(part.kind, part.spec) for part in parts],
        "split": config.split,
        "task": config.task,
        "episodes_for": config.episodes_for if config.benchmark is None else BENCHMARK,
        "ablate": config.ablate,
        "seed": config.seed,
        **provenance.select_for_report(asdict(source)),
        "source_sha256": provenance.hash_sources(list_packages()),
    }


def measure_end(began: float) -> dict[str, Any]:
    """Return the metadata at the end of episodes that began at `began` of `time.perf_counter()`."""
    seconds = round(time.perf_counter() - began, 3)
    return {"finished": provenance.current_time(), "load_at_end": provenance.measure_load(), "seconds": seconds}


def list_packages() -> list[str]:
    """Return the Python packages that results depend on: ours, and those of simulators and policies."""
    paths = [path for kind in ("sims", "policies") for path in list_plugins(kind).values()]
    return ["embodied_rl", *(path.partition(":")[0].partition(".")[0] for path in paths)]


def describe_policy(who: str, file: Path | None) -> dict[str, str | None]:
    """Return a report's entries about a policy: its name or checkpoint, its file, and the file's SHA-256."""
    if file is None:
        return {"policy": who, "file": None, "sha256": None}
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"policy": who, "file": str(file), "sha256": digest}


def describe_delays(config: EvalConfig, delays: Sequence[Delay | None]) -> dict[str, Any]:
    """Return a report's entries about the inference delays of all parts."""
    found = [delay for delay in delays if delay is not None]
    if not found:
        return {"delay": 0}
    strategies, replans = ({getattr(delay, name): None for delay in found} for name in ("strategy", "replan"))
    texts = [", ".join(map(str, each)) for each in (strategies, replans)]
    return {"delay": config.delay, "strategy": texts[0], "replan": texts[1] if len(replans) > 1 else found[0].replan}
