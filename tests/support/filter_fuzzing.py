"""Fuzzing of the safety filter: random robots, adversarial inputs, and a check of the commands.

The check compares differences of the commands with the limits. It shares no code with the filter.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import ENTRY_KINDS, CommandLimits, EntryLimits
from embodied_rl.deployment.execution.safety_filter import SafetyFilter

Numbers = NDArray[np.float64]
TOLERANCE = 1e-9
"""Relative tolerance of each limit."""
EPISODE = 1000
"""Ticks of one robot."""
STRETCH = 60
"""Mean number of ticks of one kind of input."""
VIOLATIONS: tuple[str, ...] = ("not finite", "box", "speed", "acceleration", "jerk", "no rest")


@dataclass
class FuzzedRobot:
    """Robot that follows its commands, and may have faulty measurements unless it is `honest`.

    Attributes:
        position: float64 [A], q of each entry. begun: command before the present segment, which starts at a `begin`.
        commands: of the present segment. passed: q after each of them.
    """

    limits: CommandLimits
    period_s: float
    honest: bool
    position: Numbers
    begun: Numbers = field(default_factory=lambda: np.zeros(0))
    commands: list[Numbers] = field(default_factory=list)
    passed: list[Numbers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.moves = np.array([entry.kind == "position" for entry in self.limits.entries])

    def obey(self, command: Numbers) -> None:
        """Follow a command for one tick."""
        self.position = np.where(self.moves, command, self.position + command * self.period_s)
        self.commands.append(command)
        self.passed.append(self.position)

    def measure(self, rng: np.random.Generator) -> Numbers | None:
        """Return the measured position; None: it is missing."""
        if self.honest or rng.random() < 0.9:
            return self.position
        fault = rng.integers(4)
        if fault == 0:
            return None
        if fault == 1:
            return np.where(rng.random(len(self.position)) < 0.5, rng.choice([np.nan, np.inf, -1e300]), self.position)
        return self.position + rng.normal(0, 10.0 ** rng.uniform(-3, 1), len(self.position))


def fuzz_filter(ticks: int = 1_000_000, seed: int = 0) -> dict[str, int]:
    """Fuzz the safety filter with a number of robots, for `ticks` of all robots together.

    Returns:
        Counts: of each of `VIOLATIONS` over ticks and entries, of "ticks", "entries" and "robots", and of "unchanged"
        ticks, whose target passed the filter.
    """
    rng = np.random.default_rng(seed)
    counts = dict.fromkeys((*VIOLATIONS, "ticks", "entries", "robots", "unchanged"), 0)
    while counts["ticks"] < ticks:
        counts["robots"] += 1
        robot = sample_robot(rng)
        for name, count in run_episode(robot, rng, min(EPISODE, ticks - counts["ticks"])).items():
            counts[name] += count
    return counts


def sample_robot(rng: np.random.Generator) -> FuzzedRobot:
    """Return a robot with random limits, some of which bind only together, which stops within 1 to 1,000 ticks."""
    period = float(10 ** rng.uniform(-3, -0.7))
    entries: list[EntryLimits] = []
    for index in range(rng.integers(1, 4)):
        speed = 10 ** rng.uniform(-2, 1)
        acceleration = speed / period * 10 ** rng.uniform(-2.5, 0.7)
        jerk = acceleration / period * 10 ** rng.uniform(-1.5, 0.7)
        stop = speed * (speed / acceleration + acceleration / jerk + period)
        width = (stop if rng.random() < 0.5 else speed) * 10 ** rng.uniform(-1.5, 1.5)
        middle = rng.uniform(-3, 3)
        low, high = middle - width / 2, middle + width / 2
        if rng.random() < 0.1:
            low, high = (-math.inf, high) if rng.random() < 0.5 else (-math.inf, math.inf)
        if rng.random() < 0.1:
            acceleration, jerk = (math.inf, math.inf) if rng.random() < 0.5 else (acceleration, math.inf)
        numbers = [float(each) for each in (low, high, speed, acceleration, jerk)]
        entries.append(EntryLimits(f"entry {index}", ENTRY_KINDS[rng.integers(len(ENTRY_KINDS))], *numbers))
    position = np.array([rng.uniform(max(entry.low, -9.0), min(entry.high, 9.0)) for entry in entries])
    return FuzzedRobot(CommandLimits(tuple(entries)), period, bool(rng.random() < 0.6), position)


def run_episode(robot: FuzzedRobot, rng: np.random.Generator, ticks: int) -> dict[str, int]:
    """Run one robot with adversarial inputs; return counts as `fuzz_filter` does."""
    count = len(robot.limits.entries)
    counts = dict.fromkeys((*VIOLATIONS, "unchanged"), 0) | {"ticks": ticks, "entries": ticks * count}
    tested = SafetyFilter(robot.limits, robot.period_s)
    inputs = _sample_inputs(robot, tested, rng)
    _begin(tested, robot)
    for tick in range(ticks):
        made = tested.step(next(inputs), robot.measure(rng))
        counts["unchanged"] += not made.why
        robot.obey(made.command)
        if tick == ticks - 1 or rng.random() < 0.0005:
            for name, found in count_violations(robot).items():
                counts[name] += found
            for _ in range(5000):  # ramp to rest
                made = tested.step(None, robot.position)
                robot.obey(made.command)
                if made.still:
                    break
            counts["no rest"] += int(not made.still or any(count_violations(robot).values()))
            _begin(tested, robot)
    return counts


def count_violations(robot: FuzzedRobot) -> dict[str, int]:
    """Return how often the commands of a segment violate each limit."""
    period = robot.period_s
    commands = np.array(robot.commands)
    rest = np.tile(robot.begun, (3, 1))
    speed = np.where(robot.moves, np.diff(np.concatenate([rest, commands]), axis=0, prepend=rest[:1]) / period, 0.0)
    speed[3:][:, ~robot.moves] = commands[:, ~robot.moves]
    acceleration = np.diff(speed, axis=0) / period
    motion = {"speed": speed, "acceleration": acceleration, "jerk": np.diff(acceleration, axis=0) / period}
    found = {
        name: int((np.abs(values) > np.array(robot.limits.list_values(name)) * (1 + TOLERANCE)).sum())
        for name, values in motion.items()
    }
    low, high = np.array(robot.limits.list_values("low")), np.array(robot.limits.list_values("high"))
    slack = np.where(robot.moves, 0.0, TOLERANCE * np.where(np.isfinite(high - low), high - low, 1.0))
    passed = np.array(robot.passed)
    outside = (passed < low - slack) | (passed > high + slack)
    found["box"] = int(outside[:, robot.moves | robot.honest].sum())
    found["not finite"] = int((~np.isfinite(commands)).sum())
    return found


def _begin(tested: SafetyFilter, robot: FuzzedRobot) -> None:
    """Start a segment at the robot's position."""
    tested.begin(robot.position)
    robot.begun = np.where(robot.moves, robot.position, 0.0)
    robot.commands, robot.passed = [], []


def _sample_inputs(robot: FuzzedRobot, tested: SafetyFilter, rng: np.random.Generator) -> Iterator[Numbers | None]:
    """Yield the target of each tick: stretches of one kind of input, and single invalid inputs."""
    moves, count = robot.moves, len(robot.moves)
    limit = {name: np.array(robot.limits.list_values(name)) for name in ("speed", "acceleration", "jerk")}
    low = np.maximum(np.array(robot.limits.list_values("low")), -20.0)
    high = np.minimum(np.array(robot.limits.list_values("high")), 20.0)
    unit = np.where(moves, robot.period_s, 1.0)
    steps = [limit["speed"] * unit, limit["acceleration"] * unit * robot.period_s]
    steps.append(limit["jerk"] * unit * robot.period_s**2)
    while True:
        kind, goal = rng.integers(8), rng.uniform(low - (high - low) / 3, high + (high - low) / 3)
        goal = np.where(moves, goal, rng.uniform(-1.5, 1.5, count) * limit["speed"])
        edge = np.where(moves, rng.choice([low, high]), rng.choice([-1, 1]) * limit["speed"])
        step, wave = steps[rng.integers(3)] * 10 ** rng.uniform(-2, 0.5), rng.uniform(0.001, 1)
        for tick in range(rng.geometric(1 / STRETCH)):
            now = tested.command
            if rng.random() < 0.02:
                invalid = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, 5e-324], count)
                yield invalid if rng.random() < 0.9 else np.zeros(count + 1)
            elif kind == 0:
                yield None
            elif kind == 1:
                yield rng.uniform(low - 1, high + 1)
            elif kind == 2:
                yield edge
            elif kind == 3:
                yield goal
            elif kind == 4:
                yield now + step * rng.choice([-1, 1], count)
            elif kind == 5:
                yield now + step
            elif kind == 6:
                yield goal + rng.normal(0, 1, count) * step
            else:
                yield np.where(moves, (low + high) / 2, 0.0) + np.abs(goal) * math.sin(wave * tick)
