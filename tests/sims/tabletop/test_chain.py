"""Several goals in one episode: what they are, when one follows another, and what is seen and paid meanwhile."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.simulator_contract import assert_same
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.chain import RISE, draw_chain
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import FAMILIES, SPLITS, TASKS, Layout, draw_layout, is_push_clear
from tests.support.refusals import refuses

TASK = {task.name: number for number, task in enumerate(TASKS)}
GOALS = 3
OPEN = 0.08


def chains(split: str = "train", seeds: int = 40) -> Iterator[tuple[Episode, list[Layout]]]:
    """Episodes of every task with their goals."""
    for number in range(seeds * len(TASKS)):
        episode = Episode(number, number % len(TASKS), 300 + number, split=split)
        yield episode, draw_chain(episode, True, GOALS)


def thing(goal: Layout) -> str:
    return f"button{goal.target}" if goal.family == "press" else f"object{goal.target}"


def moved_by_hand(*families: str) -> tuple[Episode, list[Layout]]:
    """The first episode whose goals are of these families."""
    drawn = (Episode(0, TASK["push_cube"], seed) for seed in count())
    pairs = ((episode, draw_chain(episode, True, GOALS)) for episode in drawn)
    return next(pair for pair in pairs if [goal.family for goal in pair[1]] == [*families])


def done_place(goal: Layout) -> list[float]:
    """Where an object is when a goal of moving it is reached."""
    return [0.3, 0.25, 0.125] if goal.goal < 0 else [*goal.fixtures[goal.goal], 0.022]


# -- which goals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", *SPLITS])
def test_goals_share_a_scene_and_nothing_else(split) -> None:
    """The first is the episode's own task; no thing is moved twice, no place used twice, later pushes are possible."""
    for episode, chain in chains(split):
        assert len(chain) == GOALS and chain[0].family == TASKS[episode.task].family
        assert len({thing(goal) for goal in chain}) == GOALS
        places = [goal.goal for goal in chain if goal.goal >= 0]
        assert len(set(places)) == len(places)
        assert len({goal.instruction for goal in chain}) == GOALS
        assert (chain[0].displacement is not None) == (split == "execution")
        for goal in chain[1:]:
            assert goal.displacement is None
            assert np.array_equal(goal.objects, chain[0].objects) and goal.look is chain[0].look
            assert goal.family != "push" or is_push_clear(goal)


@pytest.mark.thorough
def test_one_goal_is_the_scene_it_always_was_and_every_family_follows() -> None:
    again, later = 0, set[str]()
    for episode, chain in chains(seeds=100):
        alone = draw_chain(episode, True, 1)
        assert repr(alone) == repr([draw_layout(episode)])
        again += repr(alone[0]) != repr(chain[0])
        later |= {goal.family for goal in chain[1:]}
        assert repr(chain) == repr(draw_chain(replace(episode, index=9, group=3), True, GOALS))
    assert 0 < again < 70, "some scenes do not allow three goals and are drawn again"
    assert later == set(FAMILIES)


# -- when one follows another ------------------------------------------------------------------------------------------


def check_aim(observation: Observation, simulator: Tabletop, goal: Layout, reached: int) -> None:
    """Instruction, privileged state and progress speak of the same goal."""
    assert observation.instruction == (goal.instruction,)
    assert observation.privileged is not None and observation.progress is not None
    names = simulator.spec.privileged_names
    told = dict(zip(names, observation.privileged[0].tolist(), strict=True))
    assert [told[f"is_{family}"] for family in FAMILIES] == [family == goal.family for family in FAMILIES]
    assert told["goals_done"] == pytest.approx(reached / GOALS)
    target = simulator._bodies.objects[0, goal.target]
    assert [told["target_x"], told["target_y"]] == pytest.approx((target[:2] - [0.48, 0.0]) * 8, abs=1e-5)
    assert reached / GOALS <= observation.progress[0] < (reached + 0.99) / GOALS


def test_a_goal_follows_on_the_step_that_reaches_the_one_before(make, put, still) -> None:
    """By hand: nothing is paid until the last, which ends the episode; each step is told of its own goal."""
    episode, chain = moved_by_hand("push", "put", "pick")
    simulator = make(goals=GOALS, progress=True)
    observation = simulator.reset([episode])
    for reached, goal in enumerate(chain):
        check_aim(observation, simulator, goal, reached)
        waited = simulator.step(still, [None])
        assert not waited.terminated[0] and waited.observation.instruction == (goal.instruction,)
        put(simulator, 0, goal.target, done_place(goal))
        result = simulator.step(still, [None])
        last = reached == GOALS - 1
        assert result.reward[0, 0] == result.success[0, 0] == result.terminated[0] == last
        observation = result.observation
    assert result.failures == ("",) and result.final_observation is not None
    assert result.final_observation.progress == [1.0]
    assert result.final_observation.instruction == (chain[-1].instruction,)


def test_the_rest_of_a_chunk_belongs_to_the_next_goal(make, put, still) -> None:
    """Progress of a goal counts from the control step at which it began, not from the next observation."""
    episode, chain = moved_by_hand("push", "put", "pick")
    up = np.tile(np.array([0, 0, 0.03, 1], np.float32), (1, 4, 1))
    seen = []
    for chunks in ([4], [1, 1, 1, 1]):
        simulator = make(goals=GOALS, progress=True)
        simulator.reset([episode])
        put(simulator, 0, chain[0].target, done_place(chain[0]))
        for steps in chunks:
            result = simulator.step(up[:, :steps], [None])
        seen.append((result.observation, simulator.snapshot()))
    (first, saved), (second, expected) = seen
    assert_same(first, second, "a chunk of four steps and four chunks of one")
    for name, array in expected.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)
    assert saved["stage"].tolist() == [1] and saved["since"].tolist() == [1]


def test_success_is_that_of_the_last_goal(make, put, still) -> None:
    """Where success does not end an episode, it is paid once; reaching earlier goals is neither success nor paid."""
    episode, chain = moved_by_hand("push", "put", "pick")
    simulator, seen = make(goals=GOALS, terminate_on_success=False, horizon=7), []
    simulator.reset([episode])
    for goal in (*chain, chain[-1]):
        put(simulator, 0, goal.target, done_place(goal))
        result = simulator.step(still, [None])
        seen.append((float(result.reward[0, 0]), bool(result.success[0, 0])))
    assert seen == [(0, False), (0, False), (1, True), (0, True)]


# -- what is a failure -------------------------------------------------------------------------------------------------


def test_what_was_in_hand_is_no_failure_of_the_next_goal_until_it_was_put_down() -> None:
    _, chain = moved_by_hand("push", "pick", "pick")
    first, second = chain[1:]
    goals, width, caps = Goals(1), np.array([OPEN]), np.zeros((1, 2))

    def judge(*heights: float) -> tuple[bool, bool]:
        objects = np.array([[[0.9, 0.9, 0.019]] * 3])
        objects[0, first.target, 2], objects[0, second.target, 2] = heights
        if not goals.excused.any() and heights[0] > 0.08 and not started:
            goals.excuse(0, objects, caps, width)
            started.append(1)
        success, failure = goals.judge(objects, caps, width)
        return bool(success[0]), bool(failure[0])

    started: list[int] = []
    goals.begin(0, second, second.fixtures)
    assert judge(0.10, 0.019) == (False, False), "the first object is still in the air"
    assert judge(0.10, 0.09) == (True, False)
    assert judge(0.019, 0.019) == (False, False)
    assert judge(0.10, 0.019) == (False, True), "now it is lifted once more"
    goals.begin(0, second, second.fixtures)
    assert judge(0.10, 0.019) == (False, True), "a goal that is the first of its episode excuses nothing"
    goals.excused[0, first.target] = True
    goals.begin(0, second, second.fixtures)
    assert judge(0.10, 0.019) == (False, True), "nor what an earlier episode was excused"


def test_a_snapshot_remembers_what_is_excused(make, put, still) -> None:
    episode, chain = moved_by_hand("push", "pick", "pick")
    simulators = [make(goals=GOALS), make(goals=GOALS)]
    simulators[0].reset([episode])
    put(simulators[0], 0, chain[0].target, done_place(chain[0]))
    simulators[0].step(still, [None])
    put(simulators[0], 0, chain[1].target, [0.3, 0.25, 0.25])
    simulators[0].step(still, [None])
    assert simulators[0].snapshot()["excused"][0, chain[1].target]
    simulators[1].restore(simulators[0].snapshot())
    for simulator in simulators:
        result = simulator.step(still, [None])
        assert simulator._bodies.objects[0, chain[1].target, 2] > 0.09, "it still falls"
        assert not result.terminated[0] and result.observation.instruction == (chain[2].instruction,)


def test_a_wrong_object_ends_a_later_goal_and_the_text_says_which(make, put, still) -> None:
    episode, chain = moved_by_hand("push", "put", "pick")
    simulator = make(goals=GOALS)
    simulator.reset([episode])
    put(simulator, 0, chain[0].target, done_place(chain[0]))
    simulator.step(still, [None])
    put(simulator, 0, chain[2].target, done_place(chain[1]))
    result = simulator.step(still, [None])
    assert result.terminated[0] and not result.success.any() and not result.reward.any()
    assert result.failures == ("goal 2 of 3: wrong object placed",)


# -- the operator, continuation, the contract -------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_careful_operator_does_all_goals(make) -> None:
    episodes = [Episode(i, i % len(TASKS), 5_100_000 + i) for i in range(42)]
    simulator, success = make(42, image_size=1, goals=GOALS, horizon=120), [False] * 42
    simulator.reset(episodes)
    operate = simulator.expert()
    for _ in range(120):
        result = simulator.step(operate()[:, None], [None] * 42)
        for row in result.ended:
            success[row] = bool(result.success[row, 0])
    assert np.mean(success) >= 0.95


def test_the_operator_rises_before_it_turns_to_the_next_goal(make, put, still) -> None:
    episode, chain = moved_by_hand("push", "put", "pick")
    simulator = make(goals=GOALS)
    simulator.reset([episode])
    put(simulator, 0, chain[0].target, done_place(chain[0]))
    operate, rose = simulator.expert(), []
    simulator.step(still, [None])
    for _ in range(RISE + 1):
        action = operate()
        rose.append(action[0].tolist() == pytest.approx([0, 0, 0.03, 1]))
        simulator.step(action[:, None], [None])
    assert rose == [True] * RISE + [False]


def results(simulator: Tabletop, operate: Callable[[], Array], chunks: int) -> list[StepResult]:
    """The operator acts; each action twice, so that goals are reached within a chunk, too."""
    following = [Episode(50 + row, row, 90 + row) for row in range(len(TASKS))]
    return [simulator.step(np.repeat(operate()[:, None], 2, axis=1), following) for _ in range(chunks)]


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "execution"])
def test_a_snapshot_continues_to_the_bit_at_every_goal(make, split) -> None:
    episodes = [Episode(row, row, 70 + row, split=split) for row in range(len(TASKS))]
    settings = {"goals": GOALS, "horizon": 90, "progress": True}
    whole, stages = make(len(TASKS), **settings), set[int]()
    whole.reset(episodes)
    for _ in range(8):  # how long a goal takes differs with the processor's rounding
        last = results(whole, whole.expert(), 7)[-1].observation
        saved = whole.snapshot()
        stages |= {*saved["stage"].tolist()}
        other = make(len(TASKS), **settings)
        assert_same(other.restore(saved), last, "the observation of a snapshot")
        expected, found = results(whole, whole.expert(), 4), results(other, other.expert(), 4)
        for left, right in zip(found, expected, strict=True):
            assert_same(left, right, "a restored chain")
        if stages == {0, 1, 2}:
            break
    assert stages == {0, 1, 2}


def test_a_parked_environment_has_no_goals_left(make, put, still) -> None:
    """Restored where its last chain ran, it is as empty as where none ever did."""
    episode, chain = moved_by_hand("push", "put", "pick")
    simulator = make(goals=GOALS)
    simulator.reset([episode])
    for goal in chain:
        put(simulator, 0, goal.target, done_place(goal))
        simulator.step(still, [None])
    saved = simulator.snapshot()
    simulator.reset([episode])
    assert simulator.restore(saved).instruction == ("",)
    assert not simulator.render(0, 8, 8).any()


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "to the horizon"])
def test_it_keeps_the_contract(make, ends) -> None:
    check_simulator(lambda rows: make(rows, horizon=15, goals=GOALS, progress=True, terminate_on_success=ends))


# -- the potential ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("horizon", [120, 20], ids=["reached", "cut off"])
def test_the_oracle_s_potential_telescopes_over_all_goals(make, horizon) -> None:
    """Discounted shaping of an episode is -Φ(start), plus γ^T Φ(end) at a time limit; no goal's change adds to it."""
    gamma, rows = 0.97, len(TASKS)
    simulator = make(rows, image_size=1, goals=GOALS, horizon=horizon, progress=True)
    observation, operate = simulator.reset([Episode(row, row, 400 + row) for row in range(rows)]), simulator.expert()
    scores, finals, running, ended = [], [], [], []
    for _ in range(horizon):
        if not any(alive := [episode is not None for episode in simulator._episode]):
            break
        assert observation.progress is not None
        scores.append(observation.progress.astype(float))
        result = simulator.step(operate()[:, None], [None] * rows)
        final = np.full(rows, np.nan)
        if result.final_observation is not None:
            final[result.ended] = result.final_observation.progress
        finals.append(final)
        running.append(alive)
        ended.append((result.terminated, result.truncated))
        observation = result.observation
    valid, score, final = np.array(running), np.array(scores), np.array(finals)
    terminated, truncated = np.array(ended).swapaxes(0, 1)
    decision = np.where(valid, np.arange(len(score))[:, None], 0)
    settled = PotentialLedger(rows).settle(
        ScoredRollout(
            score=score,
            last=score[-1],
            final=final,
            decision=decision,
            discount=np.full(score.shape, gamma),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
        )
    )
    returned = (gamma ** np.arange(len(score))[:, None] * settled.shaping).sum(axis=0)
    length = valid.sum(axis=0)
    at_end = np.nan_to_num(np.where(truncated, final, 0)).sum(axis=0)
    np.testing.assert_allclose(returned, gamma**length * at_end - score[0], atol=1e-9)
    assert truncated.any(axis=0).all() == (horizon == 20)
    highest = np.where(valid, score, 0).max(axis=0)
    assert (highest > (2 / 3 if horizon == 120 else 0.1)).all(), "goals were reached on the way"


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goals", [0, 4])
def test_other_numbers_of_goals_are_refused(goals) -> None:
    with refuses("value-out-of-range", f"sim.goals={goals}"):
        TabletopConfig(goals=goals)


def test_all_goals_of_a_scene_are_watched_with_one_goal_alone(make) -> None:
    with refuses("keys-contradict", "sim.goals=3", "sim.goals=1"):
        make(goals=GOALS).watch_goals()
    assert "goals_done" not in make().spec.privileged_names
