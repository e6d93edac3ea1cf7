"""`embodied-rl bench`: measure simulators, algorithms, rewards, and policies under delay or on a simulated robot."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from embodied_rl.assembly.build import find_method
from embodied_rl.benchmarks import throughput
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.run_command import freeze_command_config
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import BenchConfig
from embodied_rl.system.atomic_write import make_folder, write_text
from embodied_rl.training.run_checks import check_run

ASYNC_ASSET = "asset:tabletop_async.safetensors"
MOVED = {
    "overlap": "overlap", "pipeline": "pipeline", "async": "async_collection", "cluster": "ray_overhead",
    "policy": "prefix_cache", "memory": "model_memory", "critic": "scoring", "server": "policy_server",
}  # fmt: skip
"""Former words of `bench` → benchmarks in a checkout of the repository."""


def run(config: BenchConfig) -> None:
    """Measure, print the results, and write them to `<out>/bench_<what>.json`.

    Raises:
        UserError: the benchmark is unknown, or is no longer part of the package.
    """
    what, measure = find_measurement(config)
    file = make_folder(Path(config.out), "out") / f"bench_{what}.json"
    print(f"Measuring {what}", flush=True)
    found = measure(config)
    write_text(file, json.dumps(found | {"hardware": provenance.describe_hardware()}, indent=2) + "\n")
    print(f"Written: {file}")


def check_bench(config: BenchConfig) -> list[tuple[str, str]]:
    """Check a measurement's configuration; return what it takes, as rows of text.

    Raises:
        UserError: the benchmark or an algorithm is unknown, or an algorithm does not fit simulator and policy.
    """
    if find_measurement(config)[0] != "algorithms":
        return []
    return [(name, f"{count} iterations, {config.seeds} seeds") for name, count in count_iterations(config).items()]


def find_measurement(config: BenchConfig) -> tuple[str, Callable[[BenchConfig], dict[str, Any]]]:
    """Return the name of the measurement that was asked for, and its function.

    Raises:
        UserError: it is unknown, or is no longer part of the package.
    """
    simulator = config.sim.name
    what = simulator if config.what == "sim" else config.what
    measures = {simulator: measure_simulator, "delay": measure_delay}
    measures |= {"algorithms": compare_algorithms, "potentials": compare_rewards, "deploy": measure_deployment}
    if what in MOVED:
        raise UserError(
            f"bench {what} is now, in the repository's root: python -m tests.benchmarks {MOVED[what]} key=value…",
            code="benchmark-moved",
        )
    if what not in measures:
        raise UserError(
            f"bench: cannot measure '{what}'.{suggest_name(what, list(measures))} Another simulator: sim=<name>.",
            code="benchmark-unknown",
        )
    return what, measures[what]


def measure_simulator(config: BenchConfig) -> dict[str, Any]:
    """Measure the simulator's speed against its own bare loop."""
    simulator = SimulatorKind.find(config.sim).build(config.sim.num_envs)
    found = throughput.measure_throughput(
        simulator, config.sim.num_envs, config.seconds, config.seed, config.train.task
    ).summary()
    simulator.close()
    Console().print(make_throughput_table(config.sim.name, found))
    return {"simulator": config.sim.name, **found}


def make_throughput_table(name: str, found: Mapping[str, Any]) -> Table:
    """Make a table of control steps per second."""
    every, speed = found["control_steps_between_pictures"], found["control_steps_per_second"]
    bare, transport = found["bare_control_steps_per_second"], found["transport"]
    rows: list[tuple[str, ...]] = [
        (name, f"{speed:,.0f}", "", f"{found['envs']} environments, median of {found['rounds']} rounds")
    ]
    if bare is not None:
        rows.append(("bare loop", f"{bare:,.0f}", f"{found['ratio_to_bare']:.1%}", "physics and rays alone, in turns"))
    if transport is not None:
        rows.append(("transport", "", f"{transport:.1%}", "share of a step that messages and copies take"))
    caption = f"Control steps per second on one core, with a picture every {every}."
    return make_table(f"bench {name}", caption, ("", "steps/s", f"{name} is"), rows, remark="")


def compare_algorithms(config: BenchConfig) -> dict[str, Any]:
    """Train with each algorithm from the same start, and compare success at equal episodes and at equal time."""
    from embodied_rl.benchmarks import algorithm_comparison

    iterations = count_iterations(config)
    root = make_folder(Path(config.out) / "runs", "out")
    table, found = algorithm_comparison.compare_algorithms(config, root, iterations)
    Console().print(table)
    return found


def count_iterations(config: BenchConfig) -> dict[str, int]:
    """Check the run of each algorithm; return name → iterations that make as many decisions as asked.

    Raises:
        UserError: there is no algorithm, one is unknown, or one does not fit simulator and policy.
    """
    from embodied_rl.benchmarks import algorithm_comparison

    if not config.algorithms:
        raise UserError("algorithms=[]: name at least one, such as algorithms=[filtered].", code="algorithms-missing")
    shared, iterations = algorithm_comparison.list_shared_words(config), dict[str, int]()
    for name in config.algorithms:
        words = (*shared, f"algo={name}")
        train = list_commands()["train"]
        composed = freeze_command_config(train, compose_config(train.config, words, train.values, None), words)
        from_replay = find_method(composed.algo).needs.learns_from == "replay"
        decisions = (from_replay and config.replay_decisions) or config.decisions
        iterations[name] = math.ceil(decisions / check_run(composed).rows)
    return iterations


def compare_rewards(config: BenchConfig) -> dict[str, Any]:
    """Train with each reward from the same start, and compare success after equally many decisions."""
    from embodied_rl.benchmarks import reward_comparison

    table, found = reward_comparison.compare_rewards(config, make_folder(Path(config.out) / "runs", "out"))
    Console().print(table)
    return found


def measure_deployment(config: BenchConfig) -> dict[str, Any]:
    """Measure a policy on a simulated robot over ROS 2: lockstep, real time, stops, streams."""
    from embodied_rl.benchmarks.robot_runs.measure_deployment import run_measurements

    policy, folder = config.policy_file or ASYNC_ASSET, make_folder(Path(config.out) / "deploy", "out")
    figures, values = run_measurements(policy, min(config.episodes, 48), config.seconds, folder)
    print(f"{policy} on the simulated tabletop:", *(each.describe() for each in figures), sep="\n")
    return {"policy": policy, **values}


def measure_delay(config: BenchConfig) -> dict[str, Any]:
    """Measure a policy's success under inference delay, for each strategy, and what a decision costs."""
    from embodied_rl.assembly.policy_factory import find_policy_file, load_deployed
    from embodied_rl.benchmarks import stopwatch
    from embodied_rl.evaluate import delay_table, protocol
    from embodied_rl.evaluate.metadata import describe_policy

    who, kind, load = config.policy_file or ASYNC_ASSET, SimulatorKind.find(config.sim), provenance.measure_load()
    policy = load_deployed(who)
    episodes = protocol.enumerate_episodes(kind.spec, "eval", config.episodes, config.train.task)
    envs, cells = min(config.sim.num_envs, config.episodes), list[delay_table.Cell]()
    bed = delay_table.DelaySetup(
        policy, lambda: kind.inline(envs, "simulator", config.plan), envs, episodes, config.seed
    )
    for cell in delay_table.measure_strategies(bed, config.strategies, config.delays):
        cells.append(cell)
        print(cell.describe(), flush=True)
    rows = [cell.format_cells() for cell in cells]
    Console().print(make_table(f"bench delay, {who}", delay_table.CAPTION, delay_table.HEADINGS, rows))
    with closing(kind.build(1)) as simulator:
        seen = simulator.reset(episodes[:1]).without_privileged()
    cost = stopwatch.measure_cost(policy, seen, 2, config.seconds)
    print(stopwatch.describe_cost(cost))
    found = {"cells": [cell.to_dict() for cell in cells], "cost": cost.summary(), "episodes": config.episodes}
    loads = {"load": load, "load_at_end": provenance.measure_load()}
    return {**found, **describe_policy(who, find_policy_file(who)), **loads}


def make_table(
    title: str, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], remark: str | None = None
) -> Table:
    """Build a table for the console.

    Args:
        title: text above the table.
        caption: text below the table; explains the figures and their units.
        headings: headings of the columns.
        rows: rows of cells, one cell for each heading.
        remark: heading of an additional last column of text; None for no such column.
    """
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, min_width=60)
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    if remark is not None:
        table.add_column(remark)
    for row in rows:
        table.add_row(*row)
    return table
