"""The scripted operator: careful, it succeeds; faulty, it errs by what `assets/README.md` says, and no more."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop import Tabletop, operator
from embodied_rl_sims.tabletop.layout import FAMILIES, TASKS
from embodied_rl_sims.tabletop.operator import CLOSED, OPEN, Faults, OperatorView, choose_action, draw_faults

TASK = {task.name: number for number, task in enumerate(TASKS)}
EPISODES = 48  # of a family: an operator that fails one time in eight passes once in fifty


def outcomes(simulator: Tabletop, episodes: list[Episode], operate: Callable[[], Array]) -> list[bool]:
    """Success of each episode, one control step at a time."""
    success = [False] * len(episodes)
    simulator.reset([*episodes, *[None] * (simulator.num_envs - len(episodes))])
    for _ in range(simulator.spec.horizon):
        result = simulator.step(operate()[:, None], [None] * simulator.num_envs)
        for row in result.ended:
            success[row] = bool(result.success[row, 0])
    return success


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_a_careful_operator_succeeds(make, family) -> None:
    tasks = [number for number, task in enumerate(TASKS) if task.family == family]
    episodes = [Episode(i, tasks[i % len(tasks)], 5_000_000 + i) for i in range(EPISODES)]
    simulator = make(EPISODES, image_size=1)
    assert np.mean(outcomes(simulator, episodes, simulator.expert())) >= 0.95


@pytest.mark.thorough
def test_a_faulty_operator_fails_often_but_not_always(make) -> None:
    episodes = [Episode(i, i % len(TASKS), 6_000_000 + i) for i in range(56)]
    simulator = make(56, image_size=1)
    assert 0.2 < np.mean(outcomes(simulator, episodes, simulator.expert(faulty=True))) < 0.8


def test_faults_stay_within_what_is_documented() -> None:
    drawn = [draw_faults(np.random.default_rng(seed)) for seed in range(2000)]
    documented = {
        "grasp_high": (0.006, 0.030),
        "push_short": (0.020, 0.070),
        "press_high": (0.0, 0.024),
    }
    for name, (low, high) in documented.items():
        values = np.array([getattr(faults, name) for faults in drawn])
        assert low <= values.min() < low + 0.001 and high - 0.001 < values.max() <= high
    beside = np.array([faults.place_off for faults in drawn])
    assert (beside[:, 1] == 0).all()
    assert beside[:, 0].min() >= 0.005 and 0.049 < beside[:, 0].max() <= 0.050
    assert {field.name for field in fields(Faults)} == {*documented, "place_off"}


def test_faults_are_fixed_for_an_episode_and_differ_between_episodes(make, monkeypatch) -> None:
    seen: list[tuple[int, Faults]] = []

    def spy(scene: OperatorView, faults: Faults) -> Array:
        seen.append((len(seen) % 3, faults))
        return np.zeros(4)

    monkeypatch.setattr(operator, "choose_action", spy)
    simulator = make(3)
    simulator.reset([Episode(i, TASK["pick_cube"], 40 + i) for i in range(3)])
    operate = simulator.expert(faulty=True)
    for _ in range(4):
        operate()
    by_row = [{repr(faults) for row, faults in seen if row == wanted} for wanted in range(3)]
    assert [len(faults) for faults in by_row] == [1, 1, 1]
    assert len(set.union(*by_row)) == 3


def scene(family: str, tool: tuple, target: tuple, goal: tuple = (0.5, 0.0), width: float = 0.08) -> OperatorView:
    """An arm that stands where it was told to."""
    at = np.array(tool)
    return OperatorView(family, at, at, width, np.array(target), np.array(goal), 0.03)


def test_a_high_grasp_closes_above_the_centre() -> None:
    above = scene("pick", (0.5, 0.1, 0.05), (0.5, 0.1, 0.019))
    assert choose_action(above)[3] == OPEN and choose_action(above)[2] < 0
    assert choose_action(above, Faults(grasp_high=0.03))[3] == CLOSED


def test_a_short_push_stops_before_the_goal() -> None:
    """The tool is behind the target, which is 4 cm from its goal."""
    behind = scene("push", (0.402, 0.0, 0.025), (0.46, 0.0, 0.019))
    assert choose_action(behind)[0] > 0.01
    np.testing.assert_array_equal(choose_action(behind, Faults(push_short=0.04))[:3], 0)
    assert choose_action(behind, Faults(push_short=0.02))[0] > 0


def test_a_placement_off_the_goal_lowers_beside_it() -> None:
    for beside in (0.0, 0.05):
        held = scene("put", (0.5 + beside, 0.0, 0.06), (0.5 + beside, 0.0, 0.06), width=0.038)
        action = choose_action(held, Faults(place_off=(beside, 0.0)))
        np.testing.assert_allclose(action[:3], [0, 0, -0.03], atol=1e-12)
    there = scene("put", (0.55, 0.0, 0.022), (0.55, 0.0, 0.022), width=0.038)
    assert choose_action(there, Faults(place_off=(0.05, 0.0)))[3] == OPEN
    assert choose_action(there)[3] == CLOSED


def test_a_light_press_stops_above_the_depth() -> None:
    over = scene("press", (0.5, 0.0, 0.045), (0.5, 0.0, 0.035))
    assert choose_action(over, Faults(press_high=0.012))[2] - choose_action(over)[2] == pytest.approx(0.012)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_action_exceeds_a_step(family) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        tool, target = rng.uniform([0.3, -0.2, 0.02], [0.6, 0.2, 0.2], (2, 3))
        action = choose_action(scene(family, tuple(tool), tuple(target), width=rng.uniform(0, 0.08)), draw_faults(rng))
        assert (np.abs(action[:3]) <= 0.03).all() and action[3] in (OPEN, CLOSED)
