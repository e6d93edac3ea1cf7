"""The life cycle of a robot's commands, as of ROS 2's managed nodes."""

from typing import Literal

from embodied_rl.deployment.execution.tick import State
from embodied_rl.interfaces.errors import UserError

Verb = Literal["configure", "activate", "deactivate", "clean_up", "shut_down"]

TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.UNCONFIGURED, "configure"): State.INACTIVE,
    (State.INACTIVE, "activate"): State.ACTIVE,
    (State.ACTIVE, "deactivate"): State.INACTIVE,
    (State.INACTIVE, "clean_up"): State.UNCONFIGURED,
    (State.UNCONFIGURED, "shut_down"): State.FINALIZED,
    (State.INACTIVE, "shut_down"): State.FINALIZED,
}
"""What each state allows, and what follows. An active robot is deactivated before it is shut down."""


class LifeCycle:
    """Holds the state."""

    def __init__(self) -> None:
        self.state = State.UNCONFIGURED

    def check(self, verb: Verb) -> State:
        """Return the state that follows.

        Raises:
            UserError: the present state does not allow it; the message says what it allows.
        """
        following = TRANSITIONS.get((self.state, verb))
        if following is None:
            possible = [other for state, other in TRANSITIONS if state == self.state]
            remedy = f"It allows {', '.join(possible)}." if possible else "Nothing follows it: start anew."
            raise UserError(f"{verb} was refused: the robot is {self.state}. {remedy}")
        return following

    def advance(self, verb: Verb) -> None:
        """Take a transition; raises `UserError` as `check` does."""
        self.state = self.check(verb)
