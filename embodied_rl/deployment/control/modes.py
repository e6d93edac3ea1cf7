"""What an active robot does, and who changes it: the operator by asking, the watchdogs by letting it fall to hold."""

from embodied_rl.deployment.execution.tick import Mode

ALLOWED: dict[Mode, tuple[Mode, ...]] = {
    Mode.HOLD: (Mode.RUN, Mode.TELEOP, Mode.RETURN, Mode.REPLAY),
    Mode.RUN: (Mode.HOLD, Mode.TELEOP),
    Mode.TELEOP: (Mode.HOLD, Mode.RUN),
    Mode.RETURN: (Mode.HOLD, Mode.TELEOP),
    Mode.REPLAY: (Mode.HOLD, Mode.TELEOP),
    Mode.ESTOP: (),
}
"""Which modes the operator may ask for. Every mode leads to the emergency stop, and that to hold, by a reset alone."""
MOVING = (Mode.RUN, Mode.TELEOP, Mode.RETURN, Mode.REPLAY)


class Modes:
    """Holds the mode and the latch of the emergency stop.

    Attributes:
        mode: at present. why: in words, why the robot holds or stops; empty while it moves.
        latched_s: when the emergency stop was latched, by the core's clock; None: it is not.
    """

    def __init__(self) -> None:
        self.mode, self.why = Mode.HOLD, "no mode was asked for"
        self.latched_s: float | None = None

    def ask(self, wanted: Mode, obstacle: str) -> str:
        """Change to a mode that the operator asks for; return in words why not, empty if it was done.

        Args:
            wanted: the mode.
            obstacle: why this mode cannot begin at present; empty if it can.
        """
        refusal = self.explain(wanted, obstacle)
        if not refusal and wanted != self.mode:
            self.mode, self.why = wanted, "the operator asked for it" if wanted == Mode.HOLD else ""
        return refusal

    def explain(self, wanted: Mode, obstacle: str) -> str:
        """Return in words why a mode would be refused at present, empty if it would not; arguments as of `ask`."""
        if wanted == self.mode:
            return ""
        if self.mode == Mode.ESTOP:
            return f"{wanted} was refused: the emergency stop is latched. Release the button, then reset."
        if wanted not in ALLOWED[self.mode]:
            return f"{wanted} was refused: {self.mode} leads to {', '.join(ALLOWED[self.mode])} alone."
        return f"{wanted} was refused: {obstacle}" if obstacle and wanted != Mode.HOLD else ""

    def fall(self, why: str) -> None:
        """Let the robot hold until a mode is asked for; a latched stop stays."""
        if self.mode != Mode.ESTOP:
            self.mode, self.why = Mode.HOLD, why

    def stop(self, now: float, why: str) -> None:
        """Latch the emergency stop; the first reason stays."""
        if self.latched_s is None:
            self.mode, self.why, self.latched_s = Mode.ESTOP, why, now

    def reset(self, pressed: bool) -> str:
        """Release the latch to hold, never to a mode that moves; return in words why not, empty if it was done."""
        if self.latched_s is None:
            return ""
        if pressed:
            return "reset was refused: the emergency stop is still pressed. Release the button, then reset."
        self.mode, self.why, self.latched_s = Mode.HOLD, "the emergency stop was reset", None
        return ""
