"""A snapshot of the core, for operators who come late, for logs and for recordings."""

from dataclasses import asdict, dataclass, field, replace

from embodied_rl.deployment.execution.executor import Executor
from embodied_rl.deployment.execution.tick import Mode, State


@dataclass(frozen=True)
class Status:
    """What the core is doing; all of it goes into JSON as it is.

    Attributes:
        time: by the core's clock. state, mode: of the core. why: in words, why the robot holds or stops.
        latched_s: when the emergency stop was latched; None: it is not.
        blocked: why the present mode must hold, though it goes on; empty if nothing blocks it.
        stale: in words, which streams are stale. said: the last refusal of what the operator asked for, until
            that is over.
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

    def add_executor(self, executor: Executor) -> "Status":
        """Return it with what the policy's executor does."""
        counts = self.counts | {str(name): count for name, count in executor.counts.items()}
        refused = {str(reason): count for reason, count in executor.refused.items()}
        known = {"epoch": executor.epoch, "step": executor.step, "planned": executor.remaining}
        return replace(self, **known, counts=counts, refused=refused)

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)
