"""The comparison of small motions at the first activation: what it refuses, by which entry, and how little it moves."""

import math

import numpy as np
import pytest

from embodied_rl.deployment.control.probing import DISTANCE
from embodied_rl.deployment.execution.tick import Mode, State
from embodied_rl.interfaces.sim import Source
from tests.support.control_loop import ARM, TOOL, ControlLoop, rests
from tests.support.refusals import refuses

LAG_S = 0.08


class MeasuredLoop(ControlLoop):
    """Robot that lags behind its command, with a driver whose measurements do not match the robot's file.

    Attributes:
        matrix: [A, A], from the true place to the measured one.
    """

    def __init__(self, limits, matrix, place: tuple[float, ...], **changes) -> None:
        self.matrix = np.asarray(matrix, np.float64)
        super().__init__(limits, place=place, probe=True, **changes)
        self.aim = self.place.copy()

    @property
    def measured(self) -> np.ndarray:
        return np.where(self.settings.measured, self.matrix @ self.place, np.nan)

    def _move(self) -> None:
        command = self.last.command
        if command is None:
            return
        position = np.array([entry.kind == "position" for entry in self.settings.limits.entries])
        before = self.place
        self.aim = np.where(position, command, self.aim + command * self.settings.period_s)
        self.place = before + (self.aim - before) * self.settings.period_s / LAG_S


def run(loop: MeasuredLoop, seconds: float = 8.0) -> str:
    """Ask for the policy, let time pass; return why the robot holds, empty while it runs."""
    loop.ask(Mode.RUN)
    loop.pass_s(seconds)
    return loop.core.status().why


def arm(matrix, place=(0.6, -0.4)) -> MeasuredLoop:
    return MeasuredLoop(ARM, matrix, place, tracking_error=(0.3, 0.2))


def tool(matrix, place=(0.5, -0.4, 0.0)) -> MeasuredLoop:
    return MeasuredLoop(TOOL, matrix, place, tracking_error=(0.2, 0.2, math.inf))


@pytest.mark.parametrize(("make", "count"), [(arm, 2), (tool, 3)], ids=["positions", "speeds"])
def test_a_robot_that_moves_as_it_is_measured_passes_once_and_is_where_it_was(make, count: int) -> None:
    loop = make(np.eye(count))
    begun = loop.place.copy()
    loop.answer = lambda request: None
    assert run(loop) == "" and loop.core.state == State.ACTIVE
    moved = [each for each in loop.ticks if each.source == Source.REPLAY]
    assert len(moved) == pytest.approx(2 * 2 * 0.75 * 50, abs=8), "two measured entries, each there and back"
    assert [each.source for each in loop.ticks].index(Source.REPLAY) == 0.5 * 50, "it holds still first"
    away = loop.commands - begun if count == 2 else np.cumsum(loop.commands, axis=0) * loop.settings.period_s
    distance = DISTANCE * np.array(loop.settings.tracking_error[:2])
    assert np.abs(away[:, :2]).max(0) == pytest.approx(distance, rel=0.02)
    assert (np.abs(np.diff(away[:, :2], axis=0)) <= 1.1 * distance / 0.25 * loop.settings.period_s).all(), (
        "in a quarter second"
    )
    np.testing.assert_allclose(loop.place, begun, atol=2e-3)
    loop.core.deactivate()
    loop.pass_s(0.1)
    loop.core.activate(loop.measured)
    loop.answer = lambda request: loop.make_chunk(request, 0.01)
    loop.start()
    assert loop.last.source == Source.POLICY and len(loop.last.command) == count, "it has passed"


@pytest.mark.parametrize(
    ("matrix", "place"),
    [
        (np.diag([math.pi / 180] * 2), (0.6, -0.4)),
        (np.diag([-1.0, 1.0]), (0.6, -0.4)),
        (np.diag([1.0, -1.0]), (0.0, 0.0)),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), (0.6, -0.4)),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), (0.2, 0.2)),
        (np.diag([180 / math.pi] * 2), (0.01, 0.02)),
        (np.diag([1.0, 0.0]), (0.6, 0.0)),
    ],
    ids=["degrees", "sign", "sign at 0", "order", "order at equal places", "radians", "dead encoder"],
)
def test_an_arm_whose_driver_means_something_else_is_deactivated_before_it_moves_far(
    matrix, place: tuple[float, float]
) -> None:
    loop = arm(matrix, place)
    loop.ask(Mode.RUN)
    farthest = 0.0
    for _ in range(400):
        loop.tick()
        farthest = max(farthest, float(np.abs(loop.aim - np.array(place)).max()))
    why, misread = loop.core.status().why, float(np.abs(matrix @ place - np.array(place)).max())
    assert misread <= farthest <= misread + 1.01 * DISTANCE * 0.3, "as its controller does with the first command"
    assert loop.core.state == State.INACTIVE and loop.core.mode == Mode.HOLD
    assert why.split()[0] in ("shoulder", "elbow") and "measured to move by" in why
    assert not [each for each in loop.ticks if each.source == Source.POLICY]
    assert "asked" not in loop.core.status().counts
    with refuses("probe-failed"):
        loop.core.activate(loop.measured)


@pytest.mark.parametrize(
    ("matrix", "name", "share"),
    [
        (np.diag([1e3, 1.0, 1.0]), "x", 0.05),
        (np.diag([3.0, 1.0, 1.0]), "x was measured to move by", 1.01),
        (np.diag([1.0, 1e-3, 1.0]), "y was commanded to move by", 1.01),
        (np.diag([-1.0, 1.0, 1.0]), "x", 1.01),
        (np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), "x", 1.01),
    ],
    ids=["millimetres", "thrice", "kilometres", "sign", "order"],
)
def test_a_tool_that_is_measured_in_other_units_moves_by_the_probing_distance_alone(
    matrix, name: str, share: float
) -> None:
    loop = tool(matrix, (0.0, 0.0, 0.0))
    farthest = 0.0
    loop.ask(Mode.RUN)
    for _ in range(400):
        loop.tick()
        farthest = max(farthest, float(np.abs(loop.place[:2]).max()))
    assert loop.core.state == State.INACTIVE and loop.core.status().why.startswith(name)
    assert farthest <= share * DISTANCE * 0.2


@pytest.mark.parametrize(("share", "passes"), [(0.4, True), (0.6, False)])
def test_less_than_half_of_a_motion_too_much_or_elsewhere_or_while_holding_still_passes(
    share: float, passes: bool
) -> None:
    more, elsewhere, still = (
        tool(np.diag([1 + share, 1 - share, 1.0])),
        tool([[1, share, 0], [0, 1, 0], [0, 0, 1]]),
        tool(np.eye(3)),
    )
    still.tick(3)
    still.place, still.aim = still.place + share * DISTANCE * 0.2, still.aim + share * DISTANCE * 0.2
    for loop in (more, elsewhere, still):
        loop.answer = lambda request: None
        assert (run(loop) == "") == passes


def test_a_single_entry_that_is_compared_is_probed() -> None:
    loop = MeasuredLoop(ARM, np.diag([-1.0, 1.0]), (0.6, -0.4), tracking_error=(0.3, math.inf))
    assert run(loop).startswith("shoulder was measured to move by")


@pytest.mark.parametrize("x", [0.5, -0.5])
def test_a_tool_that_is_measured_outside_its_box_is_not_activated(x: float) -> None:
    with refuses("entry-outside-box", "x"):
        tool(np.diag([1e3, 1.0, 1.0]), (x, 0.0, 0.0))


def test_a_robot_whose_motion_is_not_compared_is_not_probed() -> None:
    assert ControlLoop(probe=True).start().source == Source.POLICY


@pytest.mark.parametrize("edge", [2.003, 1.995])
def test_a_joint_that_rests_at_its_edge_may_be_measured_a_little_outside_and_moves_inwards(edge: float) -> None:
    loop = arm(np.eye(2), (edge, -edge))
    assert run(loop) == ""
    probed = np.stack([each.command for each in loop.ticks if each.source == Source.REPLAY])
    assert probed[:, 0].min() < min(edge, 2) - 0.014 and probed[:, 1].max() > 0.009 - min(edge, 2)


def test_a_probe_moves_nothing_before_a_mode_is_asked_for_nor_while_the_robot_must_hold() -> None:
    loop = arm(np.eye(2))
    loop.pass_s(2.0)
    assert (loop.commands == loop.commands[0]).all() and {each.source for each in loop.ticks} == {Source.HOLD}
    loop.ask(Mode.RUN)
    assert loop.pass_s(0.1).source == Source.REPLAY
    loop.published.discard("front")
    loop.pass_s(0.4)
    assert loop.core.mode == Mode.RUN and rests(loop)


def test_a_probe_begins_again_after_a_pause_in_which_the_robot_was_moved() -> None:
    loop = MeasuredLoop(ARM, np.eye(2), (0.6, -0.4), tracking_error=(0.3, 0.3), lost_s=0.3)
    loop.ask(Mode.RUN)
    loop.pass_s(0.8)
    assert loop.last.source == Source.REPLAY
    loop.now, loop.source_s, loop.place = loop.now + 2.0, loop.source_s + 2.0, loop.place + 0.2
    loop.aim = loop.place.copy()
    loop.pass_s(8.0)
    assert loop.core.status().why == "" and loop.last.source == Source.POLICY


def test_a_probe_that_is_interrupted_begins_again() -> None:
    loop = arm(np.eye(2))
    loop.ask(Mode.RUN)
    loop.pass_s(0.8)
    assert loop.last.source == Source.REPLAY
    loop.held = False
    loop.pass_s(1.0)
    assert loop.core.mode == Mode.HOLD
    loop.held = True
    loop.ask(None)
    assert run(loop) == "" and loop.core.state == State.ACTIVE and loop.last.source == Source.POLICY
