"""Random robots, policies, chunks, readings, faults and operator input for fuzzing the core."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.settings import CoreSettings, StreamRule
from embodied_rl.deployment.execution.limits import ENTRY_KINDS, CommandLimits, EntryLimits
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest
from embodied_rl.deployment.execution.settings import STRATEGIES, Settings
from embodied_rl.deployment.execution.tick import Mode, MotionStep, OperatorInput, StreamReading

Random = np.random.Generator
Vector = NDArray[np.float64]
WILD = (math.nan, math.inf, -math.inf, 1e30, -1e30, 1e6)
FAULTS = ("silent", "same content", "same stamp", "back", "future", "not finite", "twice")


def sample_settings(rng: Random) -> CoreSettings:
    """Return the settings of a robot with 1 to 5 entries."""
    entries: tuple[EntryLimits, ...] = ()
    for number in range(int(rng.integers(1, 6))):
        low, speed = float(rng.uniform(-3, 1)), float(rng.uniform(0.1, 3))
        high, acceleration = low + float(rng.uniform(0.2, 4)), speed * float(rng.uniform(2, 40))
        kind = ENTRY_KINDS[int(rng.integers(len(ENTRY_KINDS)))]
        jerk = acceleration * float(rng.uniform(5, 100))
        entries += (EntryLimits(f"entry {number}", kind, low, high, speed, acceleration, jerk),)
    control_hz = float(rng.choice([5.0, 12.5, 20.0]))
    measured = tuple(bool(entry.kind != "position" or rng.random() < 0.7) for entry in entries)
    age = float(rng.uniform(0.1, 0.4))
    streams = (
        StreamRule("joints", age, may_repeat=bool(rng.random() < 0.5), measures=True),
        StreamRule("tool", age, may_repeat=True, measures=True),
        StreamRule("front", age, may_repeat=bool(rng.random() < 0.5), sees=True),
    )
    command_hz = control_hz * int(rng.choice([1, 2, 8]))
    lost_s = float(rng.uniform(1.5, 30)) / command_hz if rng.random() < 0.7 else None
    tracking = tuple(float(rng.choice([math.inf, 0.5])) for _ in entries)
    return CoreSettings(
        CommandLimits(entries),
        control_hz,
        command_hz,
        streams[: int(rng.integers(1, 4))],
        measured,
        tuple(bool(rng.random() < 0.2) for _ in entries),
        tracking,
        deadman_s=float(rng.uniform(0.1, 0.3)) if rng.random() < 0.7 else None,
        silence_s=float(rng.uniform(0.1, 1.0)) if rng.random() < 0.5 else None,
        lost_s=lost_s,
        settle_s=float(rng.uniform(0.05, 0.5)),
    )


def sample_policy(rng: Random, settings: CoreSettings) -> Settings:
    """Return the execution settings of a policy for this robot."""
    lows, highs = [], []
    for entry in settings.limits.entries:
        step = entry.speed / settings.control_hz
        ranges = {"position": (entry.low, entry.high), "displacement": (-step, step)}
        low, high = ranges.get(entry.kind, (-entry.speed, entry.speed))
        lows.append(low - 0.1)
        highs.append(high + 0.1)
    strategy = STRATEGIES[int(rng.integers(len(STRATEGIES)))]
    low, high = np.array(lows, np.float32), np.array(highs, np.float32)
    jump = (high - low) / 2 if rng.random() < 0.3 else None
    return Settings(8, low, high, strategy, 3, 2, settings.control_hz, jump=jump)


def sample_inside(rng: Random, limits: CommandLimits) -> Vector:
    """Return a position inside the box, [A]."""
    return np.array([rng.uniform(entry.low, entry.high) for entry in limits.entries])


def sample_wanted(rng: Random, limits: CommandLimits) -> Vector:
    """Return a target [A]: mostly near the box, else far out, NaN or infinite."""
    wanted = sample_inside(rng, limits) * float(rng.choice([0.2, 1.0, 3.0]))
    if rng.random() < 0.1:
        wanted[rng.integers(len(wanted))] = rng.choice(WILD)
    return wanted


def sample_answer(rng: Random, request: ChunkRequest, policy: Settings) -> Chunk:
    """Return a chunk, sometimes of another shape, number, epoch or step, or with NaN."""
    actions = rng.uniform(policy.action_low, policy.action_high, (policy.horizon, len(policy.action_low)))
    chunk = Chunk(request.sequence, request.epoch, request.step, actions.astype(np.float32), int(rng.integers(3)))
    drawn = rng.random()
    if drawn < 0.03:
        chunk.actions[rng.integers(len(actions)), 0] = rng.choice(WILD)
    changes = ({"sequence": request.sequence - 1}, {"epoch": request.epoch + 1}, {"step": request.step + 1})
    if drawn > 0.95:
        chunk = replace(chunk, **changes[int(rng.integers(3))])
    return replace(chunk, actions=chunk.actions[:-1]) if 0.93 < drawn < 0.95 else chunk


def sample_message(
    rng: Random, last: StreamReading | None, fault: str, source_s: float, now: float
) -> StreamReading | None:
    """Return a topic's newest reading under a fault, empty for none; None: there is none yet."""
    if fault == "silent":
        return last
    stream = StreamReading(int(source_s * 1e9), now, rng.bytes(4), fault != "not finite")
    if last is None or fault in ("", "not finite"):
        return stream
    changes = {
        "same content": {"digest": last.digest},
        "same stamp": {"source_ns": last.source_ns},
        "back": {"source_ns": last.source_ns - int(rng.integers(1, 10**9))},
        "future": {"source_ns": stream.source_ns + int(5e9)},
        "twice": {"digest": last.digest, "source_ns": last.source_ns},
    }
    return replace(stream, **changes[fault])


class RandomOperator:
    """Random operator, whose state changes rarely: stop pressed, dead man's switch held, device silent."""

    def __init__(self) -> None:
        self._pressed = self._held = self._away = False

    def sample_input(self, rng: Random, limits: CommandLimits, now: float) -> OperatorInput:
        """Return the operator's input in a tick."""
        self._pressed = bool(rng.random() > 0.1 if self._pressed else rng.random() < 0.003)
        self._held = bool(rng.random() > 0.01 if self._held else rng.random() < 0.2)
        self._away = bool(rng.random() > 0.1 if self._away else rng.random() < 0.02)
        wanted = None
        if rng.random() < 0.1:
            wanted = tuple(Mode)[int(rng.integers(len(Mode)))]
            wanted = None if wanted == Mode.ESTOP and rng.random() < 0.9 else wanted
        teleop: Vector | None = sample_wanted(rng, limits)
        touched = rng.random(len(limits.entries)) < 0.8
        teleop = np.where(touched, teleop, np.nan)
        if rng.random() < 0.01:
            teleop = teleop[:-1]
        return OperatorInput(
            estop=self._pressed,
            reset=bool(rng.random() < 0.2),
            deadman=now if self._held else None,
            wanted=wanted,
            teleop=None if self._away else teleop,
            teleop_s=now - float(rng.choice([0.0, 0.1, 1.0, -1.0], p=[0.9, 0.08, 0.01, 0.01])),
            label="success" if rng.random() < 0.002 else "",
        )


def sample_faults(rng: Random, faults: Mapping[str, str]) -> dict[str, str]:
    """Return the fault of each topic in the next tick: mostly as before, and mostly none."""
    drawn = {}
    for name, fault in faults.items():
        changes = rng.random() < (0.2 if fault else 0.004)
        drawn[name] = "" if fault else FAULTS[int(rng.integers(len(FAULTS)))]
        drawn[name] = drawn[name] if changes else fault
    return drawn


class RandomMotion:
    """Motion with random targets; a `embodied_rl.deployment.execution.tick.Motion`."""

    words = "anything"

    def __init__(self, rng: Random, limits: CommandLimits) -> None:
        self.mode = Mode.RETURN if rng.random() < 0.5 else Mode.REPLAY
        self._rng, self._limits = rng, limits

    def begin(self, measured: Vector, commanded: Vector, now_s: float) -> str:
        """Start, or refuse to."""
        return "not today" if self._rng.random() < 0.1 else ""

    def step(self, measured: Vector, now_s: float) -> MotionStep:
        """Return a random step."""
        drawn = self._rng.random()
        wanted = None if drawn < 0.02 else sample_wanted(self._rng, self._limits)
        return MotionStep(wanted, done=drawn > 0.995, failed="it broke" if 0.99 < drawn < 0.995 else "")
