"""Simulators of a configuration."""

from typing import Any

import pytest

from embodied_rl.config import plugins
from embodied_rl.interfaces.sim import SimulatorLimits
from embodied_rl.runtime.processes import local
from embodied_rl.runtime.simulators.kind import SimulatorKind, make_handles
from embodied_rl.schema import Plan, SimNode
from embodied_rl.testing.fake_simulator import FakeSimulator


@pytest.mark.parametrize(("purpose", "slices", "workers"), [("training", 2, 2), ("evaluation", 1, 3)])
def test_simulator_processes_have_the_deadlines_of_the_plan(
    purpose: str, slices: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(local, "ProcessHandle", lambda factory, kwargs, **options: made.append({**kwargs, **options}))
    monkeypatch.setattr(plugins, "find_path", lambda group, name: f"{name}:Simulator")
    kind = SimulatorKind(SimNode("fake"), FakeSimulator, FakeSimulator.Config())
    plan = Plan("split", 1, slices, workers, start_timeout=900.0, call_timeout=45.0)
    make_handles(kind, plan, 12, purpose)
    assert [each["name"] for each in made] == [f"{purpose} simulator {part}" for part in range(slices * workers)]
    for each in made:
        assert (each["start_timeout"], each["call_timeout"]) == (900.0, 45.0)
        assert each["num_envs"] == 12 // (slices * workers)


def test_a_simulator_has_the_limits_that_its_class_states() -> None:
    class OneRobot(FakeSimulator):
        @staticmethod
        def limits(config: FakeSimulator.Config) -> SimulatorLimits:
            return SimulatorLimits(1, attended=config.horizon == 7)

    free, limited = (
        SimulatorKind(SimNode("fake"), each, FakeSimulator.Config(horizon=7)) for each in (FakeSimulator, OneRobot)
    )
    assert free.limits == SimulatorLimits(None, False, False)
    assert limited.limits == SimulatorLimits(1, True, False)
    assert (free.limit_environments(5), limited.limit_environments(5)) == (5, 1)
