"""Settings of a simulated robot."""

from dataclasses import dataclass, field

from embodied_rl.schema import FaultsNode

FAULTS, STATUS, CLOCK = "/simulation/faults", "/simulation/status", "/clock"
"""Topics of every simulated robot; its description names the others."""


@dataclass(frozen=True)
class RobotSettings:
    """Settings of a simulated robot.

    Attributes:
        lockstep: each command makes one control step; time stands still until the next command.
        timeout_s: real time only: the robot stops after this time without a command.
        deadline_s: lockstep only: the episode fails after this time without a command.
        repeat_s: lockstep only: the last messages are published again after this time, for late subscribers.
        faults: faults at the start.
    """

    lockstep: bool = False
    timeout_s: float = 0.1
    deadline_s: float = 60.0
    repeat_s: float = 1.0
    faults: FaultsNode = field(default_factory=FaultsNode)
