"""Drives the whole core with what nobody should send, and counts what a robot must never do.

Everything is drawn: the robot, its clock, what its topics say and how they lie, the operator, the policy's answers, the
motions, the life cycle. What must never be is found by a model beside the core, in `Promises`.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.deployment.control import fuzz_drawing as drawing
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.limit_check import LimitCheck
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State, Stream, Tick
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

RECENT = 200
"""Readings that may be the newest one which the core accepted."""
SESSION = 2000
"""Ticks of one drawn robot."""
SHOWN = 10


@dataclass
class FuzzReport:
    """What came of it.

    Attributes:
        ticks: that were driven. moved: of them, those in which a command moved, by mode.
        violations: how often each promise was broken. first: the first of them, in words.
    """

    ticks: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)


def fuzz_core(ticks: int, seed: int) -> FuzzReport:
    """Drive so many ticks, of a new robot every `SESSION` ticks; return what came of it."""
    report = FuzzReport()
    while report.ticks < ticks:
        begun = report.ticks
        loop = FuzzedLoop(np.random.default_rng([seed, begun]))
        for tick in range(min(SESSION, ticks - begun)):
            made, broken = loop.tick()
            report.ticks += 1
            report.moved[made.mode] += loop.promises.moving
            report.violations.update(broken)
            if broken and len(report.first) < SHOWN:
                report.first.append(f"robot {seed}, {begun}, tick {tick}, {made.mode}: {', '.join(broken)}")
    return report


class Promises:
    """What a core must keep, whatever it is told. The latch of the stop is modelled from what the operator did alone,
    and that the robot stopped by itself from the times of ticks.

    Args:
        settings: of the robot.
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
        """Note that commands begin anew, at what is measured [A], NaN for nothing."""
        self._check.begin(self._find_start(measured))
        self._resting, self._ticked, self._lost = 0, np.nan, np.nan

    def _find_start(self, measured: np.ndarray) -> np.ndarray:
        """Return where commands begin, [A], given what is measured."""
        low, high = (np.array(self._settings.limits.list_values(edge)) for edge in ("low", "high"))
        return np.where(self._position, np.clip(np.nan_to_num(measured), low, high), 0.0)

    def observe(self, measured: np.ndarray) -> None:
        """Note what was measured, [A]."""
        self._recent.append(measured)

    def operate(self, operator: OperatorInput) -> None:
        """Note what the operator does."""
        before, self._operator = self._operator, operator
        stopped = operator.estop or (operator.wanted == Mode.ESTOP != before.wanted)
        self._latched = stopped or (self._latched and not (operator.reset and not before.reset))

    def request(self, request: ChunkRequest) -> None:
        """Note what the policy was asked for."""
        self._asked = request.sequence

    def find_broken(self, made: Tick, now: float) -> list[str]:
        """Return what a tick breaks."""
        if self._latched != (made.mode == Mode.ESTOP):
            return ["the latch of the emergency stop"]
        waits = self._is_lost(now)
        if made.command is None:
            return ["no command while active"] if made.state == State.ACTIVE and not waits else []
        if waits:
            return self._begin_again(made.command, now) or self._check.find_broken(made.command)
        broken = self._check.find_broken(made.command)
        must_rest = self._latched or self._is_released(now) or made.mode in (Mode.HOLD, Mode.ESTOP)
        self._resting = self._resting + 1 if must_rest or made.source == Source.HOLD else 0
        if self._resting > self._ramp + 1 and self.moving:
            broken.append("rest after the ramp")
        if must_rest and made.source != Source.HOLD:
            broken.append("nobody acts who must not")
        if made.source in (Source.POLICY, Source.SAFETY) and made.sequence <= self._barrier:
            broken.append("no old plan")
        self._barrier = self._barrier if made.mode == Mode.RUN else self._asked
        if made.action is None or not np.isfinite(made.action).all():
            broken.append("a finite action")
        return broken

    def _is_lost(self, now: float) -> bool:
        """Return whether the robot stopped by itself, and commands have not begun again before this tick."""
        passed, self._ticked = now - self._ticked, now
        if self._settings.lost_s is not None and passed > self._settings.lost_s:
            self._lost = now
        return bool(np.isfinite(self._lost))

    def _begin_again(self, command: np.ndarray, now: float) -> list[str]:
        """Note that commands begin again at this one, [A]; return what is wrong with when and where they do."""
        early = 0 <= now - self._lost < self._settings.settle_s
        known = np.array(self._settings.measured) & self._position
        places = [self._find_start(each) for each in self._recent]
        elsewhere = not any((command == place)[known].all() for place in places)
        self._check.begin(np.where(self._position, command, 0.0))
        self._resting, self._lost = 0, np.nan
        return ["settling before commands begin again"] * early + ["beginning where the robot is"] * elsewhere

    def _is_released(self, now: float) -> bool:
        longest, held = self._settings.deadman_s, self._operator.deadman
        return longest is not None and (held is None or not 0 <= now - held <= longest)


class FuzzedLoop:
    """A robot, its surroundings and its core.

    Args:
        rng: draws everything.

    Attributes:
        promises: that are checked.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._now, self._source_s = float(rng.uniform(0, 1e4)), float(rng.uniform(0, 1e9))
        source_clock = (lambda: int(self._source_s * 1e9)) if rng.random() < 0.5 else None
        self.core = DeploymentCore(lambda: self._now, source_clock)
        self._settings = drawing.draw_settings(rng)
        self._policy = drawing.draw_policy(rng, self._settings)
        self.core.configure(self._settings, self._policy)
        self.promises = Promises(self._settings)
        self._place = drawing.draw_inside(rng, self._settings.limits)
        self._position = np.array([entry.kind == "position" for entry in self._settings.limits.entries])
        self._measured = self._place
        self._streams: dict[str, Stream] = {}
        self._faults = {rule.name: "" for rule in self._settings.streams}
        self._habits, self._asked = drawing.OperatorHabits(), list[ChunkRequest]()

    def tick(self) -> tuple[Tick, list[str]]:
        """Let everything happen that happens in a tick; return it, and which promises it breaks."""
        self._pass_time()
        self._say_streams()
        self._habits = drawing.draw_habits(self._rng, self._habits)
        operator = drawing.draw_operator(self._rng, self._habits, self._settings.limits, self._now)
        self.core.operate(operator)
        self.promises.operate(operator)
        self._live()
        self._think()
        made = self.core.tick()
        if made.command is not None:
            self._follow(made.command)
        return made, self.promises.find_broken(made, self._now)

    def _pass_time(self) -> None:
        drawn, period = self._rng.random(), self._settings.period_s
        passed = period * float(self._rng.uniform(0.8, 1.2))
        if drawn < 0.004:
            passed = float(self._rng.choice([-100.0, -period, 0.0, 0.5, 2.0, 100.0]))
        self._now += passed
        self._source_s += passed if drawn < 0.998 else float(self._rng.uniform(-1, 1))

    def _say_streams(self) -> None:
        self._faults = drawing.draw_faults(self._rng, self._faults)
        for name, fault in self._faults.items():
            if self._rng.random() < 0.7:
                said = drawing.draw_message(self._rng, self._streams.get(name), fault, self._source_s, self._now)
                self._streams |= {} if said is None else {name: said}
        self._measured = np.where(self._settings.measured, self._place, np.nan)
        if self._rng.random() < 0.005:
            self._measured = drawing.draw_wanted(self._rng, self._settings.limits)
        self.core.observe(self._streams, self._measured)
        self.promises.observe(self._measured)

    def _live(self) -> None:
        """Take a transition of the life cycle now and then."""
        drawn = self._rng.random()
        if self.core.state == State.INACTIVE and drawn < 0.3:
            self._try(self._activate)
        elif drawn < 0.002:
            self._try(lambda: self.core.deactivate(at_once=drawn < 0.0005))
        elif drawn < 0.003:
            self.core.forget_streams()
        elif drawn < 0.02:
            self._try(lambda: self.core.plan(drawing.WildMotion(self._rng, self._settings.limits)))

    def _activate(self) -> None:
        self.core.activate(self._measured)
        self.promises.activate(np.where(self._settings.measured, self._measured, np.nan))

    def _think(self) -> None:
        if (request := self.core.request()) is not None:
            self._asked.append(request)
            self.promises.request(request)
        if self._asked and self._rng.random() < 0.4:
            self.core.receive(drawing.draw_answer(self._rng, self._asked.pop(0), self._policy))

    def _follow(self, command: np.ndarray) -> None:
        """Move the robot; now and then it is blocked."""
        if self._rng.random() < 0.95:
            moved = np.where(self._position, 0.7 * (command - self._place), command * self._settings.period_s)
            self._place = self._place + moved

    @staticmethod
    def _try(call: Callable[[], object]) -> None:
        """Call what the core may refuse."""
        try:
            call()
        except UserError:
            return
