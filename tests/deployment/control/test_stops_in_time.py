"""Random faults of the simulated robot's topics and policy: it stops in time, and stays in its box.

The core is the real one, with the settings of the robot's file; robot, topics and policy are small models that follow a
clock of the test.
"""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.bridge.bridge_factory import make_core_settings
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.execution.messages import Chunk
from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State, StreamReading
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import BridgeConfig

pytestmark = pytest.mark.thorough
ROBOT = load_robot("tabletop")
SETTINGS = make_core_settings(
    ROBOT,
    BridgeConfig("tabletop", "ws://x", deadman=False),
    LatestMessages(InProcessTransport(Bus(lambda: 1)), ROBOT, float),
)
LOW, HIGH = (np.array(ROBOT.limits.list_values(edge))[:3] for edge in ("low", "high"))
RAMP_S = measure_longest_ramp(ROBOT.limits, SETTINGS.period_s)
STOPPING_M = 0.5 * 0.38 * RAMP_S
"""How far the tool goes in a ramp from its largest speed."""
SLOWEST, FASTEST = 0.1, 0.37
"""Metres per second along each axis."""
ARM_S, PICTURE_S, HORIZON = 0.08, 0.08, 50
VISIBLE_M = SETTINGS.visible * float((HIGH - LOW).max())
AGES = {rule.name: rule.max_age_s for rule in SETTINGS.streams}
MARGIN_S = 0.15
LIMITS = {
    "frozen state": max(AGES["tool"], VISIBLE_M / SLOWEST),
    "noisy frozen state": max(SETTINGS.tracking_error[:3]) / SLOWEST,
    "silent state": AGES["tool"],
    "frozen camera": AGES["front"] + PICTURE_S,
    "late camera": AGES["front"] + PICTURE_S,
    "silent camera": AGES["front"] + PICTURE_S,
}
LIMITS["dead server"] = ROBOT.open_loop_s + 1 / ROBOT.control_hz
"""Fault → seconds after which the robot's file wants it noticed; a distance at the slowest speed."""


class FaultyRobot:
    """The tool, its topics, a policy that goes straight on, and the core; ten milliseconds a tick."""

    def __init__(self, seed: int, units: np.ndarray | None = None) -> None:
        self.rng, self.units = np.random.default_rng(seed), np.eye(3) if units is None else units
        self.now, self.fault, self.since = 100.0, "", np.inf
        self.core = DeploymentCore(lambda: self.now, self.read_source)
        high = np.array([0.03, 0.03, 0.03, 1.0], np.float32)
        policy = Settings(HORIZON, -high, high, "naive", 5, 1, ROBOT.control_hz, open_loop=12)
        self.core.configure(replace(SETTINGS, probe=units is not None), policy)
        self.place = self.aim = self.rng.uniform(LOW + 0.05, HIGH - 0.05)
        self.speed, self.command, self.outside = np.zeros(3), np.zeros(4), 0.0
        self.streams: dict[str, StreamReading] = {}
        self.frozen = self.place
        self.observe()
        self.core.activate(self.measured)
        self.core.operate(OperatorInput(wanted=Mode.RUN))
        self.turn()

    def read_source(self) -> int:
        return round((self.now + 1e9) * 1e9)

    def turn(self) -> None:
        """Choose another direction, away from the edges where they are near."""
        size = self.rng.uniform(SLOWEST, FASTEST, 3)
        inwards = np.where(self.place < (LOW + HIGH) / 2, 1.0, -1.0)
        near = np.minimum(self.place - LOW, HIGH - self.place) < 0.04
        self.speed = size * np.where(near, inwards, self.rng.choice([-1.0, 1.0], 3))

    @property
    def measured(self) -> np.ndarray:
        place = self.place
        if "frozen state" in self.fault:
            place = self.frozen + (self.rng.normal(0, 1e-4, 3) if "noisy" in self.fault else 0.0)
        return np.array([*self.units @ place, np.nan])

    def observe(self) -> None:
        measured, stamp = self.measured, self.read_source()
        if self.fault != "silent state":
            for name in ("joints", "tool", "commanded"):
                self.streams[name] = StreamReading(stamp, self.now, measured.tobytes())
        if round(self.now / SETTINGS.period_s) % 8 == 0 and self.fault != "silent camera":
            seen = b"frozen" if self.fault == "frozen camera" else self.place.tobytes()
            late = int(1e9) if self.fault == "late camera" else 0
            self.streams |= {
                "front": StreamReading(stamp - late, self.now, seen),
                "front_info": StreamReading(stamp, self.now, b""),
            }
        self.streams.setdefault("front", StreamReading(stamp, self.now, b"first"))
        self.streams.setdefault("front_info", StreamReading(stamp, self.now, b""))
        self.core.observe(self.streams, measured)

    def tick(self) -> None:
        self.now += SETTINGS.period_s
        self.aim = self.aim + self.command[:3] * SETTINGS.period_s
        self.place = self.place + (self.aim - self.place) * SETTINGS.period_s / ARM_S
        self.outside = max(self.outside, float(np.maximum(LOW - self.place, self.place - HIGH).max()))
        self.observe()
        self.core.operate(OperatorInput(wanted=Mode.RUN))
        request = self.core.request()
        if request is not None and self.fault != "dead server":
            actions = np.tile(np.array([*self.speed / ROBOT.control_hz, 1.0], np.float32), (HORIZON, 1))
            self.core.receive(Chunk(request.sequence, request.epoch, request.step, actions))
        made = self.core.tick()
        self.command = np.zeros(4) if made.command is None else made.command

    def spoil(self, fault: str) -> None:
        self.fault, self.since, self.frozen = fault, self.now, self.place

    def measure_stop(self, longest_s: float) -> float:
        """Return the seconds from the fault until the last command that moved the tool."""
        moved = self.now
        while self.now < self.since + longest_s:
            self.tick()
            moved = self.now if self.command[:3].any() else moved
        return moved - self.since


def drive(seed: int) -> FaultyRobot:
    """A robot that has moved for some seconds without a stop."""
    robot = FaultyRobot(seed)
    for _ in range(int(robot.rng.integers(300, 600))):
        if robot.rng.random() < 0.02:
            robot.turn()
        robot.tick()
    assert robot.core.mode == Mode.RUN and robot.core.status().counts.get("holds", 0) == 0
    robot.turn()
    for _ in range(20):
        robot.tick()
    return robot


@pytest.mark.parametrize("seed", range(50))
def test_a_random_fault_stops_the_robot_in_time_and_in_its_box(seed: int) -> None:
    fault = list(LIMITS)[seed % len(LIMITS)]
    robot = drive(seed)
    robot.spoil(fault)
    longest = LIMITS[fault] + RAMP_S + MARGIN_S
    stopped = robot.measure_stop(longest + 1.0)
    print(f"{fault}: {stopped:.3f} s of {LIMITS[fault] + RAMP_S:.3f} s, {1e3 * robot.outside:.1f} mm outside the box")
    assert stopped <= longest
    assert robot.outside <= STOPPING_M


SWAPPED = np.eye(3)[[1, 0, 2]]
UNITS = [np.diag([1e3, 1, 1]), np.diag([1, 1 / 57.3, 1]), np.diag([1.0, -1, 1]), SWAPPED, np.diag([1, 1, 1e-3])]
"""From the true to the measured place: x in mm, y as if in degrees, y reversed, x and y exchanged, z in km."""


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("units", UNITS, ids=["millimetres", "degrees", "sign", "order", "kilometres"])
def test_a_robot_of_other_units_is_refused_before_its_policy_moves_it(units: np.ndarray, seed: int) -> None:
    try:
        robot = FaultyRobot(seed, units)
    except UserError as error:
        assert "outside" in str(error)
        return
    begun, farthest = robot.place, 0.0
    for _ in range(800):
        robot.tick()
        farthest = max(farthest, float(np.abs(robot.place - begun).max()))
    print(f"{1e3 * farthest:.1f} mm, {1e3 * robot.outside:.1f} mm outside the box")
    assert robot.core.state == State.INACTIVE and farthest <= STOPPING_M and robot.outside <= STOPPING_M
