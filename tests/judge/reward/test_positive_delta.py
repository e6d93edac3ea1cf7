"""Positive score differences as rewards: paid amounts by hand, and what shaping by the same scores pays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.judge.reward.modes import ModeOptions
from embodied_rl.judge.reward.reward_hacking import FADE, WINDOW, RewardHackingMonitor
from embodied_rl.judge.reward.run_scoring import describe_reward
from embodied_rl.judge.reward.score_table import RolloutScores, Scores
from embodied_rl.judge.reward.scoring_writer import MODES
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.schema import RewardNode
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

NODE = RewardNode(name="told", mode="rises", weight=2.0)
DISCOUNT = Discount(1.0)
NAN = float("nan")
ACTOR = RowwiseFakeActor(FakeSimulator(1).spec)


def make_rollout(decision: list[int], cut: tuple[int, ...] = (), over: tuple[int, ...] = ()) -> Rollout:
    """One environment; decisions `cut` and `over` truncate and terminate its episodes."""
    made = Rollout.allocate(ACTOR, len(decision), 1)
    made.clear()
    made.decision[:, 0] = torch.tensor(decision)
    made.valid[:], made.steps[:] = True, 1
    for row in cut:
        made.truncated[row] = True
    for row in over:
        made.terminated[row] = True
    return made


def tell(before: list[float], last: float = NAN, final: dict[int, float] | None = None) -> RolloutScores:
    def columns(value: np.ndarray) -> Scores:
        return Scores(value, np.full(value.shape, NAN), np.ones(value.shape, bool))

    finals = np.full((len(before), 1), NAN)
    for row, value in (final or {}).items():
        finals[row] = value
    return RolloutScores(columns(np.array(before)[:, None]), columns(finals), columns(np.array([last])))


def paid(rollout: Rollout, scores: RolloutScores, node: RewardNode = NODE, limit_ends: bool = True) -> list[float]:
    MODES[node.mode](ModeOptions(node, 1, DISCOUNT, limit_ends)).settle(rollout, scores)
    return (rollout.bonus + rollout.shaping)[:, 0].tolist()


def test_each_rise_is_paid_and_no_fall_is_charged() -> None:
    """A loop of the score earns as often as it is run; by a potential it earns nothing."""
    loop = [0.2, 0.6, 0.2, 0.6, 0.2]
    assert paid(make_rollout([0, 1, 2, 3, 4]), tell(loop, 0.2)) == pytest.approx([0.8, 0, 0.8, 0, 0])
    shaped = paid(make_rollout([0, 1, 2, 3, 4]), tell(loop, 0.2), replace(NODE, mode="late"))
    assert shaped == pytest.approx([0.8, -0.8, 0.8, -0.8, 0]) and sum(shaped) == pytest.approx(0)


def test_it_is_a_bonus_beside_the_simulator_s_reward() -> None:
    rollout = make_rollout([0, 1])
    rollout.reward[1, 0, 0] = 1.0
    paid(rollout, tell([0.1, 0.4], 0.5))
    assert not rollout.shaping.any() and not rollout.ignore_env_reward.any()
    assert compose_reward(rollout, DISCOUNT)[:, 0].tolist() == pytest.approx([0.6, 1.2])


def test_a_score_that_is_missing_is_held() -> None:
    assert paid(make_rollout([0, 1, 2]), tell([0.1, NAN, 0.5], 0.5)) == pytest.approx([0, 0.8, 0])


@pytest.mark.parametrize(("limit_ends", "expected"), [(True, 0.0), (False, 1.4)])
def test_an_end_is_paid_by_the_final_observation_of_a_time_limit_alone(limit_ends: bool, expected: float) -> None:
    """The next row is of another episode, and after a termination nobody is asked."""
    rollout = make_rollout([0, 0, 1], cut=(0,), over=(2,))
    found = paid(rollout, tell([0.1, 0.0, 0.2], 0.9, final={0: 0.8}), limit_ends=limit_ends)
    assert found == pytest.approx([expected, 0.4, 0])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_rollouts_may_be_cut_anywhere(cut: int) -> None:
    """Also across a resume: the score before the cut is remembered."""
    said, found, state = [0.1, 0.5, 0.3, 0.7, 0.6, 0.9, 1.0], [], None
    for first in range(0, 6, cut):
        mode = MODES[NODE.mode](ModeOptions(NODE, 1, DISCOUNT, limit_ends=True))
        if state is not None:
            mode.load(state)
        end = min(first + cut, 6)
        rollout = make_rollout(list(range(first, end)))
        mode.settle(rollout, tell(said[first:end], said[end]))
        state, found = mode.state(), found + rollout.bonus[:, 0].tolist()
    assert found == pytest.approx([0.8, 0, 0.8, 0, 0.6, 0.2])


def test_what_is_not_valid_is_not_paid() -> None:
    rollout = make_rollout([0, 1])
    rollout.valid[0] = False
    assert paid(rollout, tell([0.1, 0.5], 0.9)) == pytest.approx([0, 0.8])


def test_the_guard_fades_it() -> None:
    guard, rollout = RewardHackingMonitor(NODE, speaks=False), make_rollout([0, 1])
    for step in range(2 * WINDOW + FADE):
        guard.note({"reward/critic_return": 0.3 + 0.03 * step, "rollout/success": 0.6 - 0.02 * step})
    assert guard.weight == 0
    paid(rollout, tell([0.1, 0.5], 0.9))
    guard.fade(rollout)
    assert not rollout.bonus.any()


def test_the_run_says_that_it_changes_what_is_optimal() -> None:
    said = " ".join(describe_reward(replace(NODE, name="scripted")))
    assert "mode=rises" in said and "changes what is optimal" in said and "reward.mode=late" in said
    assert not describe_reward(replace(NODE, name="scripted", mode="late"))
