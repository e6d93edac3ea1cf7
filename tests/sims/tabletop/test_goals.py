"""When a task is done and when it has gone wrong: numbers by hand, and objects moved by hand."""

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import TASKS, draw_layout

TASK = {task.name: number for number, task in enumerate(TASKS)}
OPEN, CLOSED = 0.08, 0.04
AWAY = [0.9, 0.9, 0.019]


def judged(
    task: str, target: tuple, width: float = OPEN, other: tuple = (), caps: tuple = (0.0, 0.0)
) -> tuple[bool, bool]:
    """(success, failure) with the target at `target`, metres from the goal, and another object at `other`."""
    layout = draw_layout(Episode(0, TASK[task], 3))
    goals = Goals(1)
    goals.begin(0, layout, layout.fixtures)
    origin = np.zeros(3) if layout.goal < 0 else np.array([*layout.fixtures[layout.goal], 0.0])
    objects = np.array([AWAY] * 3)
    if layout.family != "press":
        objects[layout.target] = origin + target
        if other:
            objects[layout.target - 1] = origin + other
    if layout.family == "press" and layout.target == 1:
        caps = caps[::-1]
    success, failure = goals.judge(objects[None], np.array([caps]), np.array([width]))
    return bool(success[0]), bool(failure[0])


@pytest.mark.parametrize(
    ("task", "target", "width", "expected"),
    [
        ("push_cube", (0.044, -0.044, 0.019), CLOSED, True),
        ("push_cube", (0.046, 0.0, 0.019), CLOSED, False),
        ("push_cylinder", (0.0, -0.046, 0.019), OPEN, False),
        ("push_cube", (0.0, 0.0, 0.05), OPEN, False),
        ("pick_cube", (0.5, 0.0, 0.081), CLOSED, True),
        ("pick_cylinder", (0.5, 0.0, 0.079), CLOSED, False),
        ("put_on_plate", (0.0, 0.044, 0.021), OPEN, True),
        ("put_on_plate", (0.0, 0.046, 0.021), OPEN, False),
        ("put_on_plate", (0.0, 0.0, 0.021), CLOSED, False),
        ("put_on_plate", (0.0, 0.0, 0.05), OPEN, False),
        ("put_in_bowl", (0.041, 0.0, 0.021), OPEN, True),
        ("put_in_bowl", (0.043, 0.0, 0.021), OPEN, False),
        ("put_in_bowl", (0.0, 0.0, 0.021), CLOSED, False),
    ],
)
def test_where_a_goal_begins(task, target, width, expected) -> None:
    assert judged(task, target, width) == (expected, False)


@pytest.mark.parametrize(
    ("task", "other"),
    [
        ("push_cube", (0.0, 0.02, 0.019)),
        ("pick_cube", (0.5, 0.3, 0.09)),
        ("put_on_plate", (0.03, 0.0, 0.021)),
        ("put_in_bowl", (0.03, 0.0, 0.021)),
    ],
)
def test_the_wrong_object_is_a_failure(task, other) -> None:
    far = (0.2, 0.2, 0.019)
    assert judged(task, far, OPEN, other) == (False, True)
    assert judged(task, far, OPEN) == (False, False)


def explained(task: str, target: tuple, *, raised: bool, terminated: bool = False) -> str:
    """Why an episode failed that ends with its target at `target`, metres from the goal."""
    layout = draw_layout(Episode(0, TASK[task], 3))
    goals = Goals(1)
    goals.begin(0, layout, layout.fixtures)
    goals.raised[0] = raised
    origin = np.zeros(3) if layout.goal < 0 else np.array([*layout.fixtures[layout.goal], 0.0])
    return goals.explain_failure(0, origin + target, terminated)


ASIDE, HIGH = (0.2, 0.0, 0.019), (0.2, 0.0, 0.07)


@pytest.mark.parametrize(
    ("task", "target", "raised", "expected"),
    [
        ("push_cube", ASIDE, False, "time limit: object never lifted"),
        ("pick_cube", ASIDE, True, "time limit: object dropped"),
        ("pick_cube", HIGH, True, "time limit: object not lifted high enough"),
        ("put_on_plate", HIGH, True, "time limit: object not put down"),
        ("put_on_plate", ASIDE, True, "time limit: object dropped"),
        ("put_on_plate", (0.04, 0.0, 0.021), True, "time limit: object not released"),
        ("put_in_bowl", (0.0, 0.043, 0.021), True, "time limit: object dropped"),
        ("press_button", ASIDE, False, "time limit: button not pressed"),
    ],
)
def test_a_late_episode_says_what_was_missing(task, target, raised, expected) -> None:
    assert explained(task, target, raised=raised) == expected


def test_a_wrong_button_is_named() -> None:
    assert explained("press_button", ASIDE, raised=False, terminated=True) == "wrong button pressed"


def test_what_was_once_in_the_air_is_known_until_the_next_episode() -> None:
    layout = draw_layout(Episode(0, TASK["pick_cube"], 3))
    goals, objects = Goals(1), np.array([[AWAY] * 3])
    goals.begin(0, layout, layout.fixtures)
    for height, raised in ((0.044, False), (0.046, True), (0.019, True)):
        objects[0, layout.target, 2] = height
        goals.judge(objects, np.zeros((1, 2)), np.array([OPEN]))
        assert goals.raised[0] == raised
    goals.begin(0, layout, layout.fixtures)
    assert not goals.raised[0]


def test_a_drop_is_told_after_a_snapshot_too(make, put, still) -> None:
    """Lifted, dropped, saved, restored elsewhere: the time limit then says that the object was dropped."""
    episode, simulators = Episode(0, TASK["push_cube"], 5), [make(horizon=3), make(horizon=3)]
    simulators[0].reset([episode])
    for height in (0.12, 0.019):
        put(simulators[0], 0, draw_layout(episode).target, [0.3, 0.25, height])
        simulators[0].step(still, [None])
    simulators[1].restore(simulators[0].snapshot())
    for simulator in simulators:
        assert simulator.step(still, [None]).failures == ("time limit: object dropped",)


def test_buttons() -> None:
    assert judged("press_button", (), caps=(-0.008, 0.0)) == (True, False)
    assert judged("press_button", (), caps=(-0.006, 0.0)) == (False, False)
    assert judged("press_button", (), caps=(0.0, -0.008)) == (False, True)


@pytest.mark.parametrize("task", ["push_cube", "put_on_plate", "put_in_bowl"])
def test_a_hand_ends_an_episode_in_success(make, put, still, task) -> None:
    """The reward is one, on the step that reaches the goal."""
    episode = Episode(0, TASK[task], 5)
    layout, simulator = draw_layout(episode), make()
    simulator.reset([episode])
    before = simulator.step(still, [None])
    assert not before.terminated[0] and not before.reward.any() and not before.success.any()
    put(simulator, 0, layout.target, [*layout.fixtures[layout.goal], 0.022])
    result = simulator.step(np.repeat(still, 3, axis=1), [None])
    assert result.terminated[0] and not result.truncated[0]
    np.testing.assert_array_equal(result.reward, [[1, 0, 0]])
    np.testing.assert_array_equal(result.success, [[True, False, False]])
    assert result.steps[0] == 1
    assert before.failures is None and result.failures == ("",)


def test_a_lifted_object_is_picked(make, put, still) -> None:
    """In a control step of 80 ms an object falls by g t² / 2 = 3.1 cm."""
    episode = Episode(0, TASK["pick_cube"], 5)
    for height, expected in ((0.125, True), (0.10, False)):
        simulator = make()
        simulator.reset([episode])
        put(simulator, 0, draw_layout(episode).target, [0.3, 0.25, height])
        assert simulator.step(still, [None]).terminated[0] == expected


@pytest.mark.parametrize("task", ["push_cube", "put_on_plate", "put_in_bowl", "pick_cube"])
def test_the_wrong_object_ends_an_episode_without_success(make, put, still, task) -> None:
    episode = Episode(0, TASK[task], 5)
    layout, simulator = draw_layout(episode), make()
    simulator.reset([episode])
    place = [0.3, 0.25, 0.125] if layout.goal < 0 else [*layout.fixtures[layout.goal], 0.022]
    put(simulator, 0, (layout.target + 1) % 3, place)
    result = simulator.step(np.repeat(still, 2, axis=1), [None])
    assert result.terminated[0] and not result.truncated[0]
    assert not result.success.any() and not result.reward.any()
    assert result.failures == ("wrong object lifted" if layout.goal < 0 else "wrong object placed",)


def test_success_is_paid_once_where_it_does_not_end_the_episode(make, put, still) -> None:
    """It can be lost again and regained; the horizon ends the episode."""
    episode = Episode(0, TASK["push_cube"], 5)
    layout, simulator = draw_layout(episode), make(terminate_on_success=False, horizon=6)
    simulator.reset([episode])
    seen = []
    goal, far = [*layout.fixtures[layout.goal], 0.019], [0.3, 0.3, 0.019]
    for place in (goal, goal, far, goal):
        put(simulator, 0, layout.target, place)
        result = simulator.step(still, [None])
        assert not result.terminated[0]
        seen.append((float(result.reward[0, 0]), bool(result.success[0, 0])))
    assert seen == [(1, True), (0, True), (0, False), (0, True)]
    result = simulator.step(np.repeat(still, 4, axis=1), [None])
    assert result.failures == ("",), "the goal was reached once"
    assert result.truncated[0] and not result.terminated[0] and result.steps[0] == 2
    np.testing.assert_array_equal(result.success[0], [True, True, False, False])


def test_the_wrong_object_ends_an_episode_that_success_does_not(make, put, still) -> None:
    episode = Episode(0, TASK["push_cube"], 5)
    layout, simulator = draw_layout(episode), make(terminate_on_success=False)
    simulator.reset([episode])
    put(simulator, 0, (layout.target + 1) % 3, [*layout.fixtures[layout.goal], 0.019])
    assert simulator.step(still, [None]).terminated[0]
