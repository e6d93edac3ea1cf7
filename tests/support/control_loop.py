"""Control loop around the deployment core, with a fake clock, a robot that follows, topics and an operator."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.settings import CoreSettings, StreamRule
from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest
from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, StreamReading, Tick
from embodied_rl.interfaces.sim import Source

HORIZON = 10
JOINTS = ("shoulder", "elbow")
ARM = CommandLimits(tuple(EntryLimits(name, "position", -2.0, 2.0, 1.0, 8.0, 200.0) for name in JOINTS))
"""Two joints that are commanded positions, in radians."""
MOVES = tuple(EntryLimits(name, "displacement", -1.0, 1.0, 0.4, 10.0, 500.0) for name in ("x", "y"))
TOOL = CommandLimits((*MOVES, EntryLimits("gripper", "position", -1.0, 1.0, 26.0, 800.0, 40000.0)))
"""A tool that is moved by displacements, in metres, and a gripper that is not measured."""


def make_settings(limits: CommandLimits = ARM, **changes) -> CoreSettings:
    """Return the settings of a robot with one topic that measures and one camera, at 10 and 50 Hz."""
    streams = (StreamRule("joints", 0.1, may_repeat=True, measures=True), StreamRule("front", 0.2))
    keeps = tuple(entry.name == "gripper" for entry in limits.entries)
    known = tuple(not each for each in keeps)
    far = tuple(math.inf for _ in limits.entries)
    made = CoreSettings(limits, 10.0, 50.0, streams, known, keeps, far, deadman_s=0.15)
    return replace(made, **changes)


def make_policy(settings: CoreSettings, **changes) -> Settings:
    """Return how chunks of `HORIZON` actions within the limits are executed, the newest one replacing the plan."""
    steps = [settings.control_hz if entry.kind == "displacement" else 1.0 for entry in settings.limits.entries]
    tops = [
        e.high if e.kind == "position" else e.speed / step
        for e, step in zip(settings.limits.entries, steps, strict=True)
    ]
    high = np.array(tops, np.float32)
    made = Settings(HORIZON, -high, high, "naive", replan=3, delay=1, control_hz=settings.control_hz)
    return replace(made, **changes)


class ControlLoop:
    """A robot, its environment and its core, active from the start.

    Attributes:
        operator: what is handed in each tick; the dead man's switch is held while `held`. human: its commands, [A].
        published: topics that publish. place: where the robot is, [A]; it goes where it is commanded if it `follows`.
        ticks: all that were made. requests: of the policy that were not answered.
    """

    def __init__(
        self, limits: CommandLimits = ARM, policy: dict | None = None, place: tuple[float, ...] = (), **changes
    ) -> None:
        self.settings = make_settings(limits, **changes)
        self.now, self.source_s, self.count = 100.0, 1000.0, 0
        self.core = DeploymentCore(lambda: self.now)
        self.core.configure(self.settings, make_policy(self.settings, **(policy or {})))
        count = len(limits.entries)
        self.place: NDArray[np.float64] = np.array(place or (0.0,) * count)
        self.operator, self.held, self.follows = OperatorInput(), True, True
        self.published = {rule.name for rule in self.settings.streams}
        self.human: NDArray[np.float64] | None = None
        self.streams: dict[str, StreamReading] = {}
        self.ticks: list[Tick] = []
        self.requests: list[ChunkRequest] = []
        self.answer: Callable[[ChunkRequest], Chunk | None] = lambda request: self.make_chunk(request)
        self.refusals: list[ChunkRefusal] = []
        self.said = ""
        self.observe()
        self.core.activate(self.measured)

    @property
    def measured(self) -> NDArray[np.float64]:
        return np.where(self.settings.measured, self.place, np.nan)

    @property
    def last(self) -> Tick:
        return self.ticks[-1]

    @property
    def commands(self) -> NDArray[np.float64]:
        """All commands, [ticks, A]."""
        return np.stack([each.command for each in self.ticks if each.command is not None])

    def make_chunk(self, request: ChunkRequest, value: float = 0.02) -> Chunk:
        """Return a chunk whose actions grow by `value` in each step, from 0 in step 0 on; speeds are as large."""
        steps = request.step + np.arange(HORIZON)[:, None]
        position = np.array([entry.kind == "position" for entry in self.settings.limits.entries])
        actions = np.where(position, value * steps, value).astype(np.float32)
        return Chunk(request.sequence, request.epoch, request.step, actions)

    def observe(self) -> None:
        for name in self.published:
            self.count += 1
            self.streams[name] = StreamReading(int(self.source_s * 1e9), self.now, self.count.to_bytes(4, "big"))
        self.core.observe(self.streams, self.measured)

    def ask(self, wanted: Mode | None, **changes) -> str:
        """Hand the operator's input of this moment; return what was refused."""
        held = self.now if self.held else None
        changes = {"teleop": self.human, "teleop_s": self.now} | changes if self.human is not None else changes
        self.said = self.core.operate(replace(self.operator, wanted=wanted, deadman=held, **changes))
        return self.said

    def tick(self, count: int = 1, wanted: Mode | None = None) -> Tick:
        """Run some ticks; return the last one."""
        for _ in range(count):
            self.now += self.settings.period_s
            self.source_s += self.settings.period_s
            self.observe()
            self.ask(wanted)
            wanted = None
            self._step_policy()
            self.ticks.append(self.core.tick())
            self._move()
        return self.last

    def pass_s(self, seconds: float) -> Tick:
        """Run ticks for some seconds."""
        return self.tick(round(seconds * self.settings.command_hz))

    def start(self, mode: Mode = Mode.RUN) -> Tick:
        """Ask for a mode, and run for half a second."""
        self.tick(wanted=mode)
        assert self.core.mode == mode, self.said
        return self.pass_s(0.5)

    def _step_policy(self) -> None:
        request = self.core.request()
        if request is None:
            return
        self.requests.append(request)
        chunk = self.answer(request)
        if chunk is not None:
            self.requests.remove(request)
            refusal = self.core.receive(chunk)
            self.refusals += [] if refusal is None else [refusal]

    def _move(self) -> None:
        command = self.last.command
        if command is None or not self.follows:
            return
        position = [entry.kind == "position" for entry in self.settings.limits.entries]
        self.place = np.where(position, command, self.place + command * self.settings.period_s)


def rests(loop: ControlLoop) -> bool:
    """Whether the robot comes to rest in the ramp's time, and stays there."""
    ramp = measure_longest_ramp(loop.settings.limits, loop.settings.period_s)
    loop.pass_s(ramp + 0.04)
    before = len(loop.ticks)
    loop.pass_s(0.2)
    position = np.array([entry.kind == "position" for entry in loop.settings.limits.entries])
    rates = np.where(position, np.diff(loop.commands[before - 1 :], axis=0), loop.commands[before:])
    return bool((rates == 0).all()) and {each.source for each in loop.ticks[before:]} == {Source.HOLD}


def start(mode: Mode = Mode.RUN, limits=TOOL, **changes) -> ControlLoop:
    """A loop that moves."""
    loop = ControlLoop(limits, **changes)
    loop.answer = lambda request: loop.make_chunk(request, 0.01)
    loop.human = np.array([0.1] * len(limits.entries))
    loop.start(mode)
    assert np.abs(np.diff(loop.commands[-3:], axis=0)).any() or np.abs(loop.commands[-1][:2]).any()
    return loop
