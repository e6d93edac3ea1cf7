"""Choose the allocation of a new run with `plan=auto`, or compare a prescribed plan with the alternatives.

Both use costs that were measured on this machine before. If there are none, `plan=auto` measures them; a prescribed
plan starts without a prediction.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.progress import show_wait
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import TrainConfig
from embodied_rl.system.atomic_write import write_text
from embodied_rl.training.planner import plan_selection, profile
from embodied_rl.training.planner import resources as available
from embodied_rl.training.planner.allocation import Allocation
from embodied_rl.training.planner.costs import CostFile
from embodied_rl.training.planner.resources import Resources
from embodied_rl.training.planner.search import Choice

log = logging.getLogger(__name__)


def resolve_plan(config: TrainConfig) -> tuple[TrainConfig, str | None]:
    """Return the configuration with `plan=auto` resolved, and the text of `plan.json` or None without a prediction.

    Raises:
        UserError: no allocation is feasible, or the prescribed one does not fit in memory.
    """
    if config.plan.allocation != "auto" and config.runtime == "ray":
        return config, None  # the stored costs are those of this machine, not of the cluster
    if config.plan.allocation == "auto" and SimulatorKind.find(config.sim).limit_environments(2) == 1:
        return replace(config, plan=plan_selection.to_plan(Allocation("colocated", 1), config.plan)), None
    resources = find_resources(config)
    if config.plan.allocation != "auto":
        return config, predict_configured_plan(config, resources)
    measured = read_known_costs(config) or measure_costs(config, resources.cores)
    found = plan_selection.decide_plan(config, measured, resources)
    assert found.best.prediction is not None, "the chosen plan has a prediction"
    speed = f"{found.best.prediction.decisions_per_second:,.0f} decisions/s predicted"
    print(f"Plan: {found.best.allocation}; {speed} from costs measured {measured.about.get('measured')}.")
    plan = plan_selection.to_plan(found.best.allocation, config.plan)
    return replace(config, plan=plan), _text(config, found, measured, resources)


def find_resources(config: TrainConfig) -> Resources:
    """Return the resources of a run: this machine, or its cluster with nodes that are assumed to equal this machine.

    A cluster that would be started here for the run counts as this machine.

    Raises:
        NoCluster: no cluster answers at the configured address.
    """
    nodes = runtimes.list_nodes(config)
    return (
        replace(available.find_own_resources(), cores=sum(nodes), memory=None, nodes=nodes)
        if nodes
        else available.find_own_resources()
    )


def predict_configured_plan(config: TrainConfig, resources: Resources) -> str | None:
    """Predict the configured plan; warn if it is slow; return the text of `plan.json`, or None without known costs."""
    measured = read_known_costs(config)
    if measured is None:
        return None
    found = plan_selection.choose_configured(config, measured, resources)
    if warning := plan_selection.describe_loss(found):
        print(warning)
    return _text(config, found, measured, resources)


def read_known_costs(config: TrainConfig) -> CostFile | None:
    """Read the costs measured earlier for such a run on this machine; None if there are none or they are damaged."""
    file = plan_selection.find_cost_file(config)
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
    keep_costs(measured, plan_selection.find_cost_file(config))
    return measured


def keep_costs(measured: CostFile, file: Path) -> None:
    """Store costs; if writing fails, log a warning, and the next run measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, measured.text())
    except (OSError, ValueError) as error:
        log.warning("the measured costs could not be kept: %s", error)


def _text(config: TrainConfig, found: Choice, measured: CostFile, resources: Resources) -> str:
    workload = plan_selection.make_workload(config)
    return json.dumps(plan_selection.summarise_choice(found, measured, resources, workload), indent=2) + "\n"
