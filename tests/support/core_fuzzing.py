"""Fuzzing of the deployment core: drives it with invalid inputs, and counts violated invariants.

The robot, its clock, topics and their faults, the operator, the policy's chunks, the motions and the life cycle are
sampled. `Invariants` checks each tick with a model that is independent of the core.
"""

import contextlib
import math
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State, StreamReading, Tick
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from tests.support import core_fuzz_sampling as sampling

RECENT = 200
"""Readings among which the last one that the core accepted must be."""
SESSION = 2000
"""Ticks of one sampled robot."""
SHOWN = 10
ROUNDING = 1e-6
"""Largest relative excess over a limit by rounding: differences of double precision numbers."""


@dataclass
class FuzzReport:
    """Number of ticks, of ticks that move the robot by mode, of violations by invariant, and the first violations."""

    ticks: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)


def fuzz_core(ticks: int, seed: int) -> FuzzReport:
    """Run a number of ticks, with a new robot every `SESSION` ticks; return the result."""
    report = FuzzReport()
    while report.ticks < ticks:
        begun = report.ticks
        loop = FuzzedLoop(np.random.default_rng([seed, begun]))
        for tick in range(min(SESSION, ticks - begun)):
            made, broken = loop.tick()
            report.ticks += 1
            report.moved[made.mode] += loop.invariants.moving
            report.violations.update(broken)
            if broken and len(report.first) < SHOWN:
                report.first.append(f"robot {seed}, {begun}, tick {tick}, {made.mode}: {', '.join(broken)}")
    return report


class LimitCheck:
    """Check of one robot's commands against its limits, from their differences, without any code of the filter."""

    def __init__(self, limits: CommandLimits, period_s: float) -> None:
        self._position = np.array([entry.kind == "position" for entry in limits.entries])
        self._low, self._high = (np.array(limits.list_values(edge)) for edge in ("low", "high"))
        self._most = [np.array(limits.list_values(name)) for name in ("speed", "acceleration", "jerk")]
        self._period_s, self._count = period_s, len(limits.entries)
        self.begin(np.zeros(self._count))

    def begin(self, command: NDArray[np.float64]) -> None:
        """Start at rest at a command [A]."""
        self._before = command.copy()
        self._rates = [np.zeros(self._count), np.zeros(self._count)]  # speed and acceleration

    def find_broken(self, command: NDArray[np.float64]) -> list[str]:
        """Return which limits the next command [A] violates; empty for none."""
        if command.shape != (self._count,) or not np.isfinite(command).all():
            return ["finite"]
        broken = []
        if (self._position & ((command < self._low) | (command > self._high))).any():
            broken.append("box")
        change = (command - self._before) / self._period_s
        speed = np.where(self._position, change, command)
        acceleration = np.where(self._position, (speed - self._rates[0]) / self._period_s, change)
        jerk = (acceleration - self._rates[1]) / self._period_s
        grain = 8 * math.ulp(float(np.abs(command).max()) + 1.0)
        derivatives = {"speed": speed, "acceleration": acceleration, "jerk": jerk}
        for order, (name, value) in enumerate(derivatives.items()):
            rounding = grain / self._period_s ** (order + 1)
            if (np.abs(value) > self._most[order] * (1 + ROUNDING) + rounding).any():
                broken.append(name)
        self._before, self._rates = command.copy(), [speed, acceleration]
        return broken

    @property
    def moving(self) -> bool:
        """Return whether the last command moves the robot."""
        return bool((self._rates[0] != 0).any())


class Invariants:
    """Invariants that a core must keep for any input.

    The latch of the emergency stop is modelled from the operator's input, the command timeout from the times of ticks.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._check = LimitCheck(settings.limits, settings.period_s)
        self._ramp = round(measure_longest_ramp(settings.limits, settings.period_s) * settings.command_hz)
        self._resting, self._barrier, self._asked = 0, 0, 0
        self._latched, self._operator = False, OperatorInput()
        self._position = np.array([entry.kind == "position" for entry in settings.limits.entries])
        self._recent: deque[np.ndarray] = deque(maxlen=RECENT)
        self._ticked, self._lost = np.nan, np.nan

    @property
    def moving(self) -> bool:
        """Return whether the last command moves the robot."""
        return self._check.moving

    def activate(self, measured: np.ndarray) -> None:
        """Note an activation at a measured position [A], NaN for entries that are not measured."""
        self._check.begin(self._find_start(measured))
        self._resting, self._ticked, self._lost = 0, np.nan, np.nan

    def _find_start(self, measured: np.ndarray) -> np.ndarray:
        """Return where commands start, [A], at a measured position."""
        low, high = (np.array(self._settings.limits.list_values(edge)) for edge in ("low", "high"))
        return np.where(self._position, np.clip(np.nan_to_num(measured), low, high), 0.0)

    def observe(self, measured: np.ndarray) -> None:
        """Note a measured position [A]."""
        self._recent.append(measured)

    def operate(self, operator: OperatorInput) -> None:
        """Note the operator's input."""
        before, self._operator = self._operator, operator
        stopped = operator.estop or (operator.wanted == Mode.ESTOP != before.wanted)
        self._latched = stopped or (self._latched and not (operator.reset and not before.reset))

    def request(self, request: ChunkRequest) -> None:
        """Note a request to the policy."""
        self._asked = request.sequence

    def find_broken(self, made: Tick, now: float) -> list[str]:
        """Return which invariants a tick violates."""
        if self._latched != (made.mode == Mode.ESTOP):
            return ["the latch of the emergency stop"]
        passed, self._ticked = now - self._ticked, now
        if self._settings.lost_s is not None and passed > self._settings.lost_s:
            self._lost = now
        waits = bool(np.isfinite(self._lost))  # the robot stopped, and commands have not restarted yet
        if made.command is None:
            return ["no command while active"] if made.state == State.ACTIVE and not waits else []
        if waits:
            early = 0 <= now - self._lost < self._settings.settle_s
            known = np.array(self._settings.measured) & self._position
            places = [self._find_start(each) for each in self._recent]
            elsewhere = not any((made.command == place)[known].all() for place in places)
            self._check.begin(np.where(self._position, made.command, 0.0))
            self._resting, self._lost = 0, np.nan
            broken = ["settling before commands begin again"] * early + ["beginning where the robot is"] * elsewhere
            return broken or self._check.find_broken(made.command)
        broken = self._check.find_broken(made.command)
        longest, held = self._settings.deadman_s, self._operator.deadman
        released = longest is not None and (held is None or not 0 <= now - held <= longest)
        must_rest = self._latched or released or made.mode in (Mode.HOLD, Mode.ESTOP)
        self._resting = self._resting + 1 if must_rest or made.source == Source.HOLD else 0
        if self._resting > self._ramp + 1 and self.moving:
            broken.append("rest after the ramp")
        if must_rest and made.source != Source.HOLD:
            broken.append("source must be hold")
        if made.source in (Source.POLICY, Source.SAFETY) and made.sequence <= self._barrier:
            broken.append("no old plan")
        self._barrier = self._barrier if made.mode == Mode.RUN else self._asked
        if made.action is None or not np.isfinite(made.action).all():
            broken.append("a finite action")
        return broken


class FuzzedLoop:
    """A sampled robot and its environment, with the core under test and the `invariants` that are checked."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._now, self._source_s = float(rng.uniform(0, 1e4)), float(rng.uniform(0, 1e9))
        source_clock = (lambda: int(self._source_s * 1e9)) if rng.random() < 0.5 else None
        self.core = DeploymentCore(lambda: self._now, source_clock)
        self._settings = sampling.sample_settings(rng)
        self._policy = sampling.sample_policy(rng, self._settings)
        self.core.configure(self._settings, self._policy)
        self.invariants = Invariants(self._settings)
        self._place = sampling.sample_inside(rng, self._settings.limits)
        self._position = np.array([entry.kind == "position" for entry in self._settings.limits.entries])
        self._measured = self._place
        self._streams: dict[str, StreamReading] = {}
        self._faults = {rule.name: "" for rule in self._settings.streams}
        self._human, self._asked = sampling.RandomOperator(), list[ChunkRequest]()

    def tick(self) -> tuple[Tick, list[str]]:
        """Run one tick; return it, and which invariants it violates."""
        rng, period = self._rng, self._settings.period_s
        drawn, passed = rng.random(), period * float(rng.uniform(0.8, 1.2))
        if drawn < 0.004:
            passed = float(rng.choice([-100.0, -period, 0.0, 0.5, 2.0, 100.0]))
        self._now += passed
        self._source_s += passed if drawn < 0.998 else float(rng.uniform(-1, 1))
        self._faults = sampling.sample_faults(rng, self._faults)
        for name, fault in self._faults.items():
            if rng.random() < 0.7:
                said = sampling.sample_message(rng, self._streams.get(name), fault, self._source_s, self._now)
                self._streams |= {} if said is None else {name: said}
        self._measured = np.where(self._settings.measured, self._place, np.nan)
        if rng.random() < 0.005:
            self._measured = sampling.sample_wanted(rng, self._settings.limits)
        self.core.observe(self._streams, self._measured)
        self.invariants.observe(self._measured)
        operator = self._human.sample_input(rng, self._settings.limits, self._now)
        self.core.operate(operator)
        self.invariants.operate(operator)
        self._step_life_cycle()
        if (request := self.core.request()) is not None:
            self._asked.append(request)
            self.invariants.request(request)
        if self._asked and rng.random() < 0.4:
            self.core.receive(sampling.sample_answer(rng, self._asked.pop(0), self._policy))
        made = self.core.tick()
        if made.command is not None and rng.random() < 0.95:  # otherwise the robot is blocked
            moved = np.where(self._position, 0.7 * (made.command - self._place), made.command * period)
            self._place = self._place + moved
        return made, self.invariants.find_broken(made, self._now)

    def _step_life_cycle(self) -> None:
        """Change the state, forget the streams, or plan a motion, rarely."""
        drawn = self._rng.random()
        with contextlib.suppress(UserError):
            if self.core.state == State.INACTIVE and drawn < 0.3:
                self.core.activate(self._measured)
                self.invariants.activate(np.where(self._settings.measured, self._measured, np.nan))
            elif drawn < 0.002:
                self.core.deactivate(at_once=drawn < 0.0005)
            elif drawn < 0.003:
                self.core.forget_streams()
            elif drawn < 0.02:
                self.core.plan(sampling.RandomMotion(self._rng, self._settings.limits))
