"""Life cycle, modes and the latch of the emergency stop."""

import itertools

import pytest

from embodied_rl.deployment.control.modes import TRANSITIONS, Modes, find_next_state
from embodied_rl.deployment.execution.tick import Mode, State
from tests.support.refusals import refuses

LEGAL = {
    ("unconfigured", "configure", "inactive"),
    ("inactive", "activate", "active"),
    ("active", "deactivate", "inactive"),
}
MAY_BE_ASKED = {
    "hold": "run teleop return replay",
    "run": "hold teleop",
    "teleop": "hold run",
    "return": "hold teleop",
    "replay": "hold teleop",
    "estop": "",
}


@pytest.mark.parametrize(("state", "verb"), list(itertools.product(State, ["configure", "activate", "deactivate"])))
def test_life_cycle_transitions(state: State, verb) -> None:
    following = {after for before, said, after in LEGAL if (before, said) == (state, verb)}
    if following:
        assert {find_next_state(state, verb)} == following
        return
    with refuses("transition-refused", verb, state, *[allowed for before, allowed, _ in LEGAL if before == state]):
        find_next_state(state, verb)
    assert len(TRANSITIONS) == len(LEGAL)


@pytest.mark.parametrize(
    ("mode", "wanted"), list(itertools.product(Mode, [mode for mode in Mode if mode != Mode.ESTOP]))
)
def test_which_modes_an_operator_may_ask_for(mode: Mode, wanted: Mode) -> None:
    modes = Modes()
    modes.mode = mode
    modes.latched_s = 1.0 if mode == Mode.ESTOP else None
    said = modes.ask(wanted, "")
    allowed = wanted == mode or wanted in MAY_BE_ASKED[mode].split()
    assert (said == "") == allowed and modes.mode == (wanted if allowed else mode)
    assert allowed or said.startswith(f"{wanted} was refused: ")


def test_an_obstacle_refuses_all_but_hold() -> None:
    modes = Modes()
    assert modes.ask(Mode.RUN, "front: no message has come") == "run was refused: front: no message has come"
    assert modes.ask(Mode.RUN, "") == "" and modes.why == ""
    assert modes.ask(Mode.HOLD, "front: no message has come") == "" and modes.mode == Mode.HOLD


def test_emergency_stop_is_latched_until_a_reset_with_the_button_released() -> None:
    modes = Modes()
    modes.ask(Mode.RUN, "")
    modes.stop(3.0, "the emergency stop was pressed")
    modes.stop(4.0, "again")
    modes.enter_hold("the dead man's switch is released")
    assert (modes.mode, modes.latched_s, modes.why) == (Mode.ESTOP, 3.0, "the emergency stop was pressed")
    assert "latched" in modes.ask(Mode.HOLD, "") and "still pressed" in modes.reset(pressed=True)
    assert modes.mode == Mode.ESTOP
    assert modes.reset(pressed=False) == "" and (modes.mode, modes.latched_s) == (Mode.HOLD, None)
    assert modes.why == "the emergency stop was reset"
    assert modes.reset(pressed=False) == ""
