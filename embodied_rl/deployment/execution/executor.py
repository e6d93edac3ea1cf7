"""The executor: executes chunks of actions while the policy infers the next one, on a robot or in simulation.

It is pure. A control loop calls `request` and `act` once in each control step, in this order, and `receive` for each
answer, before or between. Chunks are aligned by executed steps, never by latency: entry i of a chunk is for the i-th
action after its observation, however long the inference took, and steps in which the robot held still do not count.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from embodied_rl.deployment.execution.hold import Hold
from embodied_rl.deployment.execution.latency import LAST, Latency
from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest, Reason, RobotCommand, Why
from embodied_rl.deployment.execution.settings import CONTINUING, Settings
from embodied_rl.interfaces.sim import Array


@dataclass(frozen=True)
class _Planned:
    """An action of the plan: until when it may be executed, in seconds of the clock; the rest as in `RobotCommand`."""

    action: Array
    expires: float
    sequence: int
    policy_version: int
    joins: bool


class Executor:
    """Executes the chunks of one policy on one robot.

    Args:
        settings: how chunks are joined and what is refused.
        clock: returns seconds; monotonic. A simulation counts control steps instead, with `control_hz` 1.
        hold: how the robot holds still; None: a command without an action says that there is none.

    Attributes:
        epoch: number of the present epoch; 0 before `begin`.
        step: actions of the policy that were executed in this epoch.
        counts: how many requests were "asked", "accepted", "lost" and "late" (joined after what was committed), how
            many commands came for each `Why`, and how many plans "expired".
        refused: how many chunks were refused for each `Reason`.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], hold: Hold | None = None) -> None:
        self.settings, self._clock, self._hold = settings, clock, hold
        self.latency = Latency(settings.delay / settings.control_hz)
        self.epoch, self.step = 0, 0
        self.counts: Counter[str] = Counter()
        self.refused: Counter[Reason] = Counter()
        self._sequence, self._since = 0, 0
        self._plan: deque[_Planned] = deque()
        self._asked: ChunkRequest | None = None
        self._last: Array | None = None

    def begin(self, command: Array | None = None) -> None:
        """Start a new epoch: an episode, or acting after a takeover. The plan and what was asked for are forgotten.

        Args:
            command: float32 [A], what the robot was commanded last, if known.
        """
        self.epoch, self.step = self.epoch + 1, 0
        self._plan.clear()
        self._asked = None
        self._last = None if command is None else np.array(command, np.float32)

    @property
    def remaining(self) -> int:
        """Return how many actions the plan has."""
        return len(self._plan)

    def correct(self, action: Array) -> None:
        """Tell what was executed in place of the last command, such as by a safety filter; float32 [A]."""
        self._last = np.array(action, np.float32)

    def request(self) -> ChunkRequest | None:
        """Return the next request where it is time for one, else None. Ask the policy with the newest observation.

        There is one request at a time. One that is not answered in time counts as lost, and its answer is refused.
        """
        if self._asked is not None and self._clock() - self._asked.time >= self._seconds(self.settings.longest_wait):
            self.counts["lost"] += 1
            self._asked, self._since = None, self.settings.replan
        if self.epoch == 0 or self._asked is not None or not self._is_due():
            return None
        self._sequence += 1
        self._since = 0
        self.counts["asked"] += 1
        committed, known = self._choose_prefix()
        prefix = self._stack(each.action for each in known)
        self._asked = ChunkRequest(self._sequence, self.epoch, self.step, prefix, committed, self._clock())
        return self._asked

    def receive(self, chunk: Chunk) -> ChunkRefusal | None:
        """Join a chunk with the plan; or refuse it whole, and say why."""
        refusal = self._identify(chunk)
        if refusal is None:
            assert self._asked is not None, "an answer that was identified was asked for"
            asked, self._asked = self._asked, None
            self.latency.add(self._clock() - asked.time)
            refusal = self._check_actions(chunk) or self._join(chunk, asked)
            if refusal is not None:
                self._since = self.settings.replan  # ask again at once
        if refusal is not None:
            self.refused[refusal.reason] += 1
        return refusal

    def act(self) -> RobotCommand:
        """Return the command of this control step: the plan's next action, or a hold that says why."""
        if self._plan and self._clock() >= self._plan[0].expires:
            self.counts["expired"] += 1
            self._plan.clear()  # whole: what lies behind an action that is left out is for later steps
        self._since += 1
        made = self._take() if self._plan else self._hold_still()
        self.counts[made.why] += 1
        self._last = made.action if made.action is not None else self._last
        return made

    def _take(self) -> RobotCommand:
        planned, step = self._plan.popleft(), self.step
        self.step += 1
        return RobotCommand(planned.action, Why.PLAN, step, planned.sequence, planned.policy_version, planned.joins)

    def _hold_still(self) -> RobotCommand:
        why = Why.PAUSE if self.settings.strategy == "stop" else Why.EXHAUSTED
        if not self.step:
            why = Why.FIRST_CHUNK
        return RobotCommand(None if self._hold is None else self._hold.choose(self._last), why, self.step)

    def _is_due(self) -> bool:
        """Return whether it is time to ask: s steps after the last request, or earlier where the plan would not last,
        or after a refusal. "stop" asks when the plan is done.
        """
        if not self._plan:
            return True
        if self.settings.strategy == "stop":
            return False
        slowest = self.latency.count_steps(LAST, self.settings.control_hz)
        return self._since >= self.settings.replan or self.remaining <= slowest

    def _choose_prefix(self) -> tuple[int, list[_Planned]]:
        """Return how many actions are committed, and those that the policy is shown."""
        if self.settings.strategy not in CONTINUING:
            return 0, []
        most = self.settings.horizon if self.settings.longest_prefix is None else self.settings.longest_prefix
        delay = self.latency.count_steps(self.settings.quantile, self.settings.control_hz)
        committed = min(delay, most, len(self._plan))
        overlap = 0 if self.settings.strategy == "prefix" else self.settings.horizon - self.settings.replan
        return committed, list(self._plan)[: max(committed, overlap)]

    def _identify(self, chunk: Chunk) -> ChunkRefusal | None:
        asked = self._asked
        if chunk.epoch != self.epoch:
            return ChunkRefusal(Reason.EPOCH, f"a chunk of epoch {chunk.epoch} came in epoch {self.epoch}")
        if asked is None or chunk.sequence != asked.sequence:
            waited = "none" if asked is None else str(asked.sequence)
            return ChunkRefusal(Reason.SEQUENCE, f"answer {chunk.sequence} came, {waited} was waited for")
        return None

    def _check_actions(self, chunk: Chunk) -> ChunkRefusal | None:
        shape, wanted = np.shape(chunk.actions), (self.settings.horizon, len(self.settings.action_low))
        if np.asarray(chunk.actions).dtype.kind not in "fiu":
            return ChunkRefusal(Reason.SHAPE, f"a chunk holds {np.asarray(chunk.actions).dtype}, not numbers")
        if len(shape) != 2 or shape[1] != wanted[1] or shape[0] > wanted[0]:
            return ChunkRefusal(Reason.SHAPE, f"a chunk has the shape {list(shape)}, not {list(wanted)}")
        if shape[0] < wanted[0]:
            return ChunkRefusal(Reason.SHORT, f"a chunk has {shape[0]} actions, not {wanted[0]}")
        if not np.isfinite(chunk.actions).all():
            return ChunkRefusal(Reason.NOT_FINITE, "a chunk holds NaN or infinity")
        return None

    def _join(self, chunk: Chunk, asked: ChunkRequest) -> ChunkRefusal | None:
        """Let the plan continue with the chunk, from the first entry that is neither executed nor committed."""
        if chunk.step != asked.step:
            return ChunkRefusal(Reason.STEP, f"a chunk begins at step {chunk.step}, and {asked.step} was asked for")
        kept = max(0, min(asked.step + asked.committed - self.step, len(self._plan)))
        first = self.step + kept - asked.step
        expires = asked.time + self._seconds(self.settings.budget)
        if first >= len(chunk.actions) or self._clock() >= expires:
            waited = (self._clock() - asked.time) * self.settings.control_hz
            return ChunkRefusal(Reason.STALE, f"a chunk came {waited:.1f} control steps after its observation")
        actions = self._blend(np.clip(chunk.actions, self.settings.action_low, self.settings.action_high), first, kept)
        if (refusal := self._check_jump(actions[0], kept)) is not None:
            return refusal
        old = list(self._plan)[:kept]
        entries = enumerate(actions)
        new = [_Planned(each, expires, chunk.sequence, chunk.policy_version, number == 0) for number, each in entries]
        self.counts["accepted"] += 1
        self.counts["late"] += 0 < asked.committed < first
        self._plan = deque([*old, *new])
        return None

    def _blend(self, actions: Array, first: int, kept: int) -> Array:
        """Return the chunk's actions from `first` on as they are executed, float32 [≤ H, A]."""
        last = self.settings.replan if self.settings.strategy == "stop" else len(actions)
        chosen = np.array(actions[first:last], np.float32)
        if self.settings.strategy != "blend":
            return chosen
        old = self._stack(each.action for each in list(self._plan)[kept:])
        count = min(self.settings.blend, len(old), len(chosen))
        weight = (np.arange(1, count + 1, dtype=np.float32) / (self.settings.blend + 1))[:, None]
        chosen[:count] = (1 - weight) * old[:count] + weight * chosen[:count]
        return chosen

    def _check_jump(self, action: Array, kept: int) -> ChunkRefusal | None:
        before = self._plan[kept - 1].action if kept else self._last
        if self.settings.jump is None or before is None:
            return None
        excess = np.abs(action - before) - self.settings.jump
        if (excess <= 0).all():
            return None
        worst = int(np.argmax(excess))
        said = f"entry {worst} would jump from {before[worst]:.4g} to {action[worst]:.4g}"
        return ChunkRefusal(Reason.JUMP, f"{said}, by more than {self.settings.jump[worst]:.4g}")

    def _stack(self, actions: Iterable[Array]) -> Array:
        listed = list(actions)
        return np.stack(listed) if listed else np.zeros((0, len(self.settings.action_low)), np.float32)

    def _seconds(self, steps: int) -> float:
        return steps / self.settings.control_hz
