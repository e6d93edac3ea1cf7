"""What is optimal on the tabletop under a critic that can be fooled: to swing the arm pays more than to do the task
where rises are rewards, and nothing where the same critic shapes by a potential."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.scorer import ScoreRequest
from embodied_rl.interfaces.sim import Array, Episode, Observation
from embodied_rl.judge.reward.score_table import RolloutScores, Scores
from embodied_rl.judge.reward.scoring_writer import MODES
from embodied_rl.judge.scorers.scripted import ScriptedConfig, ScriptedScorer
from embodied_rl.mathematics.objectives.advantages import make_discounts
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.schema import RewardNode
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.scoring import score

pytestmark = pytest.mark.thorough

ROWS, DECISIONS, STEPS, WEIGHT = 14, 10, 5, 3.0
DISCOUNT = Discount(0.994)
CONFIG = TabletopConfig(progress=True)


def judge(scorer: ScriptedScorer, seen: Observation) -> Array:
    assert seen.progress is not None
    asked = [
        ScoreRequest(row, 0, "absolute", "", {"front": image[None]}, {"front": image}, seen.state[row], progress=told)
        for row, (image, told) in enumerate(zip(seen.images["front"], seen.progress.tolist(), strict=True))
    ]
    return np.array([each.value for each in score(scorer, *asked)])


def act(who: str) -> tuple[Rollout, RolloutScores]:
    """An episode in each row, whose time limit is its end, by the careful operator or an arm that swings."""
    scorer = ScriptedScorer(ScriptedConfig(judge="hackable"), Tabletop.spec_of(CONFIG))
    simulator = Tabletop(CONFIG, ROWS)
    made = Rollout.allocate(RowwiseFakeActor(FakeSimulator(1).spec, executed=STEPS), DECISIONS, ROWS)
    made.clear()
    seen, operate = simulator.reset([Episode(row, row % 7, 5000 + row) for row in range(ROWS)]), simulator.expert()
    said = np.zeros((DECISIONS, ROWS))
    for t in range(DECISIONS):
        said[t], made.decision[t] = judge(scorer, seen), t
        made.valid[t] = torch.tensor([episode is not None for episode in simulator._episode])
        for j in range(STEPS):
            side = 0.03 if t % 2 else -0.03
            chunk = operate() if who == "careful" else np.tile(np.array([side, 0, -side, 1], np.float32), (ROWS, 1))
            result = simulator.step(chunk[:, None], [None] * ROWS)
            made.reward[t, :, j] = torch.from_numpy(result.reward[:, 0])
            made.steps[t] += torch.from_numpy(result.steps)
            made.terminated[t] |= torch.from_numpy(result.terminated | result.truncated)
            seen = result.observation
    return made, RolloutScores(Scores.of(said), Scores.of(np.full(said.shape, np.nan)), Scores.of(said[-1]))


def earn(mode: str, rollout: Rollout, scores: RolloutScores) -> float:
    """The mean discounted return of the episodes from their beginning, their Φ(start) added in shaping."""
    rollout = replace(rollout, shaping=torch.zeros_like(rollout.shaping), bonus=torch.zeros_like(rollout.bonus))
    node = RewardNode(name="told", mode=mode, weight=WEIGHT)  # type: ignore[arg-type]
    MODES[node.mode](node, ROWS, DISCOUNT, limit_ends=True).settle(rollout, scores)
    reward = torch.where(rollout.valid, compose_reward(rollout, DISCOUNT), 0.0)
    after = make_discounts(rollout.steps, DISCOUNT.gamma, DISCOUNT.per)
    before = torch.cat([torch.ones_like(after[:1]), after[:-1]]).cumprod(0)
    start = WEIGHT * scores.rows.value[0].mean() if mode == "late" else 0.0
    return float((before * reward).sum(0).mean()) + start


def test_rises_pay_more_for_swinging_than_for_the_task_and_a_potential_pays_nothing() -> None:
    careful, swing = act("careful"), act("swing")
    assert float(careful[0].reward.sum()) == ROWS and not swing[0].reward.any()
    assert earn("rises", *swing) > earn("rises", *careful) + 0.5
    assert earn("late", *swing) == pytest.approx(0, abs=1e-4)
    done = earn("audit", *careful)
    assert done > 0.8 and earn("late", *careful) == pytest.approx(done, abs=1e-4)
