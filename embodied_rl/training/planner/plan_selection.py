"""Choose the allocation of a new run with `plan=auto`, or compare a prescribed plan with the alternatives.

Both use costs that were measured on this machine before. If there are none, `plan=auto` measures them; a prescribed
plan starts without a prediction.
"""

import hashlib
import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from embodied_rl.actors.placement import resolve_placement
from embodied_rl.assembly import build
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.version import __version__
from embodied_rl.runs import provenance
from embodied_rl.runs.progress import show_wait
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import Plan, TrainConfig
from embodied_rl.system.atomic_write import write_text
from embodied_rl.training.planner import profile
from embodied_rl.training.planner.allocation import Allocation, Order, Resources, find_own_resources
from embodied_rl.training.planner.costs import CostFile
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.policy_memory import PolicyMemory
from embodied_rl.training.planner.search import Candidate, Choice, choose_allocation, predict_candidate

log = logging.getLogger(__name__)

LOSS = 0.05
"""Share of an iteration that a prescribed plan may lose before the user is warned."""

_PACKAGES = ("torch", "numpy", "mujoco")


def resolve_plan(config: TrainConfig) -> tuple[TrainConfig, str | None]:
    """Return the configuration with `plan=auto` resolved, and the text of `plan.json` or None without a prediction.

    Raises:
        UserError: no allocation is feasible, or the prescribed one does not fit in memory.
    """
    if config.plan.allocation != "auto" and config.runtime == "ray":
        return config, None  # the stored costs are those of this machine, not of the cluster
    if config.plan.allocation == "auto" and SimulatorKind.find(config.sim).limit_environments(2) == 1:
        return replace(config, plan=to_plan(Allocation("colocated", 1), config.plan)), None
    resources = find_resources(config)
    measured, work = read_known_costs(config), make_workload(config)
    if config.plan.allocation != "auto":
        if measured is None:
            return config, None
        found = choose_configured(config, measured, resources)
        if warning := describe_loss(found):
            print(warning)
        return config, format_choice(found, measured, resources, work)
    measured = measured or measure_costs(config, resources.cores)
    found = decide_plan(config, measured, resources)
    assert found.best.prediction is not None, "the chosen plan has a prediction"
    speed = f"{found.best.prediction.decisions_per_second:,.0f} decisions/s predicted"
    print(f"Plan: {found.best.allocation}; {speed} from costs measured {measured.about.get('measured')}.")
    plan = to_plan(found.best.allocation, config.plan)
    return replace(config, plan=plan), format_choice(found, measured, resources, work)


def find_resources(config: TrainConfig) -> Resources:
    """Return the resources of a run: this machine, or its cluster with nodes that are assumed to equal this machine.

    A cluster that would be started here for the run counts as this machine.

    Raises:
        NoCluster: no cluster answers at the configured address.
    """
    nodes = runtimes.list_nodes(config)
    own = find_own_resources()
    return replace(own, cores=sum(nodes), memory=None, nodes=nodes) if nodes else own


def read_known_costs(config: TrainConfig) -> CostFile | None:
    """Read the costs measured earlier for such a run on this machine; None if there are none or they are damaged."""
    file = find_cost_file(config)
    if not file.is_file():
        return None
    try:
        return CostFile.read(file)
    except ValueError as error:
        log.warning("%s They are not used.", error)
        return None


def measure_costs(config: TrainConfig, cores: int) -> CostFile:
    """Measure the costs, and store them for the next run.

    Raises:
        UserError: the measuring process was killed, or did not answer in time.
    """
    try:
        with show_wait(f"Measuring the stages on {cores} cores, once for this machine and configuration …"):
            measured = profile.measure_stages_apart(config, cores)
    except WorkerDied as death:
        message = f"plan=auto: {death} To start without measuring: plan=colocated, or plan=split."
        raise UserError(message, code="plan-costs-not-measured") from None
    keep_costs(measured, find_cost_file(config))
    return measured


def keep_costs(measured: CostFile, file: Path) -> None:
    """Store costs; if writing fails, log a warning, and the next run measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, measured.text())
    except (OSError, ValueError) as error:
        log.warning("the measured costs could not be kept: %s", error)


def decide_plan(
    config: TrainConfig, measured: CostFile, resources: Resources, policy: PolicyMemory | None = None
) -> Choice:
    """Predict every allocation for a run, and choose one; consider ready order only if `plan.order` asks for it.

    `policy`: see `choose_allocation`.

    Raises:
        UserError: no allocation is feasible.
    """
    orders: tuple[Order, ...] = ("exact", "ready") if config.plan.order == "ready" else ("exact",)
    needs, work = build.find_method(config.algo).needs, make_workload(config)
    limits: dict[str, Any] = {"group_size": needs.group_size, "whole_workers": needs.learns_from == "replay"}
    return choose_allocation(measured.costs, resources, work, orders=orders, policy=policy, **limits)


def choose_configured(config: TrainConfig, measured: CostFile, resources: Resources) -> Choice:
    """Return the configured plan as the choice, with the other allocations as alternatives.

    Raises:
        UserError: the configured plan does not fit in memory.
    """
    mine = predict_configured(config, measured, resources)
    assert mine is not None, "a plan is configured"
    if mine.prediction is None:
        message = f"plan: {mine.allocation} {mine.why_not}. Try plan=auto, or fewer environments (sim.num_envs)."
        raise UserError(message, code="plan-infeasible")
    try:
        free = decide_plan(config, measured, resources)
    except UserError:  # no allocation is feasible
        return Choice(mine, ())
    return Choice(mine, tuple(each for each in (free.best, *free.others) if each.allocation != mine.allocation))


def describe_loss(found: Choice) -> str | None:
    """Return a warning if an alternative is predicted to be faster than the choice by more than `LOSS`, else None."""
    mine = found.best.prediction
    rivals = [each for each in found.others if each.prediction is not None]
    if mine is None or not rivals or (best := rivals[0].prediction) is None:
        return None
    slower = 1 - best.seconds / mine.seconds
    if slower <= LOSS:
        return None
    return (
        f"Another plan is predicted to be faster: {found.best.allocation} takes {mine.seconds:.2f} s an iteration, "
        f"{rivals[0].allocation} {best.seconds:.2f} s, {slower:.0%} less. plan=auto takes the faster one."
    )


def predict_configured(
    config: TrainConfig, measured: CostFile, resources: Resources, policy: PolicyMemory | None = None
) -> Candidate | None:
    """Predict the configured plan; None if `plan.allocation` is auto, or if the resources are accelerators."""
    plan = config.plan
    if plan.allocation == "auto" or resources.devices:
        return None
    workers = plan.workers if plan.allocation == "split" else 0
    allocation = Allocation(
        plan.allocation, plan.ranks, workers, plan.slices, plan.order, count_rollout_workers(config)
    )
    return predict_candidate(measured.costs, allocation, resources, make_workload(config), policy)


def to_plan(chosen: Allocation, asked: Plan) -> Plan:
    """Convert an allocation of cores to a plan; take all other settings, such as deadlines, from `asked`."""
    assert chosen.mode != "hybrid", "on cores there is no such mode"
    return replace(
        asked,
        allocation=chosen.mode,
        ranks=chosen.ranks,
        slices=chosen.slices,
        workers=max(1, chosen.workers),
        order=chosen.order,
        rollout_workers=chosen.rollout_workers or asked.rollout_workers,
    )


def count_rollout_workers(config: TrainConfig) -> int:
    """Return the number of rollout workers: by default that of ranks, or 0 if `mode` is sync."""
    asked = config.plan.rollout_workers
    return asked if asked is not None else config.plan.ranks if config.mode != "sync" else 0


def make_workload(config: TrainConfig) -> Workload:
    """Return a run's workload: N environments, T decisions of each in a rollout, and how far collectors run ahead."""
    needs = build.find_method(config.algo).needs
    segments = config.segments if config.mode == "stream" else 1
    work = Workload(
        config.sim.num_envs,
        config.train.decisions,
        config.staleness if config.mode == "async" else 0,
        segments,
        early=1 / needs.epochs,
    )
    if not needs.fresh_episodes:
        return work
    spec = SimulatorKind.find(config.sim).spec
    _, embodiment = build.build_backbone(config.policy, spec)
    return replace(work, decisions=-(-spec.horizon // embodiment.executed) * segments)


def format_choice(choice: Choice, measured: CostFile, resources: Resources, work: Workload) -> str:
    """Return the text of `plan.json`: a choice with its inputs and alternatives."""
    content = {
        "chosen": asdict(choice.best),
        "others": [asdict(item) for item in choice.others],
        "workload": asdict(work),
        "resources": asdict(resources),
        "costs": asdict(measured.costs),
        "about": dict(measured.about),
        "spread": dict(measured.spread),
    }
    return json.dumps(content, indent=2) + "\n"


def find_cost_file(config: TrainConfig) -> Path:
    """Return the path of the cost file of such a run on this machine; its name hashes all that the costs depend on."""
    packages = provenance.list_package_versions()
    depends = {
        "version": __version__,
        "packages": {name: packages.get(name) for name in _PACKAGES},
        "hardware": provenance.describe_hardware(),
        "sim": thaw_config(config.sim),
        "policy": thaw_config(resolve_placement(config.policy)),
        "algo": thaw_config(config.algo),
        "decisions": config.train.decisions,
    }
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "embodied-rl" / "costs" / f"{config.sim.name}_{digest}.json"
