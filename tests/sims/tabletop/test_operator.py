"""The scripted operator: careful, it succeeds; faulty, it errs by what `assets/README.md` says, and no more."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop import Tabletop, operator
from embodied_rl_sims.tabletop.layout import FAMILIES, TASKS, draw
from embodied_rl_sims.tabletop.operator import CLOSED, Faults, Scene, act, draw_faults

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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_careful_operator_succeeds(make, family) -> None:
    tasks = [number for number, task in enumerate(TASKS) if task.family == family]
    episodes = [Episode(i, tasks[i % len(tasks)], 5_000_000 + i) for i in range(EPISODES)]
    simulator = make(EPISODES, image_size=1)
    assert np.mean(outcomes(simulator, episodes, simulator.expert())) >= 0.95


def test_a_faulty_operator_fails_often_but_not_always(make) -> None:
    episodes = [Episode(i, i % len(TASKS), 6_000_000 + i) for i in range(56)]
    simulator = make(56, image_size=1)
    assert 0.2 < np.mean(outcomes(simulator, episodes, simulator.expert(faulty=True))) < 0.8


def test_faults_stay_within_what_is_documented() -> None:
    drawn = [draw_faults(np.random.default_rng(seed)) for seed in range(2000)]
    documented = {
        "grasp_high": (0.006, 0.030),
        "push_short": (0.010, 0.055),
        "press_high": (0.0, 0.024),
    }
    for name, (low, high) in documented.items():
        values = np.array([getattr(faults, name) for faults in drawn])
        assert low <= values.min() < low + 0.001 and high - 0.001 < values.max() <= high
    beside = np.array([faults.place_off for faults in drawn])
    assert (beside[:, 1] == 0).all()
    assert 0.005 <= beside[:, 0].min() and 0.049 < beside[:, 0].max() <= 0.050
    assert {field.name for field in fields(Faults)} == {*documented, "place_off"}


def test_faults_are_fixed_for_an_episode_and_differ_between_episodes(make, monkeypatch) -> None:
    seen: list[tuple[int, Faults]] = []

    def spy(scene: Scene, faults: Faults) -> Array:
        seen.append((len(seen) % 3, faults))
        return np.zeros(4)

    monkeypatch.setattr(operator, "act", spy)
    simulator = make(3)
    simulator.reset([Episode(i, TASK["pick_cube"], 40 + i) for i in range(3)])
    operate = simulator.expert(faulty=True)
    for _ in range(4):
        operate()
    by_row = [{repr(faults) for row, faults in seen if row == wanted} for wanted in range(3)]
    assert [len(faults) for faults in by_row] == [1, 1, 1]
    assert len(set.union(*by_row)) == 3


def run_with(simulator: Tabletop, episode: Episode, faults: Faults, steps: int) -> list[tuple[Scene, Array]]:
    """What the operator saw and did on each control step of an episode, until it ended."""
    simulator.reset([episode])
    family, done = draw(episode).family, []
    for _ in range(steps):
        names, values = simulator.spec.privileged_names, simulator._truth()
        scene = values.scene(0, family)
        scene = Scene(**{f.name: np.copy(v) if isinstance(v := getattr(scene, f.name), np.ndarray) else v for f in fields(Scene)})
        done.append((scene, act(scene, faults)))
        if len(simulator.step(done[-1][1].astype(np.float32)[None, None], [None]).ended):
            break
    assert names
    return done


def test_a_high_grasp_closes_that_far_above_the_centre(make) -> None:
    for high in (0.01, 0.03):
        steps = run_with(make(), Episode(0, TASK["pick_cube"], 9), Faults(grasp_high=high), 30)
        scene = next(scene for scene, action in steps if action[3] == CLOSED)
        assert scene.tool[2] - scene.target[2] == pytest.approx(high, abs=0.01)
