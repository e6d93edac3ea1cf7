"""`plan=auto`: the allocation of a run that starts, from costs that were measured before or are measured now."""

import json
import logging
from dataclasses import replace
from pathlib import Path

from embodied_rl.planner import choice, profile
from embodied_rl.planner import resources as available
from embodied_rl.planner.costs import CostFile
from embodied_rl.runs.storage import write_text
from embodied_rl.schema import TrainConfig

FILE = "plan.json"
"""In the run's folder: the choice, what else there was, and the costs behind it."""

log = logging.getLogger(__name__)


def resolve(config: TrainConfig) -> tuple[TrainConfig, str | None]:
    """The configuration with a plan in place of `plan=auto`, and the text of `plan.json`; None where nothing was open.

    Raises:
        ValueError: no allocation is feasible.
    """
    if config.plan.allocation != "auto":
        return config, None
    resources = available.here()
    measured = costs(config, resources.cores)
    found = choice.decide(config, measured, resources)
    prediction = found.best.prediction
    assert prediction is not None, "what was chosen was predicted"
    speed = f"{prediction.decisions_per_second:,.0f} decisions/s"
    print(f"Plan: {found.best.allocation}; {speed} predicted from costs measured {measured.about.get('measured')}.")
    text = json.dumps(choice.summary(found, measured, resources, choice.workload(config)), indent=2) + "\n"
    return replace(config, plan=choice.to_plan(found.best.allocation, config.plan)), text


def costs(config: TrainConfig, cores: int) -> CostFile:
    """From the store, or measured and stored. `embodied-rl plan` measures anew."""
    file = choice.store(config)
    if file.is_file():
        try:
            return CostFile.read(file)
        except ValueError as error:
            log.warning("%s They are measured again.", error)
    print(f"Measuring the stages on {cores} cores, once for this machine and configuration …")
    measured = profile.measure(config, cores)
    keep(measured, file)
    return measured


def keep(measured: CostFile, file: Path) -> None:
    """Store costs; where that is not possible, the next run measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, measured.text())
    except (OSError, ValueError) as error:
        log.warning("the measured costs could not be kept: %s", error)
