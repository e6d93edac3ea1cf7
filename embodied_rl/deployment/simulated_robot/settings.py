"""The settings of a simulated robot."""

from dataclasses import dataclass, field

from embodied_rl.schema import FaultsNode

FAULTS, STATUS, CLOCK = "/simulation/faults", "/simulation/status", "/clock"
"""Topics that every simulated robot has; its description names the others."""


@dataclass(frozen=True)
class RobotSettings:
    """The settings of a simulated robot.

    Attributes:
        lockstep: a command makes one control step, and time stands still until the next one.
        timeout_s: in real time, the robot stops by itself after so long without a command.
        deadline_s: in lockstep, an episode that gets no command for so long is given up.
        repeat_s: in lockstep, what was published last is published again after so long, for who came later.
        faults: what is wrong with it from the start.
    """

    lockstep: bool = False
    timeout_s: float = 0.1
    deadline_s: float = 60.0
    repeat_s: float = 1.0
    faults: FaultsNode = field(default_factory=FaultsNode)
