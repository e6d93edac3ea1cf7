"""The deployment core in a loop: modes, executed actions and their sources, takeovers, reasons of holds."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.mode_targets import find_material
from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, Reason
from embodied_rl.deployment.execution.tick import Mode, MotionStep, OperatorInput, State
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import ARM, HORIZON, TOOL, ControlLoop, make_policy, make_settings
from tests.support.refusals import refuses


class Line:
    """Motion at constant speed, of a number of ticks."""

    words = "along a line"

    def __init__(self, mode: Mode, ticks: int = 50, *, refused: str = "", failed: str = "", wanted=(0.2, 0.0)) -> None:
        self.mode, self._ticks, self._refused, self._failed, self._wanted = mode, ticks, refused, failed, wanted
        self.begun: list[float] = []

    def begin(self, measured: np.ndarray, commanded: np.ndarray, now_s: float) -> str:
        self.begun.append(now_s)
        self._left, self._from = self._ticks, commanded
        return self._refused

    def step(self, measured: np.ndarray, now_s: float) -> MotionStep:
        self._left -= 1
        if self._left < 0:
            return MotionStep(None, done=not self._failed, failed=self._failed)
        return MotionStep(self._from + np.array(self._wanted) * 0.02 * (self._ticks - self._left))


def test_an_unconfigured_core_gives_no_command() -> None:
    core = DeploymentCore(lambda: 0.0)
    assert core.tick().command is None and core.state == State.UNCONFIGURED and core.request() is None
    assert core.status().still
    with refuses("core-not-configured", "unconfigured"):
        core.observe({}, np.zeros(2))
    for call in (lambda: core.activate(np.zeros(2)), core.deactivate):
        with refuses("transition-refused", "unconfigured"):
            call()
    settings = make_settings()
    core.configure(settings, make_policy(settings))
    assert core.tick().command is None and core.status().state == State.INACTIVE
    assert core.operate(OperatorInput(wanted=Mode.RUN)) == "run was refused: the robot is inactive"
    refusal = core.receive(Chunk(1, 0, 0, np.zeros((HORIZON, 2), np.float32)))
    assert refusal is not None and refusal.reason == Reason.EPOCH
    core.operate(OperatorInput(estop=True))
    assert core.mode == Mode.ESTOP and core.tick().command is None
    with refuses("measured-shape-mismatch", 2, "[3]"):
        core.observe({}, np.zeros(3))
    assert core.operate(OperatorInput(reset=True)) == "" and core.mode == Mode.HOLD


@pytest.mark.parametrize(
    ("policy", "data"), [({"control_hz": 12.5}, ("control_hz=12.5", 10)), ({"action_low": np.zeros(3)}, (3, 2))]
)
def test_a_policy_for_another_robot_is_refused(policy: dict, data: tuple) -> None:
    settings = make_settings()
    with refuses("policy-robot-mismatch", *data):
        DeploymentCore(lambda: 0.0).configure(settings, make_policy(settings, **policy))


def test_an_active_core_refuses_to_be_configured_or_activated_and_goes_on() -> None:
    loop = ControlLoop()
    loop.start()
    with refuses("transition-refused", "configure", "active"):
        loop.core.configure(loop.settings)
    with refuses("transition-refused", "activate", "active"):
        loop.core.activate(loop.measured)
    assert loop.tick().source == Source.POLICY


def test_nothing_moves_before_a_mode_is_asked_for() -> None:
    loop = ControlLoop(place=(0.5, -0.5))
    loop.tick(20)
    assert (loop.commands == [0.5, -0.5]).all() and loop.last.why == "no mode was asked for"
    assert {each.source for each in loop.ticks} == {Source.HOLD} and not loop.requests
    assert [each.ended.source for each in loop.ticks if each.ended] == [Source.HOLD] * 4


def test_the_plan_is_interpolated_to_ticks_and_reported_in_control_steps() -> None:
    loop = ControlLoop()
    loop.start()
    ended = [each.ended for each in loop.ticks if each.ended is not None and each.ended.step >= 0]
    assert [each.step for each in ended] == list(range(len(ended))) and len(ended) == 5
    assert [float(each.executed[0]) for each in ended] == pytest.approx([0.02 * step for step in range(5)], abs=1e-7)
    assert all(each.source == Source.POLICY for each in ended) and not ended[-1].why
    moved = np.diff(loop.commands[-15:, 0])
    assert moved == pytest.approx(np.full(14, 0.02 / 5), abs=1e-9)
    begins = [each.begins for each in loop.ticks]
    assert begins[:6] == [True, False, False, False, False, True]
    assert [each.ended is not None for each in loop.ticks][:5] == [False] * 4 + [True]


def test_the_first_action_is_approached_from_where_the_robot_is() -> None:
    loop = ControlLoop(place=(0.5, -0.5))
    still = np.tile(np.array([0.5, -0.5], np.float32), (HORIZON, 1))
    loop.answer = lambda request: Chunk(request.sequence, request.epoch, request.step, still)
    loop.start()
    assert loop.last.source == Source.POLICY and (loop.commands == [0.5, -0.5]).all()


@pytest.mark.parametrize("ticks", [1, 8])
def test_displacements_are_commanded_as_speeds_and_reported_as_they_were_asked_for(ticks: int) -> None:
    loop = ControlLoop(TOOL, control_hz=12.5, command_hz=12.5 * ticks, overrun_s=1.0)
    rng = np.random.default_rng(0)
    sent: dict[int, np.ndarray] = {}

    def answer(request: ChunkRequest) -> Chunk:
        actions = rng.uniform(-0.03, 0.03, (HORIZON, 3)).astype(np.float32)
        actions[:, 2] = np.where(actions[:, 0] > 0, 1, -1)
        sent.update({request.step + step: action for step, action in enumerate(actions)})
        return Chunk(request.sequence, request.epoch, request.step, actions, policy_version=7)

    loop.answer = answer
    loop.tick(wanted=Mode.RUN)
    loop.tick(40 * ticks)
    ended = [each.ended for each in loop.ticks if each.ended is not None and each.ended.step >= 0]
    assert len(ended) >= 39 and {each.policy_version for each in ended} == {7}
    for each in ended:
        assert each.proposed is not None
        assert (each.proposed == sent[each.step]).all() if ticks == 1 else np.allclose(each.proposed, sent[each.step])
    if ticks == 1:  # lockstep: nothing is changed, to the bit
        assert all((each.executed == sent[each.step]).all() and each.source == Source.POLICY for each in ended)
        steps = [each for each in loop.ticks if each.step >= 0]
        assert all((tick.command == np.float64(sent[tick.step]) * [12.5, 12.5, 1]).all() for tick in steps)


def test_a_step_that_the_filter_changed_is_of_safety() -> None:
    loop = ControlLoop(TOOL)

    def answer(request: ChunkRequest) -> Chunk:  # 0.4 m/s along x, towards the edge of the box
        chunk = loop.make_chunk(request, 0.04)
        chunk.actions[:, 1:] = 0
        return chunk

    loop.answer = answer
    loop.start()
    loop.pass_s(4.0)
    ended = [each.ended for each in loop.ticks if each.ended is not None and each.ended.step >= 0]
    sources = [each.source for each in ended]
    assert sources[5] == Source.POLICY and sources[-1] == Source.SAFETY
    assert set(sources[sources.index(Source.SAFETY, 5) :]) == {Source.SAFETY}
    assert ended[-1].why and 0.99 < loop.place[0] <= 1.0 and loop.last.source == Source.SAFETY
    assert ended[-1].proposed is not None and abs(ended[-1].executed[0]) < 0.001 < ended[-1].proposed[0]


@pytest.mark.parametrize(
    ("tops", "wanted"),
    [
        (None, [0.008, 0.008, 0.2, 0.08]),
        ([0.02, 0.02, 0.5, 0.2], [0.004, 0.004, 0.1, 0.04]),
        ([0.1, 0.1, 2.0, 2.0], [0.008, 0.008, 0.2, 0.08]),
    ],
    ids=["no policy", "a policy of small motions", "a policy of large motions"],
)
def test_a_tenth_of_the_smaller_range_of_robot_and_policy_is_material(tops: list[float] | None, wanted: list) -> None:
    turn = replace(TOOL.entries[0], name="turn", kind="velocity")
    settings, high = make_settings(CommandLimits((*TOOL.entries, turn))), np.array(tops or [0.0] * 4, np.float32)
    policy = None if tops is None else make_policy(settings, action_low=-high, action_high=high)
    assert find_material(settings, policy) == pytest.approx(wanted), (
        "±0.4 m/s at 10 Hz, a gripper of ±1, and ±0.4 rad/s"
    )


def test_the_executor_continues_from_the_executed_action() -> None:
    loop = ControlLoop(policy={"jump": np.full(2, 0.3, np.float32)})
    loop.answer = lambda request: loop.make_chunk(request, 0.2)  # 2 rad/s, twice as fast as the joint may be
    loop.start()
    loop.pass_s(1.0)
    assert Reason.JUMP in {each.reason for each in loop.refusals}  # the next chunk begins where the joint is not
    assert loop.last.source in (Source.HOLD, Source.SAFETY) and loop.core.status().refused["jump"] > 0


def test_the_policy_is_asked_at_the_beginning_of_control_steps_alone() -> None:
    loop = ControlLoop()
    loop.tick(3, wanted=Mode.RUN)
    asked = []
    loop.answer = lambda request: asked.append(len(loop.ticks)) or loop.make_chunk(request)
    loop.tick(60)
    assert len(asked) > 3 and all(tick % 5 == 0 for tick in asked)
    loop.tick(wanted=Mode.HOLD)
    asked.clear()
    loop.tick(30)
    assert not asked


def test_a_takeover_continues_and_its_end_begins_a_new_epoch_with_an_empty_plan() -> None:
    loop = ControlLoop()
    loop.start()
    late = loop.make_chunk(ChunkRequest(99, loop.core.status().epoch, 0, np.zeros((0, 2)), 0, 0.0))
    loop.answer = lambda request: None
    loop.tick(5)
    (request,) = loop.requests
    loop.human = np.array([1.5, -1.0])
    speed = np.diff(loop.commands[-2:], axis=0)[0]
    for _ in range(300):
        loop.tick(wanted=Mode.TELEOP if loop.core.mode == Mode.RUN else None)
    human = loop.ticks[-300:]
    assert {each.source for each in human} == {Source.HUMAN} and {each.mode for each in human} == {Mode.TELEOP}
    assert {(each.step, each.sequence, each.policy_version) for each in human} == {(-1, -1, -1)}
    jumps = np.diff(loop.commands[-301:], axis=0)
    assert np.abs(jumps[0] - speed).max() < 0.0003 and np.abs(jumps).max() <= 0.02 * (0.25 + 0.2) + 1e-9
    assert loop.commands[-1][0] > 0.5 and loop.commands[-1][1] < -0.3
    ended = [each.ended for each in human if each.ended is not None]
    assert all(each.source == Source.HUMAN and each.proposed is not None for each in ended)
    assert {(each.step, each.sequence, each.policy_version) for each in ended[1:]} == {(-1, -1, -1)}
    refusal = loop.core.receive(loop.make_chunk(request))
    assert refusal is not None and refusal.reason == Reason.EPOCH
    assert loop.core.receive(late) is not None
    before = loop.core.status().epoch
    loop.tick(10, wanted=Mode.RUN)
    status = loop.core.status()
    assert status.epoch > before and status.planned == 0 and status.mode == Mode.RUN
    assert {each.source for each in loop.ticks[-10:]} == {Source.HOLD}
    assert "waiting for the first chunk; the policy has not answered for" in loop.last.why


def test_a_step_of_which_a_human_did_a_part_is_the_humans() -> None:
    loop = ControlLoop()
    loop.start()
    while loop.last.ended is None:
        loop.tick()
    loop.tick(2)
    loop.human = np.full(2, np.nan)
    loop.tick(wanted=Mode.TELEOP)
    ended = loop.tick(2).ended
    assert ended is not None and ended.source == Source.HUMAN and ended.mode == Mode.TELEOP


def test_a_human_who_falls_silent_is_waited_for_at_rest() -> None:
    loop = ControlLoop(TOOL)
    loop.operator = OperatorInput(teleop=np.array([0.2, 0.0, np.nan]), teleop_s=loop.now + 0.5)
    loop.tick(wanted=Mode.TELEOP)
    assert loop.last.why.startswith("no command of the human")  # it is stamped in the future
    loop.tick(24)
    loop.tick(9)
    assert loop.last.source == Source.HUMAN and loop.last.command is not None and loop.last.command[0] > 0
    loop.pass_s(0.6)
    assert loop.last.command[0] == 0 and "no command of the human for 0." in loop.last.why
    assert loop.core.mode == Mode.TELEOP


def test_a_human_who_comes_back_elsewhere_is_approached_from_rest() -> None:
    loop = ControlLoop()
    loop.human = np.array([0.1, 0.1])
    loop.start(Mode.TELEOP)
    loop.human = None
    assert loop.pass_s(1.0).source == Source.HOLD
    begun, loop.human = len(loop.ticks), np.array([1.5, -1.0])
    loop.pass_s(1.0)
    assert loop.last.source == Source.HUMAN and loop.last.command[0] > loop.ticks[begun].command[0]
    offset, approach = 1.5 - loop.commands[begun - 1, 0], 0.25  # rad, rad/s: a cubic from rest
    steepest = 6 * offset / (1.5 * offset / approach) ** 2 * loop.settings.period_s**2
    assert np.abs(np.diff(loop.commands[begun - 2 :, 0], n=2)).max() <= steepest + 1e-9


@pytest.mark.parametrize("given", [np.zeros(2), np.array([0.0, np.inf, 0.0]), np.array([1e9, 0.0, 0.0])])
def test_an_invalid_human_command_is_refused(given: np.ndarray) -> None:
    loop = ControlLoop(TOOL)
    loop.human = given
    loop.tick(wanted=Mode.TELEOP)
    assert "a human's command was refused: 3 numbers" in loop.said
    assert loop.last.source == Source.HOLD and loop.core.status().counts["human's commands refused"] == 1


@pytest.mark.parametrize("mode", [Mode.RETURN, Mode.REPLAY])
def test_a_motion_starts_when_the_operator_asks_and_ends_in_hold(mode: Mode) -> None:
    loop = ControlLoop()
    assert f"no {mode} motion is set" in loop.ask(mode)
    loop.ask(None)
    motion = Line(mode)
    loop.core.plan(motion)
    assert "motion is set" in loop.ask(Mode.REPLAY if mode == Mode.RETURN else Mode.RETURN)
    loop.tick(3)
    loop.tick(40, wanted=mode)
    with refuses("motion-under-way", mode):
        loop.core.plan(motion)
    assert {each.source for each in loop.ticks[-38:]} == {Source.REPLAY} and len(motion.begun) == 1
    assert loop.ticks[-38].begins and loop.ticks[-39].source == Source.HOLD  # a control step holds one recorded action
    loop.tick(100)
    assert loop.core.mode == Mode.HOLD and f"the {mode} is done" in loop.core.status().why
    assert loop.commands[-1] == pytest.approx([0.2, 0.0], abs=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refused": "it is far away"}, "was refused: it is far away"),
        ({"failed": "a collision"}, "was given up: a collision"),
        ({"wanted": (np.nan, 0.0)}, "was given up: it wants [nan"),
        ({"wanted": (1e9, 0.0)}, "was given up: it wants ["),
    ],
)
def test_a_motion_that_fails_ends_in_hold(changes: dict, words: str) -> None:
    loop = ControlLoop()
    loop.core.plan(Line(Mode.REPLAY, **changes))
    loop.tick(80, wanted=Mode.REPLAY)
    assert loop.core.mode == Mode.HOLD and words in loop.core.status().why


def test_a_label_ends_acting() -> None:
    loop = ControlLoop()
    loop.start()
    assert "label 'good' was refused" in loop.ask(None, label="good") and loop.core.mode == Mode.RUN
    loop.ask(None, label="success")
    assert loop.core.mode == Mode.HOLD and loop.core.status().why == "the operator said success"
    assert loop.ask(Mode.RUN, label="success") == loop.ask(None) == "" and loop.core.mode == Mode.RUN


def test_deactivation_ramps_to_rest_first() -> None:
    loop = ControlLoop(TOOL, lost_s=0.3)
    loop.start()
    assert loop.last.command is not None and loop.last.command[0] != 0
    loop.core.deactivate()
    assert loop.core.state == State.ACTIVE and "being deactivated" in loop.ask(Mode.RUN)
    loop.pass_s(1.0)
    assert loop.core.state == State.INACTIVE and loop.last.command is None
    assert loop.commands[-1][0] == 0 and np.abs(np.diff(loop.commands[:, 0])).max() <= 10.0 * 0.02 + 1e-9
    loop.core.activate(loop.measured)
    assert loop.start().source == Source.POLICY
    loop.core.deactivate(at_once=True)
    assert loop.tick().command is None and loop.core.state == State.INACTIVE
    with refuses("transition-refused", "deactivate", "inactive"):
        loop.core.deactivate()
    loop.core.activate(loop.measured)
    loop.core.deactivate()
    assert loop.core.state == State.INACTIVE, "nothing was commanded, and so nothing moves"


def test_an_activation_begins_where_the_robot_is() -> None:
    loop = ControlLoop(place=(1.0, 0.0))
    loop.tick()
    assert (loop.last.command == [1.0, 0.0]).all() and loop.last.restarted and not loop.tick().restarted
    loop.core.deactivate()
    loop.place = np.array([-1.0, 0.5])
    loop.observe()
    loop.core.activate(loop.measured)
    assert (
        (loop.tick().command == [-1.0, 0.5]).all() and loop.last.restarted and loop.last.why == "no mode was asked for"
    )


def test_an_unmeasured_entry_begins_where_it_is_said_to_be() -> None:
    loop = ControlLoop(TOOL)
    loop.core.deactivate()
    loop.core.activate(loop.measured, start=np.array([np.nan, np.nan, -1.0]))
    assert (loop.tick().command == [0, 0, -1]).all()


def test_a_robot_without_a_policy_is_driven_by_a_human_alone() -> None:
    loop = ControlLoop()
    loop.core = DeploymentCore(lambda: loop.now)
    loop.core.configure(make_settings(ARM))
    loop.observe()
    loop.core.activate(loop.measured)
    assert "there is no policy" in loop.ask(Mode.RUN)
    refusal = loop.core.receive(Chunk(1, 1, 0, np.zeros((HORIZON, 2), np.float32)))
    assert refusal is not None and "no policy" in refusal.message
    loop.human = np.array([0.3, 0.0])
    assert loop.tick(wanted=Mode.TELEOP).source == Source.HUMAN
