"""What the deployment core is told, and what it says, in one tick of the control loop.

Shapes: `A` action entries. The core takes no input and does no output by itself; whoever runs the loop, over ROS 2, in
process or under a fake clock, hands these over.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Source


class State(StrEnum):
    """The life cycle, as of ROS 2's managed nodes. Only an active robot is commanded."""

    UNCONFIGURED = "unconfigured"
    INACTIVE = "inactive"
    ACTIVE = "active"
    FINALIZED = "finalized"


class Mode(StrEnum):
    """What an active robot does."""

    HOLD = "hold"
    RUN = "run"
    TELEOP = "teleop"
    RETURN = "return"
    REPLAY = "replay"
    ESTOP = "estop"


@dataclass(frozen=True)
class Stream:
    """What a topic has said last.

    Attributes:
        source_ns: when it was published, by its publisher's clock. received_s: when it came, by the core's clock.
        digest: of its content; an equal one is a repetition. finite: it has no NaN and no infinity.
        unreadable: why it cannot be used at all, such as a picture of another size; empty: it can.
    """

    source_ns: int
    received_s: float
    digest: bytes
    finite: bool = True
    unreadable: str = ""


@dataclass(frozen=True)
class OperatorInput:
    """What the operator does at present.

    Attributes:
        estop: the emergency stop is pressed. reset: the operator releases a latched stop.
        deadman: when the dead man's switch was last said to be held, by the core's clock; None: never, or released.
        wanted: the mode that the operator asks for; None: no change. A mode is asked for once: it counts when it
            differs from what was handed before, so that a key that stays down does not start a robot again.
        teleop: float64 [A], entries in their own kind: speeds for velocities and displacements, targets for positions;
            NaN: the operator does not touch this entry. None: no teleoperation arrives.
        teleop_s: when that came, by the core's clock.
        label: success, failure or abort, said once: it counts when it changes, and ends acting.
        store: the operator adds the present place to the return points, said once; the core leaves it to others.
    """

    estop: bool = False
    reset: bool = False
    deadman: float | None = None
    wanted: Mode | None = None
    teleop: NDArray[np.float64] | None = None
    teleop_s: float | None = None
    label: str = ""
    store: bool = False


@dataclass(frozen=True)
class ExecutedStep:
    """A control step that has ended: what recording and learning keep of it.

    Attributes:
        time: when it ended, by the core's clock. mode: in which it ended.
        source: who decided it: `HUMAN` if a human did in any tick; `SAFETY` where the policy's action was changed
            materially, or cut off by a hold.
        proposed: float32 [A], what was wanted before the filter, in the policy's units; None: nothing was.
        executed: float32 [A], what the commands did, in the policy's units.
        command: float64 [A], the last one. why: in words, all reasons of its ticks.
        step, sequence, policy_version: as in `Tick`.
    """

    time: float
    mode: Mode
    source: Source
    proposed: NDArray[np.float32] | None
    executed: NDArray[np.float32]
    command: NDArray[np.float64]
    why: str = ""
    step: int = -1
    sequence: int = -1
    policy_version: int = -1


@dataclass(frozen=True)
class Tick:
    """What the robot is told, and why.

    Attributes:
        command: float64 [A], after the safety filter: a position, or a speed for velocities and displacements. None:
            nothing is published, because the robot is not active.
        proposed: float64 [A], what was wanted before the filter, in the same units; None where nothing was.
        action: float32 [A], what the commands of the control step until now mean in the policy's units; None
            without a command.
        source: who decided it. mode, state: of the core.
        why: in words, why the robot holds, or what the filter changed; empty where the policy's action passed as it is.
        step: the policy's step; -1 without. sequence, policy_version: of the chunk; -1 without.
        anew: commands begin here, at rest and where the robot is: what was commanded before counts no more.
        begins: whether this tick begins a control step, which is when an action of the policy is taken.
        ended: the control step that ends with this tick.
    """

    command: NDArray[np.float64] | None
    proposed: NDArray[np.float64] | None
    action: NDArray[np.float32] | None
    source: Source
    mode: Mode
    state: State
    why: str = ""
    step: int = -1
    sequence: int = -1
    policy_version: int = -1
    anew: bool = False
    begins: bool = False
    ended: ExecutedStep | None = None
