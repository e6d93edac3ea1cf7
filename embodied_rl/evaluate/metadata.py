"""What a report says of its evaluation: policy, simulators, code, packages, hardware, and how it was asked for."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.config.plugins import list_plugins
from embodied_rl.config.schema import EvalConfig
from embodied_rl.evaluate.benchmark import EvaluationPart, describe_benchmark, describe_simulator
from embodied_rl.reports.report import BENCHMARK
from embodied_rl.runs import provenance


def make_metadata(
    config: EvalConfig, players: Mapping[str, Path | None], parts: Sequence[EvaluationPart]
) -> dict[str, Any]:
    """Return the report's metadata: configuration, code version and hardware of the evaluation.

    Args:
        config: of the evaluation.
        players: policies, and their files.
        parts: what they run.
    """
    who = next(iter(players)) if len(players) == 1 else f"{len(players)} policies"
    file = next(iter(players.values())) if len(players) == 1 else None
    source, _ = provenance.gather_provenance()
    return {
        "kind": "evaluation",
        "checkpoint": who,
        "file": None if file is None else str(file),
        "policies": [{**describe_policy(*each), **_name_tasks(each[0], parts)} for each in players.items()],
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
    """Return the metadata that are known once all episodes are done, which began at `time.perf_counter()`."""
    seconds = round(time.perf_counter() - began, 3)
    return {"finished": provenance.current_time(), "load_at_end": provenance.measure_load(), "seconds": seconds}


def list_packages() -> list[str]:
    """Return the Python packages whose code makes results: ours, and those of simulators and policies."""
    paths = [path for kind in ("sims", "policies") for path in list_plugins(kind).values()]
    return ["embodied_rl", *(path.partition(":")[0].partition(".")[0] for path in paths)]


def _name_tasks(policy: str, parts: Sequence[EvaluationPart]) -> dict[str, list[str]]:
    """Return which tasks a policy runs, where tasks have policies of their own."""
    own = [part for part in parts if part.policy == policy]
    tasks = [part.spec.tasks[number].name for part in own for number in sorted({e.task for e in part.episodes})]
    return {"tasks": tasks} if own else {}


def describe_policy(who: str, file: Path | None) -> dict[str, str | None]:
    """Return what a report says of a policy: its name or checkpoint, its file, and the hash of that."""
    if file is None:
        return {"policy": who, "file": None, "sha256": None}
    return {"policy": who, "file": str(file), "sha256": hash_file(file)}


def hash_file(file: Path) -> str:
    """Return the SHA-256 hash of a policy file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
