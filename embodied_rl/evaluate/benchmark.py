"""List the episodes of an evaluation: drawn from one simulator, or a benchmark's tasks × initial states × seeds."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.config.freeze import freeze_config, suggest_name, thaw_config
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, SimulatorSpec, Task
from embodied_rl.reports.report import MACHINE
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.rollout.delay import Chunks, Delay, choose_delay
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import BenchmarkNode, EvalConfig, SimChange, SimNode
from embodied_rl.schema.untrusted_settings import check_file

DRAWN = 512
"""Episodes of an evaluation without a benchmark."""


@dataclass(frozen=True)
class EvaluationPart:
    """The part of an evaluation that one simulator runs.

    Attributes:
        episodes: to run, with indices that are unique over all parts.
        whole: number of episodes of this part in the whole benchmark.
        place: number of its part in the benchmark.
        policy: the policy of its tasks, if tasks have different policies.
    """

    kind: SimulatorKind
    spec: SimulatorSpec
    episodes: tuple[Episode, ...]
    whole: int
    place: int = 0
    policy: str | None = None


def make_parts(
    config: EvalConfig, own: SimNode | None, owns: Mapping[str, SimNode | None] | None = None
) -> list[EvaluationPart]:
    """Return all parts of an evaluation.

    Args:
        config: configuration of the evaluation.
        own: the simulator that the policy was trained in, if known.
        owns: the training simulators of `config.policies`, by policy.

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
        raise UserError(
            "split: a benchmark has conditions of its own. Leave out split=…, or benchmark=….", code="key-unused"
        )
    if config.episodes_for != "report":
        message = "a benchmark's episodes are the same for all. Leave it out."
        raise UserError(f"episodes_for={config.episodes_for}: {message}", code="key-unused")
    check_change(config.benchmark, config.sim)
    for part in config.benchmark.parts:
        typed = [f"sim.{key}" for key in config.sim.options]
        check_file(SimNode, part.sim, f"benchmark={config.benchmark.name}", typed=typed, where="sim")
    whole = _describe_parts(config, own)
    names = [name for part in whole for name in (*part.spec.families, *(task.name for task in part.spec.tasks))]
    known = list(dict.fromkeys(names))
    if unknown := [name for name in config.policies if name not in known]:
        raise UserError(f"policies: unknown task '{unknown[0]}'.{suggest_name(unknown[0], known)}", code="task-unknown")
    found: list[EvaluationPart] = []
    for part in _split_by_policy(config, whole, owns or {}) if config.policies else whole:
        tasks = [number for number, task in enumerate(part.spec.tasks) if config.task in (None, task.name, task.family)]
        found.append(replace(part, episodes=tuple(each for each in part.episodes if each.task in tasks)))
    left = sum(len(part.episodes) for part in found)
    if not left and config.task in known:
        message = f"policies names none for task={config.task}. Add one, or leave task out."
        raise UserError(message, code="policy-missing")
    if not left:
        raise UserError(
            f"task: unknown task '{config.task}'.{suggest_name(str(config.task), known)}", code="task-unknown"
        )
    counts = [0] * len(found)
    for _ in range(left if config.episodes is None else min(left, config.episodes)):  # equal shares of all parts
        open_ = [place for place, part in enumerate(found) if counts[place] < len(part.episodes)]
        counts[min(open_, key=lambda place: counts[place])] += 1
    limited: list[EvaluationPart] = []
    for part, count, start in zip(found, counts, accumulate(counts, initial=0), strict=False):
        numbered = tuple(replace(each, index=start + place) for place, each in enumerate(part.episodes[:count]))
        limited.append(replace(part, episodes=numbered))
    return [part for part in limited if part.episodes]


def _split_by_policy(
    config: EvalConfig, whole: Sequence[EvaluationPart], owns: Mapping[str, SimNode | None]
) -> list[EvaluationPart]:
    """Split the parts of a benchmark by the policies of their tasks; leave out tasks without a policy."""

    def select(part: EvaluationPart, policy: str) -> tuple[Episode, ...]:
        return tuple(e for e in part.episodes if _find_policy(config.policies, part.spec.tasks[e.task]) == policy)

    parts: list[EvaluationPart] = []
    for policy in dict.fromkeys(config.policies.values()):
        places = [part.place for part in whole if select(part, policy)]
        for part in _describe_parts(config, owns.get(policy), places):
            given = select(part, policy)
            parts.append(replace(part, episodes=given, whole=len(given), policy=policy))
    return sorted(parts, key=lambda part: part.place)


def _describe_parts(
    config: EvalConfig, own: SimNode | None, places: Sequence[int] | None = None
) -> list[EvaluationPart]:
    """Return the parts of the benchmark, or those at some places, with the simulator that a policy was trained in.

    Keys in `BenchmarkNode.open` are taken from the policy's simulator. Any first episodes of a part are spread evenly
    over its tasks.
    """
    node = config.benchmark
    assert node is not None, "only a benchmark has parts"
    places = range(len(node.parts)) if places is None else places
    kinds: list[SimulatorKind] = []
    for place in places:
        part = node.parts[place]
        same = own is not None and own.name == part.sim.get("name")
        opened = {key: own.options[key] for key in node.open if key in own.options} if own is not None and same else {}
        kinds.append(SimulatorKind.find(change_simulator({**opened, **part.sim}, config.sim)))
    with ThreadPoolExecutor() as pool:  # each spec may come from another Python environment
        specs = list(pool.map(lambda kind: kind.spec, kinds))
    parts: list[EvaluationPart] = []
    for place, kind, spec in zip(places, kinds, specs, strict=True):
        part, names = node.parts[place], [task.name for task in spec.tasks]
        if unknown := [name for name in part.tasks or () if name not in names]:
            raise UserError(
                f"benchmark: unknown task '{unknown[0]}'.{suggest_name(unknown[0], names)}", code="task-unknown"
            )
        chosen = [number for number, name in enumerate(names) if part.tasks is None or name in part.tasks]
        if short := [task for task in chosen if spec.tasks[task].initial_states < (part.initial_states or 0)]:
            has = f"'{names[short[0]]}' has {spec.tasks[short[0]].initial_states}"
            raise UserError(
                f"benchmark: it asks for {part.initial_states} initial states of each task, but {has}.",
                code="initial-states-missing",
            )
        if part.split not in ("train", *spec.splits):
            suggestion = suggest_name(part.split, list(spec.splits))
            raise UserError(f"benchmark: unknown split '{part.split}'.{suggestion}", code="split-unknown")
        states = [None] if part.initial_states is None else range(part.initial_states)
        episodes: list[Episode] = []
        for state, seed, task in product(states, range(part.seeds), chosen):
            drawn = seed if state is None or node.seeding == "shared" else seed * len(states) + state
            episodes.append(Episode(len(episodes), task, drawn, state, split=part.split))
        parts.append(EvaluationPart(kind, spec, tuple(episodes), len(episodes), place))
    return parts


def _find_policy(policies: Mapping[str, str], task: Task) -> str | None:
    return policies.get(task.name, policies.get(task.family))


def change_simulator(base: dict[str, Any], change: SimChange) -> SimNode:
    """Return a simulator node with the typed changes; if they name another simulator, no key of `base` is kept.

    Raises:
        UserError: neither `base` nor `change` names a simulator.
    """
    kept = base if change.name in (None, base.get("name")) else {}
    if change.name is None and "name" not in kept:
        raise UserError(
            "The policy does not name the simulator that it was trained in. Add sim=<name>, or benchmark=….",
            code="simulator-missing",
        )
    named = {} if change.name is None else {"name": change.name}
    return freeze_config(SimNode, {**kept, **named, **change.options}, "sim")


def check_change(node: BenchmarkNode, change: SimChange) -> None:
    """Raise `UserError` if a typed change replaces a simulator of the benchmark or a key that the benchmark sets."""
    if change.name is not None:
        raise UserError(
            f"sim={change.name}: benchmark={node.name} has its own simulator. Leave benchmark={node.name} out to "
            f"evaluate in {change.name}; or leave sim={change.name} out, and set keys one by one: sim.<key>=…",
            code="keys-contradict",
        )
    for part in node.parts:
        for key in change.options:
            if key in part.sim and key not in MACHINE and part.sim[key] != change.options[key]:
                raise UserError(
                    f"sim.{key}: benchmark={node.name} sets {part.sim[key]!r}. Leave one of them out.",
                    code="keys-contradict",
                )


def to_mapping(node: SimNode) -> dict[str, Any]:
    """Convert a node to the mapping of a configuration, which includes the simulator's own keys."""
    plain = {"name": node.name, "num_envs": node.num_envs, "python": node.python, "pythonpath": list(node.pythonpath)}
    return {**plain, **node.options}


def check_policy_fits(embodiment: Embodiment, parts: Sequence[EvaluationPart]) -> None:
    """Check that the observations and actions of every part fit the policy's embodiment.

    Raises:
        UserError: a part does not fit; the message names its tasks.
    """
    for part in parts:
        try:
            embodiment.check_body(part.spec.body, part.spec.words)
        except UserError as error:
            if len(parts) == 1:
                raise
            tasks = ", ".join(task.name for task in part.spec.tasks)
            remedy = "task=<name> evaluates only the tasks that it was made for."
            raise UserError(f"{part.kind.node.name}, {tasks}: {error} {remedy}", code=error.code) from None


def combine_results(
    parts: Sequence[EvaluationPart], results: Sequence[Sequence[EpisodeResult]]
) -> tuple[list[EpisodeResult], SimulatorSpec]:
    """Combine the results of all parts into one list, with a spec that names all their tasks.

    Tasks of equal names get the number of their part. If several policies share a part, a task keeps its name only for
    the policy that ran it.
    """
    tasks, listed, places = list[Task](), list[EpisodeResult](), list(dict.fromkeys(part.place for part in parts))
    for number, (part, found) in enumerate(zip(parts, results, strict=True)):
        listed += [replace(result, task=result.task + len(tasks), simulator=number) for result in found]
        taken = {task.name for other in parts[:number] if other.place != part.place for task in other.spec.tasks}
        ran = range(len(part.spec.tasks)) if part.policy is None else {result.task for result in found}
        own = f" ({places.index(part.place) + 1})"
        for task, each in enumerate(part.spec.tasks):
            name = each.name + own if each.name in taken else each.name
            tasks.append(replace(each, name=name if task in ran else f"{name}, not of {part.policy}"))
    return listed, replace(parts[0].spec, tasks=tuple(tasks))


def find_delay(config: EvalConfig, part: EvaluationPart, who: str, read: Callable[[], Chunks | None]) -> Delay | None:
    """Return the inference delay that a part is run with; None without one.

    `read` returns the chunks of the policy `who`; None if it chooses one action at a time.

    Raises:
        UserError: the policy or the simulator does not support it; see `choose_delay`.
    """
    if not config.delay and config.replan is None:
        return None
    if (chunks := read()) is None:
        raise UserError(
            f"delay={config.delay}: {who} chooses one action at a time. Leave delay and replan out.",
            code="delay-without-chunks",
        )
    if config.delay and any(each := part.kind.node.options.get("inference_delay") or ()):
        raise UserError(
            f"delay={config.delay}: sim.inference_delay={each} already lets the robot wait. "
            "Add sim.inference_delay=[0,0], or leave delay out.",
            code="keys-contradict",
        )
    return choose_delay(config.delay, config.strategy, config.replan, config.hold, chunks, part.spec)


def describe_benchmark(config: EvalConfig, parts: Sequence[EvaluationPart]) -> dict[str, Any]:
    """Return the report's entries on a benchmark: name, protocol, completeness, changes, seeds and initial states."""
    if config.benchmark is None:
        return {}
    run = sum(len(part.episodes) for part in parts)
    whole = sum(part.whole for part in parts)
    without: list[str] = []
    if config.policies:
        for part in _describe_parts(config, None):
            tasks = [part.spec.tasks[number] for number in sorted({e.task for e in part.episodes})]
            without += [task.name for task in tasks if _find_policy(config.policies, task) is None]
    return {
        "benchmark": config.benchmark.name,
        "protocol": config.benchmark.protocol,
        "seeding": config.benchmark.seeding,
        "complete": run == whole and len({part.place for part in parts}) == len(config.benchmark.parts) and not without,
        **({"not_run": list(dict.fromkeys(without))} if config.policies else {}),
        "changed": {key: value for key, value in config.sim.options.items() if key not in MACHINE},
        "seeds": sorted({episode.seed for part in parts for episode in part.episodes}),
        "initial_states": sorted({e.initial_state for p in parts for e in p.episodes if e.initial_state is not None}),
    }


def describe_simulator(kind: SimulatorKind, spec: SimulatorSpec) -> dict[str, Any]:
    """Return a simulator's settings, the versions and assets its results depend on, and whether it takes seeds."""
    depends = kind.ask("provenance") if hasattr(kind.simulator, "provenance") else {}
    return {"name": kind.node.name, **thaw_config(kind.options), "seeded": spec.seeded, "depends_on": depends}
