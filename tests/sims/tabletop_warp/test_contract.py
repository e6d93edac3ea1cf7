"""The contract, what the simulator says of itself, and faults that are named."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode, NotFinite, Unavailable
from embodied_rl.runtime.processes.handle import WorkerError
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.operator_contract import check_termination_beats_truncation

pytestmark = pytest.mark.sim
ROUGH = {"inference_delay": (0, 3), "state_noise": 0.01, "image_noise": 8.0}


def test_it_keeps_the_contract(make) -> None:
    """To the bit, with all that makes worlds wait for each other: on the processor, none knows of another."""
    check_simulator(lambda rows: make(rows, horizon=15, **ROUGH))


def test_success_on_the_last_step_terminates(make) -> None:
    check_termination_beats_truncation(lambda rows, horizon: make(rows, horizon=horizon))


def test_physics_that_breaks_is_named(make) -> None:
    tabletop = make(3)
    tabletop.reset([Episode(row, row, 30 + row) for row in range(3)])
    state = tabletop.snapshot()
    state["physics"][1, 1 + 32 + 10] = np.nan  # a velocity: after the time and 32 positions
    tabletop.restore(state)
    with pytest.raises(NotFinite, match="no longer finite after control step 1") as caught:
        tabletop.step(np.zeros((3, 2, 4), np.float32), [None] * 3)
    assert caught.value.row == 1


def test_contacts_without_room_are_an_error(cramped: Callable[[int], None]) -> None:
    """Nothing passes through anything because a buffer was full."""
    with pytest.raises(WorkerError, match="environment 0: more contacts than the capacity of mujoco_warp"):
        cramped(2)


def test_a_device_that_is_not_there_is_named(host: ProcessHandle) -> None:
    with pytest.raises(Unavailable, match=r"sim\.device=cuda:99: there is .* here\. Set sim\.device="):
        host.submit("make", 1, {"device": "cuda:99"}).result()


def test_it_says_what_results_depend_on(host: ProcessHandle) -> None:
    """The environment holds what its recipe pins."""
    said, found = host.submit("describe").result()
    pins = dict(pin.split("==") for step in python_environments.read_recipe("tabletop_warp").steps for pin in step)
    assert said == {**pins, "device": "cpu"}
    assert [diagnosis.status for diagnosis in found] == ["ok", "warn"]
    assert found[1].found == "cpu" and "sim=tabletop" in found[1].remedy
