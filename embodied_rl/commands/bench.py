"""`embodied-rl bench`: measure simulators, overlap, the planner's predictions, policies, scorers, or demo ablations."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.console_table import make_table
from embodied_rl.config.assets import find_asset
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import BenchConfig, Plan
from embodied_rl.system.atomic_write import make_folder, write_text

OVERLAP, PIPELINE, POLICY, MEMORY, ABLATIONS = "overlap", "pipeline", "policy", "memory", "ablations"
ASYNC, CLUSTER, CRITIC, DELAY = "async", "cluster", "critic", "delay"
POTENTIALS, SERVER, DEPLOY = "potentials", "server", "deploy"
SLICES = (1, 2)
CRITIC_ASSET = "tabletop_critic.safetensors"
ASYNC_ASSET = "asset:tabletop_async.safetensors"
POLICY_ASSET = "asset:tabletop_base.safetensors"


def run(config: BenchConfig) -> None:
    """Measure, print the results, and write them to `<out>/bench_<what>.json`.

    Raises:
        UserError: the benchmark is unknown.
    """
    simulator = config.sim.name
    what = simulator if config.what == "sim" else config.what
    if what == ABLATIONS:
        run_ablations(config)
        return
    measures = {simulator: measure_simulator, OVERLAP: measure_overlap, PIPELINE: measure_pipeline}
    measures |= {POLICY: measure_policy, MEMORY: count_memory, ASYNC: measure_async, CLUSTER: measure_cluster}
    measures |= {CRITIC: measure_critic, DELAY: measure_delay, POTENTIALS: compare_rewards, SERVER: measure_server}
    measures |= {DEPLOY: measure_deployment}
    if what not in measures:
        hint = suggest_name(what, [*measures, ABLATIONS])
        raise UserError(
            f"bench: cannot measure '{what}'.{hint} Another simulator is chosen with sim=<name>.",
            code="benchmark-unknown",
        )
    file = make_folder(Path(config.out), "out") / f"bench_{what}.json"
    print(f"Measuring {what}", flush=True)
    found = measures[what](config)
    write_text(file, json.dumps(found | {"hardware": provenance.describe_hardware()}, indent=2) + "\n")
    print(f"Written: {file}")


def run_ablations(config: BenchConfig) -> None:
    """Run the demo's missing ablations, and write `<out>/ablations.md` after each."""
    from embodied_rl.benchmarks import ablations

    root, file = make_folder(Path(config.out) / "runs", "out"), Path(config.out) / "ablations.md"
    for row in ablations.run_all(root, [config.seed]):
        print(" | ".join(row.cells()))
        write_text(file, ablations.to_markdown(ablations.read_all(root, [config.seed])))
    print(f"Written: {file}")


def measure_simulator(config: BenchConfig) -> dict[str, Any]:
    """Measure the simulator's speed against its own bare loop and against similar simulators."""
    from embodied_rl.benchmarks import peers, throughput

    simulator = SimulatorKind.find(config.sim).build(config.sim.num_envs)
    ours = throughput.measure_throughput(simulator, config.sim.num_envs, config.seconds, config.seed).summary()
    simulator.close()
    others = [peers.measure_peer(name, config.seconds / 2) for name in peers.PEERS]
    Console().print(make_throughput_table(config.sim.name, ours, others))
    return {"simulator": config.sim.name, **ours, "peers": [vars(other) for other in others]}


def make_throughput_table(name: str, ours: Mapping[str, Any], others: list[Any]) -> Table:
    """Make a table of control steps per second, with their ratios."""
    every, speed = ours["control_steps_between_pictures"], ours["control_steps_per_second"]
    bare, transport = ours["bare_control_steps_per_second"], ours.get("transport")
    rows: list[tuple[str, ...]] = [
        (name, f"{speed:,.0f}", "", f"{ours['envs']} environments, median of {ours['rounds']} rounds")
    ]
    if bare is not None:
        rows.append(("bare loop", f"{bare:,.0f}", f"{ours['ratio_to_bare']:.1%}", "physics and rays alone, in turns"))
    if transport is not None:
        rows.append(("transport", "", f"{transport:.1%}", "share of a step that messages and copies take"))
    for other in others:
        rate = other.control_steps_per_second
        speeds = ("–", "") if rate is None else (f"{rate:,.0f}", f"{speed / rate:.1f} times")
        rows.append((other.title, *speeds, other.why_not if rate is None else other.version))
    caption = f"Control steps per second on one core, with a picture every {every}."
    return make_table(f"bench {name}", caption, ("", "steps/s", f"{name} is"), rows, remark="")


def measure_overlap(config: BenchConfig) -> dict[str, Any]:
    """Measure the overlap of simulator processes in one and two slices, and the load of equal ranks, one per core."""
    from embodied_rl.benchmarks import busy, overlap

    cores = int(provenance.describe_hardware()["cores"])
    split = [overlap.measure_overlap(config, slices, cores) for slices in SLICES if check_divisible(config, slices)]
    ranks = min(cores, config.sim.num_envs)
    while config.sim.num_envs % ranks:
        ranks -= 1
    colocated = busy.measure_busy(config, Plan("colocated", ranks), config.seconds)
    console = Console()
    console.print(make_overlap_table([each.summary() for each in split]))
    console.print(make_busy_table(colocated.summary()))
    return {"split": [each.summary() for each in split], "colocated": colocated.summary()}


def measure_pipeline(config: BenchConfig) -> dict[str, Any]:
    """Measure the transport of a step, the recovery from a killed simulator, and the planner's prediction errors: first
    with stages that sleep, then with the configured training run."""
    from embodied_rl.benchmarks import live, pipeline, recovery, transport
    from embodied_rl.training.planner import plan_selection, profile
    from embodied_rl.training.planner import resources as available

    console = Console()
    carried = [transport.measure_transport(load) for load in transport.LOADS]
    console.print(transport.make_transport_table(carried))
    lost = recovery.measure_recovery(SimulatorKind.find(config.sim), max(1, config.sim.num_envs // 4))
    print(lost)
    extra, resources = pipeline.measure_overhead(), available.find_own_resources()
    costs = profile.measure_stages(config, resources.cores)
    plans = live.choose_plans(config, costs, resources)
    predicted = [pipeline.predict_case(case, extra) for case in pipeline.CASES]
    before = {"cases": predicted, "live": [asdict(item) for item in plans], "costs": json.loads(costs.text())}
    write_text(Path(config.out) / "bench_pipeline_predictions.json", json.dumps(before, indent=2) + "\n")
    cases = [pipeline.run_case(case, seconds) for case, seconds in zip(pipeline.CASES, predicted, strict=True)]
    console.print(pipeline.make_pipeline_table(cases))
    for line in pipeline.make_remarks(cases):
        print(line)
    runs = [live.run_plan(config, item) for item in plans]
    console.print(live.make_live_table(runs, costs.costs, plan_selection.make_workload(config)))
    for line in live.make_remarks(runs, costs.costs, plan_selection.make_workload(config)):
        print(line)
    found = {"cases": [case.summary() for case in cases], "live": [run.summary() for run in runs]}
    others = {"transport": [each.summary() for each in carried], "recovery": asdict(lost)}
    return {"predicted": before, **found, **others}


def measure_async(config: BenchConfig) -> dict[str, Any]:
    """Compare rollout workers that run ahead of the learner with collecting and learning in turn, and predictions."""
    from embodied_rl.benchmarks import ahead

    extra = ahead.measure_overhead()
    found = [ahead.run_case(case, extra) for case in ahead.CASES]
    Console().print(ahead.make_ahead_table(found))
    return {"overhead": extra, "cases": [each.summary() for each in found]}


def measure_cluster(config: BenchConfig) -> dict[str, Any]:
    """Compare plans on a two-node Ray cluster and on this machine, and measure the cost of a lost actor or node."""
    from embodied_rl.benchmarks import ray_overhead

    found, lost = ray_overhead.measure_cluster()
    Console().print(ray_overhead.make_cluster_table(found))
    print(lost)
    return ray_overhead.summarise_cluster(found, lost)


def measure_critic(config: BenchConfig) -> dict[str, Any]:
    """Measure iterations with a slow scorer, one that is too slow, or an absent one; and the speed of our server."""
    from embodied_rl.benchmarks import scoring
    from embodied_rl.critic.examination import server_speed

    found = scoring.measure_scoring(config, config.seconds)
    Console().print(scoring.make_scoring_table(found))
    spec, critic = SimulatorKind.find(config.sim).spec, find_asset(CRITIC_ASSET)
    served = server_speed.measure_server(critic, spec, config.seconds)
    print(f"{CRITIC_ASSET} behind `critic serve`, asked from this machine: {served.describe()}")
    return {"scoring": [asdict(each) for each in found], "server": asdict(served)}


def compare_rewards(config: BenchConfig) -> dict[str, Any]:
    """Train with each reward from the same start, and compare success after equally many decisions."""
    from embodied_rl.critic.examination import reward_comparison

    table, found = reward_comparison.compare_rewards(config, make_folder(Path(config.out) / "runs", "out"))
    Console().print(table)
    return found


def measure_server(config: BenchConfig) -> dict[str, Any]:
    """Measure a policy behind `serve` with one client and with eight, and the cost of the transport."""
    from embodied_rl.deployment.policy_server import speed
    from embodied_rl.deployment.policy_server.settings import check_installed

    check_installed("bench server")
    policy = config.policy_file or POLICY_ASSET
    served = speed.measure_serving(policy, config.seconds)
    print(f"{policy} behind `serve`, asked from this machine:\n{served.describe()}")
    return {"policy": policy, **asdict(served)}


def measure_deployment(config: BenchConfig) -> dict[str, Any]:
    """Measure a policy on a simulated robot over ROS 2: lockstep, real time, stops, streams, fuzz."""
    from embodied_rl.benchmarks.trials import measuring

    policy, folder = config.policy_file or ASYNC_ASSET, make_folder(Path(config.out) / DEPLOY, "out")
    episodes, seconds, ticks = min(config.episodes, 48), config.seconds, config.ticks
    figures, values = measuring.measure_deployment(policy, episodes, seconds, folder, ticks)
    print(f"{policy} on the simulated tabletop:", *(each.describe() for each in figures), sep="\n")
    return {"policy": policy, **values}


def measure_delay(config: BenchConfig) -> dict[str, Any]:
    """Measure a policy's success under inference delay, for each strategy, and what a decision costs."""
    from embodied_rl.assembly.policy_factory import find_policy_file, load_deployed
    from embodied_rl.benchmarks import delay_cost
    from embodied_rl.evaluate import delay_table, protocol
    from embodied_rl.evaluate.metadata import describe_policy

    who, kind, load = config.policy_file or ASYNC_ASSET, SimulatorKind.find(config.sim), provenance.measure_load()
    policy, episodes = load_deployed(who), protocol.enumerate_episodes(kind.spec, "eval", config.episodes)
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
    cost = delay_cost.measure_cost(policy, seen, 2, config.seconds)
    print(delay_cost.describe_cost(cost))
    found = {"cells": [cell.to_dict() for cell in cells], "cost": cost.summary(), "episodes": config.episodes}
    loads = {"load": load, "load_at_end": provenance.measure_load()}
    return {**found, **describe_policy(who, find_policy_file(who)), **loads}


def measure_policy(config: BenchConfig) -> dict[str, Any]:
    """Measure the time that a cached prefix saves in flow policies' decisions and updates, on a core or accelerator."""
    from embodied_rl.benchmarks import prefix_cache

    decisions, updates = prefix_cache.measure_policies(config)
    console = Console()
    console.print(prefix_cache.make_denoising_table(decisions))
    console.print(prefix_cache.make_update_table(updates))
    for line in prefix_cache.describe_sizes(decisions):
        print(line)
    return {"decisions": [each.summary() for each in decisions], "updates": [each.summary() for each in updates]}


def count_memory(config: BenchConfig) -> dict[str, Any]:
    """Compute the memory of full-size flow policies in updates, and the least time of their decisions."""
    from embodied_rl.benchmarks import model_memory, networks

    tables, report = model_memory.measure_memory(networks.FULL)
    for each in tables:
        Console().print(each)
    return report


def check_divisible(config: BenchConfig, slices: int) -> bool:
    """Return whether the environments divide equally into this many slices of `plan.workers` simulators."""
    return config.sim.num_envs % (slices * config.plan.workers) == 0


def make_overlap_table(found: list[Mapping[str, Any]]) -> Table:
    """Make a table of a slice's stage times, and of the resulting round, in milliseconds."""
    caption = (
        "Slices × simulator processes of each. Milliseconds of a slice's stages, each alone;\n"
        "and of a round, a chunk of all environments: stages in turn, at best, and as measured."
    )
    rows = list[tuple[str, ...]]()
    for each in found:
        stages = each["stages"]
        times = (stages["simulating"], stages["inferring"], stages["message"])
        rounds = (each["without_overlap"], each["bound"], each["round"])
        shown = [f"{1e3 * seconds:.1f}" for seconds in (*times, *rounds)]
        rows.append((f"{each['slices']} × {each['workers']}", *shown, f"{each['share_of_bound']:.1%}"))
    headings = ("slices", "simulate", "decide", "send", "in turn", "bound", "round", "of bound")
    return make_table("plan=split", caption, headings, rows)


def make_busy_table(found: Mapping[str, Any]) -> Table:
    """Make a table of each rank's processor time, as a share of the elapsed time."""
    speed = f"{found['decisions_per_second']:.0f} decisions/s"
    caption = (
        f"Rollout and update: {found['iterations']} iterations of {found['seconds']:.2f} s, {speed}.\n"
        "Had work: busy, or waiting while other programs had the core."
    )
    rows = [
        (str(rank), f"{share:.1%}", "–" if demand is None else f"{demand:.1%}")
        for rank, (share, demand) in enumerate(zip_longest(found["shares"], found["demands"]))
    ]
    return make_table("plan=colocated", caption, ("rank", "core busy", "had work"), rows)
