"""Inputs and outputs of the deployment core in one tick of the control loop, and the interface of motions.

Shapes: `A` action entries. The core does no input or output: the control loop, over ROS 2, in process or under a fake
clock, passes these objects.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Source

LABELS = ("success", "failure", "abort")


class State(StrEnum):
    """State of the life cycle, as of ROS 2's managed nodes. Only an active robot is commanded."""

    UNCONFIGURED = "unconfigured"
    INACTIVE = "inactive"
    ACTIVE = "active"


class Mode(StrEnum):
    """Mode of an active robot."""

    HOLD = "hold"
    RUN = "run"
    TELEOP = "teleop"
    RETURN = "return"
    REPLAY = "replay"
    ESTOP = "estop"


@dataclass(frozen=True)
class StreamReading:
    """Newest message of a topic.

    Attributes:
        source_ns: when it was published, by its publisher's clock. received_s: when it came, by the core's clock.
        digest: of its content; an equal one is a repetition. finite: it has no NaN and no infinity.
        unreadable: why it cannot be used, such as an image of a wrong size; empty: it can.
    """

    source_ns: int
    received_s: float
    digest: bytes
    finite: bool = True
    unreadable: str = ""


@dataclass(frozen=True)
class OperatorInput:
    """Present input of the operator.

    Attributes:
        estop: the emergency stop is pressed. reset: the operator releases a latched stop.
        deadman: when the dead man's switch was last reported as held, by the core's clock; None: never, or released.
        wanted: the mode that the operator asks for; None: no change. It counts when it differs from the input before,
            so that a key that stays down does not restart a robot.
        teleop: float64 [A], entries in their own kind: speeds for velocities and displacements, targets for positions;
            NaN: the operator does not touch this entry. None: no teleoperation arrives.
        teleop_s: when `teleop` came, by the core's clock.
        label: success, failure or abort, given once: it counts when it changes, and ends acting.
        store: add the present position to the return points, given once; the core ignores it.
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
    """A finished control step, for recording and learning.

    Attributes:
        time: when it ended, by the core's clock. mode: in which it ended.
        source: who decided it: `HUMAN` if a human did in any tick; `SAFETY` where the policy's action was changed
            materially, or cut off by a hold.
        proposed: float32 [A], the target before the filter, in the policy's units; None: there was none.
        executed: float32 [A], the action that the commands amount to, in the policy's units.
        command: float64 [A], the last one. why: all reasons of its ticks.
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
    """Command of one tick, and its reason.

    Attributes:
        command: float64 [A], after the safety filter: a position, or a speed for velocities and displacements. None:
            nothing is published, because the robot is not active.
        proposed: float64 [A], the target before the filter, in the same units; None: there was none.
        action: float32 [A], the action of the control step until now, in the policy's units; None without a command.
        source: who decided it. mode, state: of the core.
        why: why the robot holds, or what the filter changed; empty if the policy's action passed unchanged.
        step: the policy's step; -1 without. sequence, policy_version: of the chunk; -1 without.
        restarted: commands start here, at rest and at the measured position, independent of the command before.
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
    restarted: bool = False
    begins: bool = False
    ended: ExecutedStep | None = None


@dataclass(frozen=True)
class Status:
    """Snapshot of the core, for operators, logs and recordings.

    Attributes:
        time: by the core's clock. state, mode: of the core. why: why the robot holds or stops.
        latched_s: when the emergency stop was latched; None: it is not.
        blocked: why the present mode must hold until the cause ends; empty if nothing blocks it.
        stale: which streams are stale, and why. said: the last refusal of an operator's input, until its cause ends.
        still: whether the commands are at rest. epoch, step, planned: of the policy's executor.
        counts: of ticks, requests, answers, faults. refused: chunks by reason. streams: readings by stream and fate.
    """

    time: float
    state: State
    mode: Mode
    why: str
    latched_s: float | None
    blocked: str
    said: str
    still: bool
    counts: dict[str, int]
    stale: str = ""
    epoch: int = 0
    step: int = 0
    planned: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    streams: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the fields as a dict for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class MotionStep:
    """Target of a motion in one tick, float64 [A], as `Tick.proposed`; None: ramp to rest.

    `done`: the motion is finished, and the robot holds. `failed`: why it was aborted; empty otherwise.
    """

    wanted: NDArray | None
    done: bool = False
    failed: str = ""


class Motion(Protocol):
    """Motion of the modes RETURN and REPLAY; starts when the operator asks for it with the dead man's switch held.

    Attributes:
        mode: RETURN or REPLAY. words: description of the motion, for the operator.
    """

    mode: Mode
    words: str

    def begin(self, measured: NDArray, commanded: NDArray, now_s: float) -> str:
        """Start at the present position; return why that is refused, empty if it is not.

        Args:
            measured: float64 [A] in q, NaN for entries that are not measured. commanded: float64 [A], the last command.
        """
        ...

    def step(self, measured: NDArray, now_s: float) -> MotionStep:
        """Return the present step; not called again after a step that is done or failed."""
        ...
