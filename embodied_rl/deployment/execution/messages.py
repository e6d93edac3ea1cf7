"""Messages of an executor: chunk requests, chunks, refusals, and commands of the robot.

Shapes: `H` actions of a chunk, `A` action dimensions. A *step* counts the actions of a policy that were executed since
the epoch began; steps in which the robot held still do not count.
"""

from dataclasses import dataclass
from enum import StrEnum

from embodied_rl.interfaces.sim import Array, Source


@dataclass(frozen=True)
class ChunkRequest:
    """Request for a chunk that continues the plan from the present observation.

    Attributes:
        sequence: from 1; unique within one executor. epoch: an episode, or the time between two takeovers.
        step: actions executed when the observation was taken; entry i of the chunk is for step + i.
        prefix: float32 [p, A], the plan's actions from `step` on that the policy should continue; may be empty.
        committed: number of these actions that will be executed in any case. time: by the executor's clock.
    """

    sequence: int
    epoch: int
    step: int
    prefix: Array
    committed: int
    time: float


@dataclass(frozen=True)
class Chunk:
    """Answer to a request: actions float32 [H, A], of which entry i is for step + i, and the version of its weights."""

    sequence: int
    epoch: int
    step: int
    actions: Array
    policy_version: int = 0


class Reason(StrEnum):
    """Why a chunk was refused."""

    EPOCH = "wrong epoch"
    SEQUENCE = "out of sequence"
    STEP = "wrong step"
    SHAPE = "wrong shape"
    SHORT = "short"
    NOT_FINITE = "not finite"
    STALE = "stale"
    JUMP = "jump"


@dataclass(frozen=True)
class ChunkRefusal:
    """Refusal of a chunk: the reason, and a message with the numbers."""

    reason: Reason
    message: str


class Why(StrEnum):
    """Reason of a command."""

    PLAN = "plan"
    FIRST_CHUNK = "waiting for the first chunk"
    PAUSE = "waiting for the next chunk"
    EXHAUSTED = "plan exhausted"


@dataclass(frozen=True)
class RobotCommand:
    """Command of one control step.

    Attributes:
        action: float32 [A]; None if the plan has no action and the robot's hold action is unknown.
        why: `PLAN`, or why the robot holds still. step: the step that the action is for.
        sequence, policy_version: of the chunk; 0 and -1 for a hold.
        joins: whether it is the first action of its chunk that is executed.
    """

    action: Array | None
    why: Why
    step: int
    sequence: int = 0
    policy_version: int = -1
    joins: bool = False

    @property
    def source(self) -> Source:
        return Source.POLICY if self.why == Why.PLAN else Source.HOLD
