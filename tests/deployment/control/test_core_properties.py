"""Properties of the whole core: any sequence of inputs in any mode, and determinism to the bit."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embodied_rl.deployment.control import core, modes
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest
from embodied_rl.deployment.execution.safety_filter import FilteredCommand, SafetyFilter, measure_longest_ramp
from embodied_rl.deployment.execution.tick import Mode, MotionStep, State
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import TOOL, ControlLoop
from tests.support.core_fuzzing import FuzzedLoop, LimitCheck, fuzz_core

ANY = st.one_of(st.floats(-3, 3), st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))


class Anywhere:
    """A motion to anywhere."""

    words = "anywhere"

    def __init__(self, mode: Mode, wanted: list[float]) -> None:
        self.mode, self._wanted = mode, np.array(wanted)

    def begin(self, measured: np.ndarray, commanded: np.ndarray, now_s: float) -> str:
        return ""

    def step(self, measured: np.ndarray, now_s: float) -> MotionStep:
        return MotionStep(self._wanted)


class AnySequence(RuleBasedStateMachine):
    """A robot of two displacements and a gripper; what stands still must stand still, and limits hold always."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = ControlLoop(TOOL)
        self.loop.answer = self.answer
        self.check = LimitCheck(TOOL, self.loop.settings.period_s)
        self.check.begin(np.zeros(3))
        self.ramp = round(measure_longest_ramp(TOOL, 0.02) / 0.02)
        self.seen, self.quiet, self.latched, self.value = 0, 0, False, 0.02
        self.forbidden = 0
        self.dead: set[str] = set()

    def answer(self, request: ChunkRequest) -> Chunk | None:
        return None if np.isnan(self.value) else self.loop.make_chunk(request, self.value)

    @rule(ticks=st.integers(1, 30))
    def pass_ticks(self, ticks: int) -> None:
        for _ in range(ticks):
            self.loop.tick()
            self.look()

    @rule(mode=st.sampled_from([mode for mode in Mode if mode != Mode.ESTOP]))
    def ask(self, mode: Mode) -> None:
        self.loop.ask(None)
        before = self.loop.core.mode
        said = self.loop.ask(mode)
        assert said if self.loop.core.mode != mode else "was refused: 3 numbers" in said or not said
        assert self.loop.core.mode in (before, mode)
        if Mode.RUN == mode == self.loop.core.mode != before:
            self.forbidden = self.loop.core.status().counts.get("asked", 0)

    @rule(value=st.sampled_from([0.02, -0.04, 10.0, np.nan]))
    def change_policy(self, value: float) -> None:
        self.value = value

    @rule(human=st.one_of(st.none(), st.lists(ANY, min_size=3, max_size=3), st.lists(ANY, max_size=2)))
    def touch(self, human: list[float] | None) -> None:
        self.loop.human = None if human is None else np.array(human)

    @rule()
    def press(self) -> None:
        self.loop.ask(None, estop=True)
        self.latched = True

    @precondition(lambda self: self.latched)
    @rule()
    def reset(self) -> None:
        assert "still pressed" in self.loop.ask(None, estop=True, reset=True)
        self.loop.ask(None)
        self.loop.ask(None, reset=True)
        assert self.loop.core.mode == Mode.HOLD
        self.latched = False

    @rule()
    def release(self) -> None:
        self.loop.held = not self.loop.held

    @rule(name=st.sampled_from(["joints", "front"]))
    def kill_or_heal(self, name: str) -> None:
        self.loop.published ^= {name}

    @rule(jump=st.sampled_from([-5.0, 0.3, 60.0]))
    def jump(self, jump: float) -> None:
        self.loop.now += jump

    @rule(mode=st.sampled_from([Mode.RETURN, Mode.REPLAY]), wanted=st.lists(ANY, min_size=3, max_size=3))
    def plan(self, mode: Mode, wanted: list[float]) -> None:
        try:
            self.loop.core.plan(Anywhere(mode, wanted))
        except UserError:
            assert self.loop.core.mode in (Mode.RETURN, Mode.REPLAY)

    @rule(late=st.integers(0, 5))
    def answer_late(self, late: int) -> None:
        for request in self.loop.requests[-late:]:
            self.loop.core.receive(self.loop.make_chunk(request))

    @rule()
    def activate_restarted(self) -> None:
        if self.loop.core.state == State.ACTIVE:
            self.loop.core.deactivate()
            return
        try:
            self.loop.core.activate(self.loop.measured)
        except UserError:
            return
        self.check.begin(np.zeros(3))
        self.quiet = 0

    @invariant()
    def latch_holds(self) -> None:
        assert self.latched == (self.loop.core.mode == Mode.ESTOP) == (self.loop.core.status().latched_s is not None)

    def look(self) -> None:
        made = self.loop.last
        if made.command is None:
            assert self.loop.core.state != State.ACTIVE
            return
        broken = self.check.find_broken(made.command)
        assert not broken, broken
        fresh = self.loop.held and "joints" in self.loop.published
        alive = fresh and not self.latched and made.mode != Mode.HOLD
        self.quiet = 0 if alive else self.quiet + 1
        stale_for = round(0.1 / 0.02) + 1
        if self.quiet > self.ramp + stale_for + 1:
            assert not self.check.moving and made.source == Source.HOLD, made
        if made.source in (Source.POLICY, Source.SAFETY):
            assert made.sequence > self.forbidden and made.mode == Mode.RUN
        assert made.source != Source.HUMAN or made.mode == Mode.TELEOP
        assert made.source != Source.HOLD or made.why


AnySequence.TestCase.settings = budget(max_examples=20, stateful_step_count=25, deadline=None)
TestAnySequence = AnySequence.TestCase


def test_fuzzed_robots_keep_all_invariants_in_all_modes() -> None:
    report = fuzz_core(2500, 4)
    assert not report.violations, report.first
    assert all(report.moved[mode] > 5 for mode in (Mode.RUN, Mode.TELEOP, Mode.RETURN, Mode.REPLAY)), report.moved


def finds(promise: str) -> bool:
    """Whether fuzzing finds a tick that breaks a promise, before long."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        loop = FuzzedLoop(rng)
        if any(promise in loop.tick()[1] for _ in range(600)):
            return True
    return False


filter_step, filter_begin = SafetyFilter.step, SafetyFilter.begin


def pass_everything(self: SafetyFilter, wanted: np.ndarray | None, *others: np.ndarray | None) -> FilteredCommand:
    return FilteredCommand(self.command if wanted is None else wanted, "", False)


def never_rest(self: SafetyFilter, wanted: np.ndarray | None, *others: np.ndarray | None) -> FilteredCommand:
    return filter_step(self, np.full(len(self.command), 0.1) if wanted is None else wanted, *others)


def begin_as_commanded(self: SafetyFilter, measured: np.ndarray, start: np.ndarray | None = None) -> None:
    filter_begin(self, measured if start is None else start, start)  # an activation gives no start


def go_on(self: core.DeploymentCore, parts: core.CoreParts) -> str:
    parts.watchdogs.lost = ""
    return ""


def reset_to_run(self: modes.Modes, pressed: bool) -> str:
    self.latched_s, self.mode = None, Mode.RUN
    return ""


@pytest.mark.parametrize(
    ("broken", "name", "replacement", "promises"),
    [
        (SafetyFilter, "step", pass_everything, "box speed acceleration jerk"),
        (SafetyFilter, "step", never_rest, "rest after the ramp"),
        (core.DeploymentCore, "_restart_commands", go_on, "settling before commands begin again"),
        pytest.param(SafetyFilter, "begin", begin_as_commanded, "beginning where the robot is", marks=pytest.mark.slow),
        (modes.Modes, "reset", reset_to_run, "the latch of the emergency stop"),
        (core.DeploymentCore, "_check_deadman", lambda self, now: None, "source must be hold"),
        (core.DeploymentCore, "_change_mode", lambda self, change: change(), "no old plan"),
    ],
)
def test_fuzzing_finds_a_core_that_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch, broken: type, name: str, replacement: Callable[..., object], promises: str
) -> None:
    monkeypatch.setattr(broken, name, replacement)
    assert all(finds(promise) for promise in (promises.split() if promises.startswith("box") else [promises]))


@pytest.mark.thorough
def test_fuzzing_is_deterministic() -> None:
    def run() -> list[bytes]:
        loop = FuzzedLoop(np.random.default_rng(11))
        return [pickle.dumps(loop.tick()) for _ in range(500)]

    assert run() == run()
