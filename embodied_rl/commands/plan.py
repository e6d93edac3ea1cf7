"""`embodied-rl plan`: predict the speed of a training run with every allocation of this or another machine."""

from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from embodied_rl.actors.placement import resolve_placement
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import PLAN
from embodied_rl.schema import PlanConfig
from embodied_rl.system.atomic_write import make_folder, write_text
from embodied_rl.system.untrusted_files import make_printable
from embodied_rl.training.planner import plan_selection, stored
from embodied_rl.training.planner.allocation import Resources, describe_placement, parse_resources
from embodied_rl.training.planner.costs import CostFile
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.policy_memory import check_host, report_policy
from embodied_rl.training.planner.search import Candidate, Choice

SHOWN = 8
"""Allocations in the printed table; plan.json has all."""


def run(config: PlanConfig) -> None:
    """Measure or read costs, predict, choose, print, and write `<out>/costs.json` and `<out>/plan.json`.

    The policy's memory is counted from shapes first, and no allocation is taken to need less.

    Raises:
        UserError: costs cannot be read or measured here, the resources are invalid, or no plan is feasible.
    """
    resources = parse_resources(config.resources) if config.resources else plan_selection.find_resources(config)
    folder, console = make_folder(Path(config.out), "out"), Console()
    can_start = config.costs is not None or not resources.devices
    policy = report_policy(config, resources) if can_start else None
    if config.costs is None and policy is not None and resolve_placement(config.policy).device == "cpu":
        check_host(policy, resources)
    measured = read_or_measure_costs(config, resources, folder)
    found, work = plan_selection.decide_plan(config, measured, resources, policy), plan_selection.make_workload(config)
    forced = plan_selection.predict_configured(config, measured, resources, policy)
    console.print(make_plan_table(found, forced))
    console.print(explain_choice(found, measured, resources, work), soft_wrap=True)
    if doubt := describe_origin(measured, resources):
        print(make_printable(doubt))
    if forced is not None and (warning := plan_selection.describe_loss(Choice(forced, (found.best,)))):
        console.print(warning, soft_wrap=True)
    if resources.nodes:
        print(describe_placement(found.best.allocation, resources.nodes))
    write_text(folder / PLAN, plan_selection.format_choice(found, measured, resources, work))
    print(f"Written: {folder / PLAN}")


def read_or_measure_costs(config: PlanConfig, resources: Resources, folder: Path) -> CostFile:
    """Read the costs from the configured file; without one, measure them here and write them to the folder."""
    if config.costs is not None:
        return CostFile.read(Path(config.costs))
    if resources.devices:
        raise UserError(
            f"resources={config.resources}: what accelerators cost cannot be measured here. "
            "Give costs=<file>; its format is that of the costs.json which `embodied-rl plan` writes.",
            code="costs-missing",
        )
    from embodied_rl.training.planner import profile

    print(f"Measuring the stages on {resources.cores} cores …")
    measured = profile.measure_stages(config, resources.cores)
    write_text(folder / "costs.json", measured.text())
    plan_selection.keep_costs(measured, plan_selection.find_cost_file(config))
    print(f"Written: {folder / 'costs.json'}")
    return measured


def describe_origin(measured: CostFile, resources: Resources) -> str | None:
    """Return a warning if the costs were measured on another kind of machine than they are used for, else None."""
    cores, cpu = measured.about.get("cores"), measured.about.get("cpu")
    if cores is None or cpu is None:
        return None  # costs that were written by hand
    if resources.devices:
        return (
            f"These costs were measured on {cores} cores of {cpu}. For {resources.devices} accelerators they say "
            "nothing: the figures above take an accelerator to be as fast as one of those cores."
        )
    here = provenance.describe_hardware()["cpu"]
    return None if cpu == here else f"These costs were measured on {cpu}; this machine has {here}."


def make_plan_table(made: Choice, forced: Candidate | None) -> Table:
    """Make a table of the choice, the next best allocations, and the configured plan."""
    marks = "→ chosen" if forced is None else "→ chosen, * as configured"
    caption = (
        f"{marks}. ranks: with + those that collect beside them; sims: simulator processes of a slice, or "
        "accelerators that simulate; d/s: decisions per second."
    )
    found = Table(title="plan", caption=caption, box=SIMPLE_HEAD, pad_edge=False)
    found.add_column("")
    found.add_column("mode", no_wrap=True)
    for heading in ("ranks", "sims", "slices", "d/s", "iteration", "bubble", "GB", ""):
        found.add_column(heading, justify="right", no_wrap=True)
    rows = [("→", made.best), *(("", item) for item in made.others[: SHOWN - 1])]
    if forced is not None:
        rows.append(("*", forced))
    for mark, item in rows:
        found.add_row(mark, *make_cells(item, made.best))
    return found


def make_cells(item: Candidate, best: Candidate) -> list[str]:
    """Return a table row: the allocation, its speed, idle time, memory, and difference in speed to the best."""
    plan, found, fastest = item.allocation, item.prediction, best.prediction
    assert fastest is not None
    slices = f"{plan.slices} {plan.order}" if plan.order == "ready" else str(plan.slices)
    ranks = f"{plan.ranks} + {plan.rollout_workers}" if plan.rollout_workers else str(plan.ranks)
    shape = [plan.mode, ranks, str(plan.workers or "–"), slices]
    gigabytes = f"{item.memory / 1e9:.1f}"
    if found is None:
        return [*shape, "–", "–", "–", gigabytes, "no room"]
    change = found.decisions_per_second / fastest.decisions_per_second - 1
    speed = [f"{found.decisions_per_second:,.0f}", f"{found.seconds:.2f} s", f"{found.bubble:.0%}"]
    return [*shape, *speed, gigabytes, f"{change:+.0%}"]


def explain_choice(made: Choice, measured: CostFile, resources: Resources, work: Workload) -> str:
    """Return a text that explains the choice: what overlap and slices can gain, by the measured stages."""
    share = work.envs // max(1, made.best.allocation.ranks)
    ratio, fixed = measured.costs.ratio(share), measured.costs.fixed_share(share)
    gain = (1 + ratio) / (1 + fixed)
    lines = [
        f"With {share} environments at once, simulating and inferring side by side instead of in turn is at most "
        f"{1 + ratio:.2f} times as fast, and in two slices {gain:.2f} times, if each has a device of its own. The "
        f"shorter stage takes {ratio:.0%} of the longer one, of which {fixed:.0%} stays however few environments.",
        f"Chosen: {made.best.allocation}; the simplest of those within 2 % of the fastest.",
    ]
    if work.ahead and made.best.prediction is not None:
        lines.append(f"Collectors reach {made.best.prediction.collected_per_second:,.0f} d/s while the ranks learn.")
    if not resources.devices:
        lines.append(f"To use it: {' '.join(stored.format_overrides(asdict(made.best.allocation)))}")
    return "\n".join(lines)
