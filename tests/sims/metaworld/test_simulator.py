"""MetaWorld's settings, and its contract in a worker process with its own Python environment."""

from collections.abc import Iterator
from typing import Any

import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.testing.simulator_contract import Check, check_spec
from embodied_rl_sims.metaworld import MetaWorld, MetaWorldConfig
from tests.support.environments import CONTRACT, kind_of
from tests.support.refusals import refuses

HORIZON = 4


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ({"suite": "mt51"}, "choice-unknown", "sim.suite=mt51"),
        ({"tasks": ("pick-plaice",)}, "task-unknown", "Did you mean pick-place?"),
        ({"tasks": ("push-v3",)}, "task-unknown", "Did you mean push?"),
        ({"tasks": ("reach", "reach")}, "name-twice", "sim.tasks"),
        ({"cameras": ("front",)}, "camera-unknown", "corner2"),
        ({"goal": "shown"}, "choice-unknown", "auto, visible, hidden"),
        ({"renderer": "glfw"}, "choice-unknown", "egl, osmesa"),
        ({"horizon": 501}, "value-out-of-range", "sim.horizon=501"),
        ({"horizon": 490, "settle": 16}, "value-out-of-range", "500 control steps"),
        ({"image_size": 0}, "value-out-of-range", "sim.image_size=0"),
        ({"goals_seed": -1}, "value-out-of-range", "sim.goals_seed=-1"),
    ],
)
def test_what_is_refused(options: dict[str, Any], code: str, part: str) -> None:
    with refuses(code, part):
        MetaWorldConfig(**options)


@pytest.mark.parametrize(
    ("options", "count", "visible"),
    [
        ({}, 50, True), ({"suite": "ml45_test"}, 5, False), ({"suite": "ml45_test", "goal": "visible"}, 5, True),
        ({"suite": "mt10", "goal": "hidden"}, 10, False), ({"tasks": ("reach",), "suite": "ml10_test"}, 1, True),
    ],
)  # fmt: skip
def test_a_suite_says_which_tasks_and_whether_their_goals_are_visible(
    options: dict[str, Any], count: int, visible: bool
) -> None:
    config = MetaWorldConfig(**options)
    assert (len(config.chosen), config.shows_goal) == (count, visible)


def test_the_specification_needs_no_package() -> None:
    spec = MetaWorld.spec_of(MetaWorldConfig(suite="mt10", image_size=32))
    check_spec(spec)
    assert spec.families == ("easy", "hard", "medium") and spec.horizon == 500 and spec.control_hz == 80
    assert {task.initial_states for task in spec.tasks} == {50} and len(spec.privileged_names) == 40
    chosen = MetaWorld.spec_of(MetaWorldConfig(tasks=("push", "reach")))
    assert chosen.families == ("push", "reach"), "each task is one family"
    flat = MetaWorld.spec_of(MetaWorldConfig(observations="state"))
    assert len(flat.state_names) == 39 and not flat.cameras and not flat.privileged_names


@pytest.fixture(scope="module")
def kind() -> SimulatorKind:
    return kind_of(
        "metaworld", tasks=["reach", "push"], image_size=32, horizon=HORIZON, rendering="light", renderer="osmesa"
    )


@pytest.fixture(scope="module")
def check(kind: SimulatorKind) -> Iterator[Check]:
    yield Check(kind.build, executed=3)


@pytest.mark.sim
@pytest.mark.parametrize("name", CONTRACT)
def test_contract(check: Check, name: str) -> None:
    getattr(check, name)()


@pytest.mark.sim
def test_a_numbered_goal_that_does_not_exist_is_refused(kind: SimulatorKind) -> None:
    simulator = kind.build(1)
    with refuses("initial-state-unknown", "0 to 49"):
        simulator.reset([Episode(0, 1, 0, initial_state=50)])
    simulator.close()


@pytest.mark.sim
def test_diagnosis_and_provenance(kind: SimulatorKind) -> None:
    lines = {line.name: line for line in kind.ask("diagnose")}
    assert {line.status for line in lines.values()} == {"ok"}, lines
    assert "pictures/s" in lines["renderer osmesa"].found
    known = kind.ask("provenance")
    assert known["metaworld"] == "3.1.1" and known["mujoco"] == "3.3.0" and known["rendering"] == "light, osmesa"


@pytest.mark.sim
def test_a_faulty_operator_is_refused(kind: SimulatorKind) -> None:
    simulator = kind.build(1)
    with refuses("operator-missing"):
        simulator.expert(faulty=True)
    simulator.close()
