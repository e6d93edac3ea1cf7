"""List the episodes of an evaluation: drawn from one simulator, or a benchmark's tasks × initial states × seeds."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from embodied_rl.config.freeze import freeze_config, suggest_name, thaw_config
from embodied_rl.config.schema import BenchmarkNode, BenchmarkPart, EvalConfig, SimChange, SimNode
from embodied_rl.evaluate.protocol import EpisodeResult, enumerate_episodes
from embodied_rl.evaluate.report import MACHINE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, SimulatorSpec, Task
from embodied_rl.simulators.kind import SimulatorKind
from embodied_rl.simulators.trust import check_settings

DRAWN = 512
"""Episodes of an evaluation without a benchmark."""


@dataclass(frozen=True)
class EvaluationPart:
    """The part of an evaluation that one simulator runs.

    Attributes:
        kind: the simulator.
        spec: spec of the simulator.
        episodes: episodes to run, with indices that are unique over all parts.
        whole: number of episodes of this part in the whole benchmark.
    """

    kind: SimulatorKind
    spec: SimulatorSpec
    episodes: tuple[Episode, ...]
    whole: int


def make_parts(config: EvalConfig, own: SimNode | None) -> list[EvaluationPart]:
    """Return all parts of an evaluation.

    Args:
        config: configuration of the evaluation.
        own: the simulator that the policy was trained in, if known.

    Raises:
        UserError: the simulator is missing or unknown, or a split, task or initial state is unknown.
    """
    if config.benchmark is None:
        kind = SimulatorKind.find(change_simulator({} if own is None else to_mapping(own), config.sim))
        count = config.episodes or DRAWN
        listed = enumerate_episodes(
            kind.spec, config.split, count, config.task, purpose=config.episodes_for, seed=config.seed
        )
        return [EvaluationPart(kind, kind.spec, tuple(listed), count)]
    if config.split != "eval":
        raise UserError("split: a benchmark has conditions of its own. Leave out split=…, or benchmark=….")
    if config.episodes_for != "report":
        message = "a benchmark's episodes are the same for all. Leave it out."
        raise UserError(f"episodes_for={config.episodes_for}: {message}")
    check_change(config.benchmark, config.sim)
    for part in config.benchmark.parts:
        check_settings(part.sim, config.sim.options, f"benchmark={config.benchmark.name}")
    kinds = [SimulatorKind.find(change_simulator(part.sim, config.sim)) for part in config.benchmark.parts]
    with ThreadPoolExecutor() as pool:  # each spec may come from another Python environment
        specs = list(pool.map(lambda kind: kind.spec, kinds))
    described = list(zip(config.benchmark.parts, specs, strict=True))
    seeding = config.benchmark.seeding
    found = [_listed(part, spec, config.task, seeding) for part, spec in described]
    if not any(found):
        known = [name for spec in specs for name in (*spec.families, *(task.name for task in spec.tasks))]
        raise UserError(f"task: unknown task '{config.task}'.{suggest_name(str(config.task), known)}")
    limits = divide_episodes([len(each) for each in found], config.episodes)
    starts = accumulate(limits, initial=0)
    parts = [
        EvaluationPart(kind, spec, _numbered(episodes[:limit], start), len(_listed(part, spec, None, seeding)))
        for kind, (part, spec), episodes, limit, start in zip(kinds, described, found, limits, starts, strict=False)
    ]
    return [part for part in parts if part.episodes]


def divide_episodes(sizes: Sequence[int], most: int | None) -> list[int]:
    """Return the number of episodes per part, at most `most` in all, as evenly as the sizes of the parts allow."""
    if most is None or most >= sum(sizes):
        return list(sizes)
    given = [0] * len(sizes)
    while sum(given) < most:
        least = min((place for place, size in enumerate(sizes) if given[place] < size), key=lambda place: given[place])
        given[least] += 1
    return given


def change_simulator(base: dict[str, Any], change: SimChange) -> SimNode:
    """Return a simulator node with the typed changes; if they name another simulator, no key of `base` is kept.

    Raises:
        UserError: neither `base` nor `change` names a simulator.
    """
    kept = base if change.name in (None, base.get("name")) else {}
    if change.name is None and "name" not in kept:
        raise UserError("The policy does not say which simulator it was trained in. Add sim=<name>, or benchmark=….")
    named = {} if change.name is None else {"name": change.name}
    return freeze_config(SimNode, {**kept, **named, **change.options}, "sim")


def check_change(node: BenchmarkNode, change: SimChange) -> None:
    """Check that no typed change replaces a simulator of the benchmark or a key that the benchmark sets.

    Raises:
        UserError: a change does; the message names the key.
    """
    if change.name is not None:
        raise UserError(f"sim={change.name}: benchmark={node.name} has its own. Set keys one by one: sim.<key>=…")
    for part in node.parts:
        for key in change.options:
            if key in part.sim and key not in MACHINE and part.sim[key] != change.options[key]:
                said = f"benchmark={node.name} says {part.sim[key]!r}"
                raise UserError(f"sim.{key}: {said}. Leave one of them out.")


def to_mapping(node: SimNode) -> dict[str, Any]:
    """Convert a node to the mapping of a configuration, with the simulator's own keys beside the others."""
    plain = {"name": node.name, "num_envs": node.num_envs, "python": node.python, "pythonpath": list(node.pythonpath)}
    return {**plain, **node.options}


def combine_results(
    parts: Sequence[EvaluationPart], results: Sequence[Sequence[EpisodeResult]]
) -> tuple[list[EpisodeResult], SimulatorSpec]:
    """Combine the results of all parts into one list, with a spec that names all their tasks."""
    tasks, listed = list[Task](), list[EpisodeResult]()
    for number, (part, found) in enumerate(zip(parts, results, strict=True), start=1):
        listed += [replace(result, task=result.task + len(tasks), simulator=number - 1) for result in found]
        taken = {task.name for task in tasks}
        tasks += [
            replace(task, name=f"{task.name} ({number})") if task.name in taken else task for task in part.spec.tasks
        ]
    return listed, replace(parts[0].spec, tasks=tuple(tasks))


def describe_benchmark(config: EvalConfig, parts: Sequence[EvaluationPart]) -> dict[str, Any]:
    """Return the report's entries on a benchmark: name, protocol, completeness, changes, seeds and initial states."""
    if config.benchmark is None:
        return {}
    run = sum(len(part.episodes) for part in parts)
    whole = sum(part.whole for part in parts)
    return {
        "benchmark": config.benchmark.name,
        "protocol": config.benchmark.protocol,
        "seeding": config.benchmark.seeding,
        "complete": run == whole and len(parts) == len(config.benchmark.parts),
        "changed": {key: value for key, value in config.sim.options.items() if key not in MACHINE},
        "seeds": sorted({episode.seed for part in parts for episode in part.episodes}),
        "initial_states": sorted({e.initial_state for p in parts for e in p.episodes if e.initial_state is not None}),
    }


def describe_simulator(kind: SimulatorKind, spec: SimulatorSpec) -> dict[str, Any]:
    """Return a simulator's settings, the versions and assets its results depend on, and whether it takes seeds."""
    depends = kind.ask("provenance") if hasattr(kind.simulator, "provenance") else {}
    return {"name": kind.node.name, **thaw_config(kind.options), "seeded": spec.seeded, "depends_on": depends}


def _listed(part: BenchmarkPart, spec: SimulatorSpec, only: str | None, seeding: str) -> list[Episode]:
    """List a part's episodes in an order that spreads any first episodes evenly over tasks."""
    chosen = _tasks(part, spec, only)
    short = [spec.tasks[task] for task in chosen if spec.tasks[task].initial_states < (part.initial_states or 0)]
    if short:
        has = f"'{short[0].name}' has {short[0].initial_states}"
        raise UserError(f"benchmark: it asks for {part.initial_states} initial states of each task, but {has}.")
    if part.split not in ("train", *spec.splits):
        raise UserError(f"benchmark: unknown split '{part.split}'.{suggest_name(part.split, list(spec.splits))}")
    states = [None] if part.initial_states is None else range(part.initial_states)
    drawn = [
        (state, seed if state is None or seeding == "shared" else seed * len(states) + state, task)
        for state in states
        for seed in range(part.seeds)
        for task in chosen
    ]
    return [Episode(index, task, seed, state, split=part.split) for index, (state, seed, task) in enumerate(drawn)]


def _numbered(episodes: Sequence[Episode], start: int) -> tuple[Episode, ...]:
    return tuple(replace(each, index=start + place) for place, each in enumerate(episodes))


def _tasks(part: BenchmarkPart, spec: SimulatorSpec, only: str | None) -> list[int]:
    names = [task.name for task in spec.tasks]
    for name in part.tasks or ():
        if name not in names:
            raise UserError(f"benchmark: unknown task '{name}'.{suggest_name(name, names)}")
    wanted = [number for number, task in enumerate(spec.tasks) if part.tasks is None or task.name in part.tasks]
    return [number for number in wanted if only in (None, spec.tasks[number].name, spec.tasks[number].family)]
