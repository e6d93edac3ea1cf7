"""The scorer alone says when a task is done: what algorithms learn from then, whatever the simulator says."""

import logging
from dataclasses import replace

import pytest

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.judge.reward.score_table import RolloutScores, summarise_scores
from embodied_rl.judge.reward.terminal import Terminal
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.schema import RewardNode
from tests.support import scored_rollouts
from tests.support.scored_rollouts import NAN

EXECUTED, GAMMA = 4, 0.9
DISCOUNT = Discount(GAMMA, "control_step")


def make_mode(discount: Discount | None = DISCOUNT, envs: int = 1, **keys: object) -> Terminal:
    node = replace(RewardNode(name="told", mode="terminal"), **keys)
    return Terminal(node, envs, discount, limit_ends=True)


def make_rollout(decision: list[int], **ends: tuple[int, ...]) -> Rollout:
    return scored_rollouts.make_rollout(decision, **ends, executed=EXECUTED, reward=7.0)


def tell(before: list[float], last: float = NAN, final: dict[int, float] | None = None) -> RolloutScores:
    return scored_rollouts.tell(before, last, final, "done")


def learned(rollout: Rollout) -> list[bool]:
    return rollout.valid[:, 0].tolist()


def test_the_first_decision_whose_following_observation_is_done_ends_the_task() -> None:
    """What the simulator gave stays in its column, and counts for nothing."""
    rollout = make_rollout([0, 1, 2, 3])
    counts = make_mode().settle(rollout, tell([0.99, 0.2, 0.97, 0.99], 0.1))
    assert rollout.terminated[:, 0].tolist() == [False, True, False, False]
    assert learned(rollout) == [True, True, False, False]
    reward = compose_reward(rollout, DISCOUNT)[:, 0]
    assert reward.tolist() == pytest.approx([0, GAMMA ** (EXECUTED - 1), 0, 0])
    assert (rollout.reward == 7).all() and rollout.ignore_env_reward.all() and not rollout.shaping.any()
    assert (counts["said"], counts["false"], counts["ended"]) == (1, 1, 1)


@pytest.mark.parametrize("discount", [None, Discount(GAMMA, "decision")])
def test_without_a_discount_of_steps_done_is_worth_one(discount: Discount | None) -> None:
    rollout = make_rollout([0, 1])
    make_mode(discount).settle(rollout, tell([0.0, 1.0], 0.0))
    assert compose_reward(rollout, discount)[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("said, done", [(0.95, False), (0.951, True)])
def test_done_is_above_the_threshold(said: float, done: bool) -> None:
    rollout = make_rollout([0, 1])
    make_mode().settle(rollout, tell([0.0, said], 0.0))
    assert bool(rollout.terminated[0, 0]) is done
    other = make_rollout([0, 1])
    make_mode(done_threshold=0.4).settle(other, tell([0.0, 0.5], 0.0))
    assert bool(other.terminated[0, 0])


def test_a_missing_judgement_is_no_done_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    mode = make_mode()
    with caplog.at_level(logging.WARNING):
        counts = [mode.settle(make_rollout([0, 1, 2]), tell([0.0, NAN, 0.0], NAN)) for _ in range(2)]
    assert all((found["said"], found["undone"], found["judged"]) == (0, 2, 3) for found in counts)
    assert len(caplog.records) == 1 and "2 of 3 judgements" in caplog.text and "reward.deadline" in caplog.text


@pytest.mark.parametrize("final", [0.0, 1.0])
def test_a_truncated_episode_is_judged_by_its_final_observation_and_a_terminated_one_by_nobody(final: float) -> None:
    """The observation in the next row, which says the contrary here, is of another episode."""
    rollout = make_rollout([0, 1, 0, 1], cut=(1,), over=(3,))
    counts = make_mode().settle(rollout, tell([0.0, 0.0, 1 - final, 0.0], 1.0, final={1: final}))
    assert rollout.terminated[:, 0].tolist() == [False, final == 1, False, True]
    assert bool(rollout.truncated[1, 0]) is (final == 0) and learned(rollout) == [True] * 4
    assert rollout.bonus[:, 0].tolist() == pytest.approx([0, final * GAMMA ** (EXECUTED - 1), 0, 0])
    assert (counts["said"], counts["ended"], counts["undone"], counts["judged"]) == (final, 2, 0, 3)


@pytest.mark.parametrize("resumed", [False, True])
def test_what_follows_done_is_not_valid_until_the_next_episode_begins(resumed: bool) -> None:
    """Also in the next rollouts, and after a resume."""
    mode = make_mode()
    first = make_rollout([0, 1])
    mode.settle(first, tell([0.0, 0.0], 1.0))
    assert learned(first) == [True, True] and bool(first.terminated[1, 0])
    if resumed:
        state, mode = mode.state(), make_mode()
        mode.load(state)
    between, last = make_rollout([2, 3]), make_rollout([4, 0, 1], cut=(0,))
    assert mode.settle(between, tell([1.0, 1.0], 1.0))["said"] == 0
    assert mode.settle(last, tell([1.0, 0.0, 0.0], 0.0, final={0: 1.0}))["said"] == 0
    assert learned(between) == [False, False] and learned(last) == [False, True, True]
    assert not compose_reward(between, DISCOUNT).any()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_several_judgements_in_a_row_count_across_rollouts(cut: int) -> None:
    said = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]  # of what follows decisions 0 … 5
    mode, found = make_mode(done_in_a_row=2), []
    for first in range(0, 6, cut):
        numbers = list(range(first, min(first + cut, 6)))
        rollout = make_rollout(numbers)
        mode.settle(rollout, tell([NAN, *said[numbers[0] : numbers[-1]]], said[numbers[-1]]))
        found += rollout.terminated[:, 0].tolist()
    assert found == [False] * 4 + [True, False]


@pytest.mark.parametrize("cut", [2, 4])
def test_judgements_of_two_episodes_are_not_in_a_row(cut: int) -> None:
    """The first episode ends with one, in this rollout or in the last one; the second begins with one."""
    mode, numbers, said = make_mode(done_in_a_row=2), [0, 1, 0, 1], [0.0, 1.0, 1.0, 0.0]
    found: list[bool] = []
    for first in range(0, 4, cut):
        rollout = make_rollout(numbers[first : first + cut], cut=(1,) if first == 0 else ())
        mode.settle(rollout, tell([NAN, *said[first : first + cut - 1]], said[first + cut - 1], final={1: said[1]}))
        found += rollout.terminated[:, 0].tolist()
    assert found == [False] * 4


def test_what_was_not_asked_breaks_no_row_and_what_is_missing_does() -> None:
    def settle(asked: bool) -> Rollout:
        rollout, scores = make_rollout([0, 1, 2]), tell([0.0, 1.0, NAN], 1.0)
        scores.rows.asked[2] = asked
        make_mode(done_in_a_row=2).settle(rollout, scores)
        return rollout

    assert settle(asked=False).terminated[:, 0].tolist() == [False, False, True]
    assert not settle(asked=True).terminated.any()


def test_false_and_missed_are_counted_against_the_simulator_over_the_whole_episode() -> None:
    """Success in an earlier rollout is success."""
    mode = make_mode(envs=1)
    first = make_rollout([0, 1])
    first.success[0, 0, 2] = True
    mode.settle(first, tell([0.0, 0.0], 0.0))
    second = make_rollout([2, 0, 1, 0], cut=(2,))
    second.success[3, 0, 1] = True
    counts = mode.settle(second, tell([0.0, 0.0, 0.0, 1.0], 1.0, final={2: 1.0}))
    assert (counts["said"], counts["false"], counts["missed"]) == (2, 1, 0)
    third = make_rollout([0, 1], cut=(1,))
    third.success[0, 0, 0] = True
    counts = mode.settle(third, tell([0.0, 0.0], 0.0, final={1: 0.3}))
    assert (counts["said"], counts["missed"]) == (0, 1)


def test_rows_that_were_lost_are_neither_learned_nor_counted() -> None:
    rollout = make_rollout([0, 1, 1])  # such as one that is repeated from a snapshot
    rollout.valid[:2] = False
    rollout.success[0] = True
    counts = make_mode().settle(rollout, tell([0.0, 0.0, 1.0], 1.0))
    assert learned(rollout) == [False, False, True]
    assert (counts["said"], counts["false"], counts["ended"]) == (1, 1, 1)


def test_an_episode_that_begins_after_one_that_was_done_is_learned_from() -> None:
    """And its success is its own."""
    rollout = make_rollout([0, 1, 0, 1], cut=(1,))
    rollout.success[0] = True
    counts = make_mode().settle(rollout, tell([0.0, 1.0, 0.0, 1.0], 0.0, final={1: 1.0}))
    assert learned(rollout) == [True, False, True, False]
    assert (counts["said"], counts["false"]) == (2, 1)


def test_a_simulator_that_ends_at_its_own_success_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the setting of that simulator may be called."""
    mode = make_mode()
    for _ in range(2):
        rollout = make_rollout([0], over=(0,))
        rollout.success[0, 0, EXECUTED - 1] = True
        mode.settle(rollout, tell([0.0]))
    assert caplog.text.count("ended 1 episodes at its own success") == 1
    failed = make_rollout([0], over=(0,))
    caplog.clear()
    make_mode().settle(failed, tell([0.0]))
    assert not caplog.text


def test_figures_are_shares_of_what_was_said() -> None:
    names = ("asked", "resolved", "valid", "progress", "down", "degraded", "waited")
    counts = dict.fromkeys(names, 0.0) | {"collectors": 2.0}
    said = {"said": 8.0, "false": 2.0, "missed": 3.0, "undone": 5.0, "judged": 50.0, "returned": 8.0, "ended": 20.0}
    found = summarise_scores(counts | said)
    wanted = {
        "reward/said_done": 8, "reward/false_done": 0.25, "reward/missed_done": 3, "reward/missing_done": 0.1,
        "reward/critic_return": 0.4,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert "reward/false_done" not in summarise_scores(counts | said | {"said": 0.0}), "of nothing there is no share"
