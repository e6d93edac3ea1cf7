"""Executor: executes chunks of actions while the policy infers the next one, on a robot or in simulation.

The executor is pure. A control loop calls `request` and `act` once in each control step, in this order, and `receive`
for each chunk, at any time. Chunks are aligned by executed steps, not by latency: entry i of a chunk is the i-th action
after its observation, however long the inference took; steps in which the robot held still do not count.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest, Reason, RobotCommand, Why
from embodied_rl.deployment.execution.settings import CONTINUING, Settings
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec

WINDOW = 256
"""Delays that are kept: enough for a 99 % quantile, few enough to follow a server that becomes slower."""
LAST = 0.99
"""Quantile of the delays that decides when the next request is due."""


@dataclass(frozen=True)
class Hold:
    """Hold action of one robot, float32 [A]; entries of `kept`, bool [A], repeat the last command."""

    action: Array
    kept: Array

    def choose(self, last: Array | None) -> Array:
        """Return the hold action float32 [A] after the command `last` [A]; None: there was none."""
        return self.action.copy() if last is None else np.where(self.kept, last, self.action).astype(np.float32)


def make_hold(spec: SimulatorSpec, given: tuple[float, ...] | None = None) -> Hold:
    """Return the hold action of a simulated robot: the user's if given, of which no entry repeats its last command.

    Raises:
        UserError: neither the simulator nor the user defines it, or the given action does not fit.
    """
    action = spec.hold if given is None else given
    names = ", ".join(spec.action_names)
    if action is None:
        raise UserError(
            "delay: this simulator does not say with which action its robot holds still, as it does while it waits for "
            f"its first chunk. Give it: hold=[…], {len(spec.action_names)} numbers for {names}.",
            code="hold-missing",
        )
    inside = [low <= value <= high for low, value, high in zip(spec.action_low, action, spec.action_high, strict=False)]
    if len(action) != len(spec.action_names) or not all(inside):
        limits = f"{list(spec.action_low)} to {list(spec.action_high)}"
        raise UserError(
            f"hold={list(action)}: {len(spec.action_names)} numbers, for {names}, within {limits}.", code="hold-invalid"
        )
    kept = [given is None and name in spec.kept_while_holding for name in spec.action_names]
    return Hold(np.array(action, np.float32), np.array(kept))


class Latency:
    """Measured delays from a request to its answer; `expected` seconds until two answers have come.

    The first one is left out, because the policy warms up.
    """

    def __init__(self, expected: float) -> None:
        self._expected = expected
        self._seen: deque[float] = deque(maxlen=WINDOW)
        self._warm = False

    def add(self, seconds: float) -> None:
        """Add a measured delay."""
        if self._warm:
            self._seen.append(seconds)
        self._warm = True

    def count_steps(self, quantile: float, control_hz: float) -> int:
        """Return a quantile in whole control steps, rounded up; a thousandth of a step is the clock's rounding."""
        seconds = self._expected
        if self._seen:
            seconds = float(np.quantile(np.array(self._seen), quantile, method="higher"))
        return math.ceil(seconds * control_hz - 1e-3)


class _Planned(NamedTuple):
    """A command of the plan; it may be executed until `expires`, in seconds of the clock."""

    command: RobotCommand
    expires: float


class Executor:
    """Executor of one policy's chunks on one robot.

    Args:
        settings: how chunks are joined and when they are refused.
        clock: returns seconds; monotonic. A simulation counts control steps instead, with `control_hz` 1.
        hold: how the robot holds still; None: a hold has no action.

    Attributes:
        epoch: number of the present epoch; 0 before `begin`.
        step: actions of the policy that were executed in this epoch.
        counts: of requests "asked", "accepted", "lost" and "late" (joined after the committed actions), of commands by
            `Why`, and of plans that "expired".
        refused: number of refused chunks by `Reason`.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], hold: Hold | None = None) -> None:
        self.settings, self._clock, self._hold = settings, clock, hold
        self.latency = Latency(settings.delay / settings.control_hz)
        self.epoch, self.step = 0, 0
        self.counts: Counter[str] = Counter()
        self.refused: Counter[Reason] = Counter()
        self._sequence = self._since = 0  # of the last request; control steps since then
        self._plan: deque[_Planned] = deque()
        self._asked: ChunkRequest | None = None
        self._last: Array | None = None

    def begin(self, command: Array | None = None) -> None:
        """Start a new epoch after the last command, float32 [A], and drop the plan and the open request.

        An epoch is an episode, or acting after a takeover.
        """
        self.epoch, self.step = self.epoch + 1, 0
        self._plan.clear()
        self._asked = None
        self._last = None if command is None else np.array(command, np.float32)

    @property
    def remaining(self) -> int:
        """Return the number of actions in the plan."""
        return len(self._plan)

    def correct(self, action: Array) -> None:
        """Replace the last command by the executed action, such as after a safety filter; float32 [A]."""
        self._last = np.array(action, np.float32)

    def request(self) -> ChunkRequest | None:
        """Return the next request if it is due, else None; to be sent with the newest observation.

        There is one request at a time. A request without an answer in time counts as lost, and its answer is refused.
        """
        if self._asked is not None and self._clock() - self._asked.time >= self._seconds(self.settings.longest_wait):
            self.counts["lost"] += 1
            self._asked, self._since = None, self.settings.replan
        settings, committed, known = self.settings, 0, 0  # number of actions in the prefix
        if self.epoch == 0 or self._asked is not None:
            return None
        if self._plan:  # due s steps after the last one, after a refusal, or before the plan runs out
            slowest = self.latency.count_steps(LAST, settings.control_hz)
            if settings.strategy == "stop" or (self._since < settings.replan and self.remaining > slowest):
                return None
        self._sequence, self._since = self._sequence + 1, 0
        self.counts["asked"] += 1
        if settings.strategy in CONTINUING:
            most = settings.horizon if settings.longest_prefix is None else settings.longest_prefix
            delay = self.latency.count_steps(settings.quantile, settings.control_hz)
            committed = min(delay, most, len(self._plan))
            known = committed if settings.strategy == "prefix" else max(committed, settings.horizon - settings.replan)
        prefix = self._stack_plan(0, known)
        self._asked = ChunkRequest(self._sequence, self.epoch, self.step, prefix, committed, self._clock())
        return self._asked

    def receive(self, chunk: Chunk) -> ChunkRefusal | None:
        """Join a chunk with the plan; return why the whole chunk was refused, None if it was accepted."""
        asked, refusal = self._asked, None
        if chunk.epoch != self.epoch:
            refusal = ChunkRefusal(Reason.EPOCH, f"a chunk of epoch {chunk.epoch} came in epoch {self.epoch}")
        elif asked is None or chunk.sequence != asked.sequence:
            waited = "none" if asked is None else str(asked.sequence)
            refusal = ChunkRefusal(Reason.SEQUENCE, f"answer {chunk.sequence} came, {waited} was waited for")
        else:
            self._asked = None
            self.latency.add(self._clock() - asked.time)
            refusal = self._check_actions(chunk) or self._join(chunk, asked)
            if refusal is not None:
                self._since = self.settings.replan  # the next request is due
        if refusal is not None:
            self.refused[refusal.reason] += 1
        return refusal

    def act(self) -> RobotCommand:
        """Return the command of this control step: the plan's next action, or a hold with its reason."""
        if self._plan and self._clock() >= self._plan[0].expires:
            self.counts["expired"] += 1
            self._plan.clear()  # all of it: no action is skipped
        self._since += 1
        if self._plan:
            made = self._plan.popleft().command
            self.step += 1
        else:
            why = Why.PAUSE if self.settings.strategy == "stop" else Why.EXHAUSTED
            action = None if self._hold is None else self._hold.choose(self._last)
            made = RobotCommand(action, why if self.step else Why.FIRST_CHUNK, self.step)
        self.counts[made.why] += 1
        self._last = made.action if made.action is not None else self._last
        return made

    def _check_actions(self, chunk: Chunk) -> ChunkRefusal | None:
        """Check dtype, shape and finiteness of a chunk's actions."""
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
        """Continue the plan with the chunk, from its first action that is neither executed nor committed."""
        if chunk.step != asked.step:
            return ChunkRefusal(Reason.STEP, f"a chunk begins at step {chunk.step}, and {asked.step} was asked for")
        kept = max(0, min(asked.step + asked.committed - self.step, len(self._plan)))
        first = self.step + kept - asked.step
        expires = asked.time + self._seconds(self.settings.budget)
        if first >= len(chunk.actions) or self._clock() >= expires:
            waited = (self._clock() - asked.time) * self.settings.control_hz
            return ChunkRefusal(Reason.STALE, f"a chunk came {waited:.1f} control steps after its observation")
        last = self.settings.replan if self.settings.strategy == "stop" else len(chunk.actions)
        clipped = np.clip(chunk.actions, self.settings.action_low, self.settings.action_high)
        actions = np.array(clipped[first:last], np.float32)
        if self.settings.strategy == "blend":
            old = self._stack_plan(kept, len(self._plan))
            count = min(self.settings.blend, len(old), len(actions))
            weight = (np.arange(1, count + 1, dtype=np.float32) / (self.settings.blend + 1))[:, None]
            actions[:count] = (1 - weight) * old[:count] + weight * actions[:count]
        before = self._plan[kept - 1].command.action if kept else self._last
        if self.settings.jump is not None and before is not None:
            excess = np.abs(actions[0] - before) - self.settings.jump
            if not (excess <= 0).all():
                worst = int(np.argmax(excess))
                said = f"entry {worst} would jump from {before[worst]:.4g} to {actions[0][worst]:.4g}"
                return ChunkRefusal(Reason.JUMP, f"{said}, by more than {self.settings.jump[worst]:.4g}")
        self.counts["accepted"] += 1
        self.counts["late"] += 0 < asked.committed < first
        self._plan = deque(list(self._plan)[:kept])
        for number, action in enumerate(actions):
            step, ids = self.step + kept + number, (chunk.sequence, chunk.policy_version)
            self._plan.append(_Planned(RobotCommand(action, Why.PLAN, step, *ids, joins=number == 0), expires))
        return None

    def _stack_plan(self, start: int, stop: int) -> Array:
        """Return a part of the plan, float32 [≤ stop - start, A]."""
        actions = [each.command.action for each in list(self._plan)[start:stop] if each.command.action is not None]
        return np.stack(actions) if actions else np.zeros((0, len(self.settings.action_low)), np.float32)

    def _seconds(self, steps: int) -> float:
        return steps / self.settings.control_hz
