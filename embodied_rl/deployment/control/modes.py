"""Life cycle and modes of the core, and the latch of the emergency stop."""

from typing import Literal

from embodied_rl.deployment.execution.tick import Mode, State
from embodied_rl.interfaces.errors import UserError

Transition = Literal["configure", "activate", "deactivate"]
TRANSITIONS: dict[tuple[State, Transition], State] = {
    (State.UNCONFIGURED, "configure"): State.INACTIVE,
    (State.INACTIVE, "activate"): State.ACTIVE,
    (State.ACTIVE, "deactivate"): State.INACTIVE,
}
"""The transitions that each state allows, and the next state; as of ROS 2's managed nodes."""
ALLOWED: dict[Mode, tuple[Mode, ...]] = {
    Mode.HOLD: (Mode.RUN, Mode.TELEOP, Mode.RETURN, Mode.REPLAY),
    Mode.RUN: (Mode.HOLD, Mode.TELEOP),
    Mode.TELEOP: (Mode.HOLD, Mode.RUN),
    Mode.RETURN: (Mode.HOLD, Mode.TELEOP),
    Mode.REPLAY: (Mode.HOLD, Mode.TELEOP),
    Mode.ESTOP: (),
}
"""The modes that the operator may ask for. Every mode allows the emergency stop, which only a reset ends, in hold."""
MOVING = (Mode.RUN, Mode.TELEOP, Mode.RETURN, Mode.REPLAY)


def find_next_state(state: State, transition: Transition) -> State:
    """Return the state after a transition; raise `UserError` if the present state does not allow it."""
    if (following := TRANSITIONS.get((state, transition))) is None:
        possible = [other for start, other in TRANSITIONS if start == state]
        raise UserError(
            f"{transition} was refused: the robot is {state}. It allows {', '.join(possible)}.",
            code="transition-refused",
        )
    return following


class Modes:
    """Mode, why the robot holds or stops, and when the emergency stop was latched, by the core's clock."""

    def __init__(self) -> None:
        self.mode, self.why = Mode.HOLD, "no mode was asked for"
        self.latched_s: float | None = None

    def ask(self, wanted: Mode, obstacle: str) -> str:
        """Change to a mode that the operator asks for; return why that was refused, empty if it was done.

        `obstacle` is why this mode cannot begin at present; empty if it can.
        """
        refusal = self.explain(wanted, obstacle)
        if not refusal and wanted != self.mode:
            self.mode, self.why = wanted, "the operator asked for it" if wanted == Mode.HOLD else ""
        return refusal

    def explain(self, wanted: Mode, obstacle: str) -> str:
        """Return why a mode would be refused at present, empty if it would not; arguments as of `ask`."""
        if wanted == self.mode:
            return ""
        if self.mode == Mode.ESTOP:
            return f"{wanted} was refused: the emergency stop is latched. Release the button, then reset."
        if wanted not in ALLOWED[self.mode]:
            return f"{wanted} was refused: {self.mode} leads to {', '.join(ALLOWED[self.mode])} alone."
        return f"{wanted} was refused: {obstacle}" if obstacle and wanted != Mode.HOLD else ""

    def enter_hold(self, why: str) -> None:
        """Hold until a mode is asked for; a latched stop stays latched."""
        if self.mode != Mode.ESTOP:
            self.mode, self.why = Mode.HOLD, why

    def stop(self, now: float, why: str) -> None:
        """Latch the emergency stop; the first reason is kept."""
        if self.latched_s is None:
            self.mode, self.why, self.latched_s = Mode.ESTOP, why, now

    def reset(self, pressed: bool) -> str:
        """Release the latch and hold, if the stop is not pressed; return why that was refused, empty otherwise."""
        if self.latched_s is None:
            return ""
        if pressed:
            return "reset was refused: the emergency stop is still pressed. Release the button, then reset."
        self.mode, self.why, self.latched_s = Mode.HOLD, "the emergency stop was reset", None
        return ""
