"""Where tests find the Python environments of simulators, and how they run something there."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


def python_of(name: str) -> Path:
    """The interpreter of a simulator's environment; skips where `embodied-rl sim install` has not made it."""
    found = python_environments.find_installed(name)
    if found is None:
        pytest.skip(f"no environment for {name}: embodied-rl sim install {name}")
    return found


def kind_of(name: str, **options: object) -> SimulatorKind:
    """A simulator as `sim=<name> sim.<key>=…` configures it, in its own environment."""
    python_of(name)
    return SimulatorKind.find(SimNode(name, options=options))


ROOT = Path(__file__).parents[2]
CONTRACT = (
    "episodes_run_to_their_end", "observations_stay_as_they_were", "actions_are_clipped",
    "parked_environments_do_nothing", "final_observations_belong_to_the_episode_that_ended",
    "neighbours_change_nothing",
)  # fmt: skip
"""The checks of `embodied_rl.testing.simulator_contract` for a simulator without snapshots."""
Call = tuple[str, dict[str, Any]]
"""A function of a test folder's `inside.py`, and its arguments."""


def run_inside(name: str, script: Path, out: Path, calls: Sequence[Call]) -> list[dict[str, Array]]:
    """Run functions of `script` in one process of a simulator's environment; return the arrays of each.

    `script <out> <calls as JSON>` writes them to `out`, with a function's number before their names.
    """
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "sims"))
    subprocess.run(
        [str(python_of(name)), str(script), str(out), json.dumps(calls, default=str)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        timeout=1100,
        check=True,
    )
    with np.load(out) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    return [
        {name.removeprefix(f"{number}/"): found[name] for name in found if name.startswith(f"{number}/")}
        for number in range(len(calls))
    ]
