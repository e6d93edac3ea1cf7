"""The tabletop's own judgement of progress: 0 at the start, 1 at the goal, rising where the operator works."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl_sims.tabletop import Tabletop
from embodied_rl_sims.tabletop.layout import FAMILIES, TASKS

EPISODES = 16  # of a family


def episodes_of(family: str) -> list[Episode]:
    tasks = [number for number, task in enumerate(TASKS) if task.family == family]
    return [Episode(i, tasks[i % len(tasks)], 7_000_000 + i, final_picture=True) for i in range(EPISODES)]


def told(observation: Observation) -> np.ndarray:
    assert observation.progress is not None and observation.progress.dtype == np.float32
    return observation.progress


def watch(simulator: Tabletop, family: str, faulty: bool = False) -> tuple[list[list[float]], list[bool]]:
    """Progress of each episode after each control step, and whether it succeeded."""
    begun = told(simulator.reset(episodes_of(family)))
    assert not begun.any(), "an episode begins at 0"
    operate = simulator.expert(faulty=faulty)
    seen: list[list[float]] = [[0.0] for _ in range(EPISODES)]
    success = [False] * EPISODES
    for _ in range(simulator.spec.horizon):
        running = [row for row in range(EPISODES) if simulator._episode[row] is not None]
        result = simulator.step(operate()[:, None], [None] * EPISODES)
        for row in running:
            if row not in result.ended:
                seen[row].append(float(told(result.observation)[row]))
        for place, row in enumerate(result.ended):
            assert result.final_observation is not None
            seen[row].append(float(told(result.final_observation)[place]))
            success[row] = bool(result.success[row, 0])
    return seen, success


@pytest.mark.parametrize("family", FAMILIES)
def test_it_rises_to_1_where_the_operator_succeeds(make, family: str) -> None:
    seen, success = watch(make(EPISODES, image_size=1, progress=True), family)
    assert sum(success) >= 0.9 * EPISODES
    for values in (values for values, done in zip(seen, success, strict=True) if done):
        assert values[-1] == 1.0 and max(values[:-1]) < 0.98
        ranks = np.argsort(np.argsort(values))
        assert np.corrcoef(ranks, np.arange(len(values)))[0, 1] > 0.7, "it follows time on the way to success"


@pytest.mark.thorough
def test_it_stays_below_1_in_episodes_that_fail(make) -> None:
    simulator, failed = make(EPISODES, image_size=1, progress=True), 0
    for family in FAMILIES:
        seen, success = watch(simulator, family, faulty=True)
        for values in (values for values, done in zip(seen, success, strict=True) if not done):
            assert max(values) <= 0.97 + 1e-6
            failed += 1
    assert failed > 5


def test_it_changes_nothing_else_and_survives_a_snapshot(make) -> None:
    plain, judged = make(4), make(4, progress=True)
    assert replace(judged.spec, reports_progress=False) == plain.spec
    episodes = [Episode(i, i, 8_000_000 + i) for i in range(4)]
    actions = np.random.default_rng(0).uniform(-0.03, 0.03, (3, 4, 5, 4)).astype(np.float32)
    first, second = plain.reset(episodes), judged.reset(episodes)
    for chunk in actions[:2]:
        first, second = plain.step(chunk, episodes).observation, judged.step(chunk, episodes).observation
        assert first.progress is None
        assert np.array_equal(first.images["front"], second.images["front"])
        assert np.array_equal(first.state, second.state) and np.array_equal(first.privileged, second.privileged)
    kept = judged.snapshot()
    expected = told(judged.step(actions[2], episodes).observation)
    other = make(4, progress=True)
    assert np.array_equal(told(other.restore(kept)), told(second))
    assert np.array_equal(told(other.step(actions[2], episodes).observation), expected)
    assert expected.any()
