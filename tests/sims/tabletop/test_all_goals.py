"""Every goal that a scene allows: named once, and judged as the simulator judges an episode that is asked for it."""

import numpy as np
import pytest

from embodied_rl.interfaces.goals import GoalWatched
from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.tabletop.all_goals import MAX_GOALS
from embodied_rl_sims.tabletop.layout import TASKS, draw_layout, is_held_out, list_goals

ROWS = len(TASKS)


def episodes(start: int, split: str = "train") -> list[Episode]:
    return [Episode(start + i, i, 9_000_000 + start + i, split=split, final_picture=True) for i in range(ROWS)]


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "execution"])
@pytest.mark.parametrize("faulty", [False, True])
def test_the_own_goal_is_judged_as_the_simulator_does(make, faulty: bool, split: str) -> None:
    simulator = make(ROWS, image_size=1, progress=True, terminate_on_success=False)
    assert issubclass(type(simulator), GoalWatched)
    watch, following = simulator.watch_goals(), iter(episodes(ROWS, split))
    shown, ends, held = simulator.reset(episodes(0, split)), 0, 0
    operate = simulator.expert(faulty)
    for _ in range(70):
        for row, goals in enumerate(watch.current()):
            if not goals:
                assert simulator._episode[row] is None, "a running environment has goals"
                continue
            assert goals[0].relation == "own" and [goal.relation for goal in goals].count("own") == 1
            assert goals[0].instruction == shown.instruction[row]
            assert np.float32(goals[0].progress) == shown.progress[row]
        result = simulator.step(operate()[:, None], [next(following, None) for _ in range(ROWS)])
        assert len(watch.ended()) == len(result.ended)
        for place, row in enumerate(result.ended):
            own = watch.ended()[place][0]
            assert np.float32(own.progress) == result.final_observation.progress[place]
            assert own.done == result.success[row, 0]
            ends, held = ends + 1, held + own.done
        shown = result.observation
    assert ends >= ROWS and held


def test_another_goal_is_judged_by_its_own_rule(make) -> None:
    """While an object is put somewhere, "pick it up" holds as long as it is in the air, and no other pick does."""
    simulator, put = make(1, image_size=1), next(i for i, task in enumerate(TASKS) if task.family == "put")
    watch, number = simulator.watch_goals(), next(i for i in range(100) if len(picked(i, put)) == 3)
    simulator.reset([Episode(number, put, number, final_picture=True)])
    target, operate, seen = simulator._layout[0].target, simulator.expert(), []
    while goals := watch.current()[0]:
        heights = simulator._bodies.objects[0, :, 2]
        picks = [goal for goal in goals if goal.instruction.startswith("pick up")]
        assert [goal.done for goal in picks] == [heights[i] > 0.08 for i in picked(number, put)]
        seen.append([i for i, goal in zip(picked(number, put), picks, strict=True) if goal.done])
        simulator.step(operate()[:, None], [None])
    assert [target] in seen and all(each in ([], [target]) for each in seen)


def picked(number: int, task: int) -> list[int]:
    goals = list_goals(draw_layout(Episode(number, task, number)))
    return [goal.target for goal in goals if goal.family == "pick"]


def test_goals_are_as_many_as_fit_and_have_different_words() -> None:
    for index in range(300):
        layout = draw_layout(Episode(index, index % ROWS, index))
        goals = list_goals(layout)
        words = [goal.instruction for goal in goals]
        assert words[0] == layout.instruction and len(set(words)) == len(words) <= MAX_GOALS


def test_words_of_the_semantic_split_are_not_asked_in_training() -> None:
    asked = [goal for i in range(300) for goal in list_goals(draw_layout(Episode(i, i % ROWS, i)))]
    for goal in asked:
        kind = "button" if goal.family == "press" else ("cube", "cube", "cylinder")[goal.target]
        colour = goal.fixture_colours[goal.goal] if goal.family == "press" else goal.object_colours[goal.target]
        assert not is_held_out(goal.family, kind, colour)


def test_a_snapshot_continues_all_goals(make) -> None:
    simulator = make(ROWS, image_size=1)
    watch = simulator.watch_goals()
    simulator.reset(episodes(0))
    operate = simulator.expert()
    for _ in range(6):
        simulator.step(operate()[:, None], [None] * ROWS)
    kept, before = simulator.snapshot(), watch.current()
    simulator.step(operate()[:, None], [None] * ROWS)
    simulator.restore(kept)
    assert watch.current() == before
