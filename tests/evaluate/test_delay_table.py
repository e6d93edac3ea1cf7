"""The table of strategies and delays: success, steps, and jumps in closed form."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.settings import Strategy
from embodied_rl.evaluate.delay_table import Cell, DelaySetup, measure_strategies
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator

LIMIT = 12


class Stairs:
    """All of decision j's actions are [j / 100, j / 20]."""

    network = SimpleNamespace(spec=SimpleNamespace(horizon=6))
    embodiment = SimpleNamespace(executed=3)

    def infer(self, observation: Observation, keys: NoiseKeys, *, whole: bool = False) -> Array:
        rows = [[[j / 100, j / 20]] * 6 for j in keys.decision]
        return np.array(rows, np.float32)


def make_bed(kept: tuple[str, ...] = ()) -> DelaySetup:
    def make() -> InlineHandle:
        simulator = FakeSimulator(2, FakeSimulator.Config(horizon=LIMIT))
        simulator.spec = replace(simulator.spec, kept_while_holding=kept)
        return InlineHandle(lambda: simulator)

    policy: Any = Stairs()
    return DelaySetup(policy, make, 2, [Episode(i, i % 2, i) for i in range(3)], 0)


def measure(strategy: Strategy, delay: int, kept: tuple[str, ...] = ()) -> Cell:
    (cell,) = measure_strategies(make_bed(kept), (strategy,), (delay,))
    return cell


def rms(values: list[tuple[float, float]]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def test_jumps_at_borders_and_inside() -> None:
    """Within a chunk nothing changes; from one to the next both entries rise, by 1 and by 5 of a range of 200."""
    none = measure("naive", 0)
    assert (none.strategy, none.delay, none.replan) == ("no delay", 0, 3) and none.inside == 0
    assert none.border == pytest.approx(rms([(0.01, 0.05)]), rel=1e-5)
    switched = measure("naive", 0, ("velocity_y",))
    assert switched.border == pytest.approx(0.01, rel=1e-5), "a switch is left out"


def test_a_pause_ends_with_a_jump_from_standing_still() -> None:
    """d = 2, s = 3: decisions begin at steps 2, 7; each time the robot stood still."""
    cell = measure("stop", 2)
    assert cell.replan == 3 and cell.border == pytest.approx(rms([(0, 0), (0.01, 0.05)]), rel=1e-5)


def test_what_cannot_be_run_says_why() -> None:
    cells = list(measure_strategies(make_bed(), ("prefix", "naive"), (4, 0, 1)))
    assert [(cell.strategy, cell.delay) for cell in cells] == [
        ("no delay", 0), ("prefix", 1), ("naive", 1), ("prefix", 4), ("naive", 4),
    ]  # fmt: skip
    assert "trained without executed actions" in cells[1].describe() and cells[1].describe().startswith("prefix, d = 1")
    assert "chunks of 8 actions" in cells[4].why_not and cells[4].format_cells()[3] == "–"


def test_a_cell_as_text_and_json() -> None:
    cell = measure("naive", 1)
    assert cell.summary is not None and cell.summary.success.episodes == 3
    assert cell.format_cells()[:3] == ("naive", "1", "1") and "[" in cell.format_cells()[3]
    written = json.loads(json.dumps(cell.to_dict()))
    assert written["results"] == {"0": False, "1": False, "2": False} and written["summary"]["steps"] == LIMIT
    assert cell.describe().startswith("naive | 1 | 1 |")
