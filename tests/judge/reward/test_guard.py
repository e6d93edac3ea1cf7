"""The guard: it fades a scorer that is fooled, each episode's shaping still telescopes, and honest ones stay."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.config.schema import DistillNode, RewardNode
from embodied_rl.judge.reward.guard import FADE, LEAST_RISE, WINDOW, Guard, _fit_slope, diverges
from embodied_rl.judge.reward.ledger import PotentialLedger, ScoredRollout
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

NODE = RewardNode(name="told")
GAMMA = 0.9
ACTOR = RowwiseFakeActor(FakeSimulator(1).spec)


def watch(guard: Guard, critic: list[float], true: list[float]) -> list[dict[str, float]]:
    pairs = zip(critic, true, strict=True)
    return [guard.note({"reward/critic_return": said, "rollout/success": was}) for said, was in pairs]


HACKED = [0.4 + 0.03 * i for i in range(14)], [0.6 - 0.02 * i for i in range(14)]


def test_a_scorer_that_is_fooled_fades_within_some_iterations_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five falls in a row are enough, and no fewer; what was faded stays faded."""
    found = watch(Guard(NODE, speaks=True), *HACKED)
    fired = [figures["reward/guard"] for figures in found]
    assert fired == [0.0] * (WINDOW - 1) + [1.0] * (14 - WINDOW + 1)
    weights = [figures["reward/weight"] for figures in found]
    assert weights == pytest.approx([1.0] * WINDOW + [0.8, 0.6, 0.4, 0.2] + [0.0] * (14 - WINDOW - FADE + 1))
    assert caplog.text.count("is being fooled") == 1
    assert "from 0.40 to 0.55" in caplog.text and "from 60.0% to 50.0%" in caplog.text


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_scorer_is_left_alone(seed: int) -> None:
    """Success and opinion rise, stand still or fall together, with the noise of 200 episodes an iteration."""
    random = np.random.default_rng(seed)
    courses = (np.linspace(0.4, 0.9, 100), np.full(100, 0.5), np.linspace(0.9, 0.4, 100))
    for course in courses:
        true = random.binomial(200, course) / 200
        critic = 0.8 * true + 0.1 + random.normal(0, 0.01, 100)
        assert not any(figures["reward/guard"] for figures in watch(Guard(NODE, True), [*critic], [*true]))


@pytest.mark.parametrize("critic, true", [(HACKED[0], [0.5] * 14), ([0.5] * 14, HACKED[1]), (HACKED[1], HACKED[0])])
def test_one_of_both_is_not_enough(critic: list[float], true: list[float]) -> None:
    assert not any(figures["reward/guard"] for figures in watch(Guard(NODE, True), critic, true))


def test_a_fall_that_may_be_noise_is_not_enough() -> None:
    """The fitted line falls by 8.6 points, and the points lie further from it."""
    noisy = [0.6, 0.4] * (WINDOW // 2)
    assert not diverges(np.array(HACKED[0][:WINDOW]), np.array(noisy))
    assert diverges(np.array(HACKED[0][:WINDOW]), np.linspace(0.6, 0.514, WINDOW))


@pytest.mark.parametrize("node", [replace(NODE, guard=False), replace(NODE, mode="audit"), RewardNode()])
def test_it_rests_where_it_is_off_or_nothing_is_shaped(node: RewardNode) -> None:
    guard = Guard(node, speaks=True)
    assert watch(guard, *HACKED) == [{}] * 14 and guard.state() == {} and guard.weight == 1.0


def test_in_terminal_mode_it_warns_and_fades_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = watch(Guard(replace(NODE, mode="terminal"), speaks=True), *HACKED)
    assert found[-1] == {"reward/weight": 1.0, "reward/guard": 1.0}
    assert caplog.text.count("no other reward") == 1


def test_only_one_rank_speaks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert watch(Guard(NODE, speaks=False), *HACKED) == watch(Guard(NODE, speaks=False), *HACKED)
    assert not caplog.records


def test_iterations_without_an_ended_episode_are_left_out() -> None:
    guard = Guard(NODE, speaks=False)
    for said, was in zip(*HACKED, strict=True):
        guard.note({"reward/critic_return": said, "rollout/success": was})
        guard.note({"reward/asked": 3.0})
    assert guard.weight == 0.0


@pytest.mark.parametrize("halted", [3, WINDOW, WINDOW + 2])
def test_it_goes_on_after_a_resume(halted: int) -> None:
    straight = watch(Guard(NODE, speaks=False), *HACKED)
    first, second = Guard(NODE, speaks=False), Guard(NODE, speaks=False)
    found = watch(first, *(part[:halted] for part in HACKED))
    second.load(first.state())
    assert found + watch(second, *(part[halted:] for part in HACKED)) == straight


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_the_shaping_of_an_episode_telescopes_while_it_fades(cut: int) -> None:
    """Σ γ^t F_t = γ^n w Φ(end) - Φ(start), with each potential weighted once: as it was when it was committed."""
    scores = np.random.default_rng(0).uniform(0, 1, 7)
    ledger, guard, total, applied = PotentialLedger(1), Guard(NODE, speaks=False), 0.0, [1.0]
    for first in range(0, 6, cut):
        rows = slice(first, first + cut)
        rollout = make_rollout(ledger, scores, rows)
        guard.fade(rollout)
        applied.append(guard.weight)
        total += float((GAMMA ** np.arange(*rows.indices(6)) * rollout.shaping[:, 0].numpy()).sum())
        guard.weight = round(guard.weight - 0.2, 6)
    assert total == pytest.approx(GAMMA**6 * applied[-1] * scores[6] - scores[0], abs=1e-6)
    assert cut == 6 or applied[-1] < 1


def make_rollout(ledger: PotentialLedger, scores: np.ndarray, rows: slice) -> Rollout:
    """A part of one long episode, settled by the ledger with weight 1."""
    size = rows.stop - rows.start
    no, some = np.zeros((size, 1), bool), np.full((size, 1), np.nan)
    numbers = np.arange(rows.start, rows.stop)[:, None]
    last, discount = scores[rows.stop : rows.stop + 1], np.full((size, 1), GAMMA)
    settled = ledger.settle(ScoredRollout(scores[rows][:, None], last, some, numbers, discount, no, no, ~no))
    made = Rollout.allocate(ACTOR, size, 1)
    made.decision[:], made.valid[:] = torch.from_numpy(numbers), True
    made.shaping[:], made.potential[:] = torch.from_numpy(settled.shaping), torch.from_numpy(settled.potential)
    return made


def test_an_episode_that_begins_takes_back_nothing() -> None:
    """A row of another episode, or one that was lost, has no committed potential."""
    made = Rollout.allocate(ACTOR, 1, 3)
    made.decision[:], made.valid[:] = torch.tensor([[2, 0, 2]]), torch.tensor([[True, True, False]])
    made.shaping[:], made.potential[:] = 1.0, 0.5
    guard = Guard(NODE, speaks=False)
    guard.weight = 0.8
    guard.fade(made)
    assert made.shaping[0].tolist() == pytest.approx([0.7, 0.8, 0.8])


def test_the_bonus_of_a_head_fades_as_well() -> None:
    guard = Guard(replace(NODE, mode="distill", distill=DistillNode(bonus=True)), speaks=False)
    watch(guard, *(each[: WINDOW + 1] for each in HACKED))
    rollout = Rollout.allocate(ACTOR, 2, 1)
    rollout.bonus.fill_(0.5)
    guard.fade(rollout)
    assert guard.weight < 1 and rollout.bonus.flatten().tolist() == pytest.approx([0.5 * guard.weight] * 2)
    other = Guard(replace(NODE, mode="terminal"), speaks=False)
    watch(other, *HACKED)
    other.fade(rollout)
    assert rollout.bonus.flatten().tolist() == pytest.approx([0.5 * guard.weight] * 2), "in terminal it is all there is"


def test_the_slope_and_its_error_are_those_of_least_squares() -> None:
    values = np.random.default_rng(0).normal(size=WINDOW)
    fitted, covariance = np.polyfit(np.arange(WINDOW), values, 1, cov=True)
    assert _fit_slope(values) == pytest.approx((fitted[0], np.sqrt(covariance[0, 0])))


@pytest.mark.parametrize(("share", "expected"), [(0.95, False), (1.05, True)])
def test_the_rise_counts_from_the_first_iteration_of_the_window_to_the_last(share: float, expected: bool) -> None:
    critic, true = np.linspace(0, share * LEAST_RISE, WINDOW), np.linspace(0.9, 0.1, WINDOW)
    assert diverges(critic, true) == expected
