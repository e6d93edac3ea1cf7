"""The guard fades a scorer that is fooled, and honest ones stay; probes ask again with other instructions."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerTraits
from embodied_rl.judge.requests.service import ScoreService
from embodied_rl.judge.reward.mismatch_probes import ENOUGH, MismatchProbes
from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout
from embodied_rl.judge.reward.reward_hacking import FADE, WINDOW, RewardHackingMonitor, find_hacking
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import DistillNode, RewardNode
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.scoring import DEADLINE, ToldScorer, request, serving

NODE = RewardNode(name="told")
GAMMA = 0.9
ACTOR = RowwiseFakeActor(FakeSimulator(1).spec)


def watch(guard: RewardHackingMonitor, critic: list[float], true: list[float]) -> list[dict[str, float]]:
    pairs = zip(critic, true, strict=True)
    return [guard.note({"reward/critic_return": said, "rollout/success": was}) for said, was in pairs]


LONG = 4 * WINDOW
HACKED = [0.2 + 0.03 * i for i in range(LONG)], [0.6 - 0.02 * i for i in range(LONG)]
FIRES = 2 * WINDOW
"""From so many iterations on: the first windows are compared that do not overlap."""


def test_a_scorer_that_is_fooled_fades_within_some_iterations_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was faded stays faded."""
    found = watch(RewardHackingMonitor(NODE, speaks=True), *HACKED)
    fired = [figures["reward/guard"] for figures in found]
    assert fired == [0.0] * (FIRES - 1) + [1.0] * (LONG - FIRES + 1)
    weights = [figures["reward/weight"] for figures in found]
    assert weights == [1.0] * FIRES + [0.8, 0.6, 0.4, 0.2] + [0.0] * (LONG - FIRES - FADE + 1)
    assert caplog.text.count("is being fooled") == 1
    assert "from 0.28 to 0.4" in caplog.text and "from 55.0% to 43.0%" in caplog.text


Course = tuple[np.ndarray, np.ndarray]
STEPS = np.arange(200)


def draw_noisy(random: np.random.Generator, opinion: np.ndarray, success: np.ndarray) -> Course:
    """The figures of 300 episodes an iteration."""
    return opinion + random.normal(0, 0.02, len(opinion)), random.binomial(300, success) / 300


def find_first(opinion: np.ndarray, success: np.ndarray) -> int | None:
    fired = [each["reward/guard"] for each in watch(RewardHackingMonitor(NODE, speaks=False), [*opinion], [*success])]
    return fired.index(1.0) if 1.0 in fired else None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "success",
    [np.linspace(0.4, 0.9, 200), np.full(200, 0.5), np.linspace(0.9, 0.4, 200), np.full(200, 0.01),
     np.interp(STEPS, [0, 100, 200], [0.2, 0.8, 0.3])],
    ids=["rises", "stays", "falls", "rare", "rises and falls"],
)  # fmt: skip
def test_an_honest_scorer_is_left_alone(success: np.ndarray, seed: int) -> None:
    """Its opinion follows success, in full or by a third; or it rises while success stays rare."""
    random = np.random.default_rng(seed)
    for share in (0.8, 0.3):
        _, true = draw_noisy(random, success, success)
        assert find_first(share * true + 0.1 + random.normal(0, 0.01, 200), true) is None
    if success.max() < 0.1:
        assert find_first(*draw_noisy(random, np.linspace(0.2, 0.8, 200), success)) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("opinion", "success"),
    [
        (np.interp(STEPS, [40, 55], [0.4, 0.9]), np.interp(STEPS, [40, 55], [0.6, 0.2])),
        (np.interp(STEPS, [20, 180], [0.4, 0.9]), np.interp(STEPS, [20, 180], [0.6, 0.2])),
        (np.interp(STEPS, [0, 60], [0.4, 0.95]), np.interp(STEPS, [0, 60, 120], [0.1, 0.7, 0.2])),
        (np.interp(STEPS, [40, 80], [0.3, 0.8]), np.interp(STEPS, [40, 80], [0.05, 0.003])),
    ],
    ids=["fast", "slow", "saturating", "rare"],
)
def test_a_fooled_scorer_is_found(opinion: np.ndarray, success: np.ndarray, seed: int) -> None:
    assert find_first(*draw_noisy(np.random.default_rng(seed), opinion, success)) is not None


FLAT = [0.5] * LONG


@pytest.mark.parametrize("critic, true", [(HACKED[0], FLAT), (HACKED[1], HACKED[0]), (HACKED[1], HACKED[1])])
def test_one_of_both_is_not_enough(critic: list[float], true: list[float]) -> None:
    assert not any(figures["reward/guard"] for figures in watch(RewardHackingMonitor(NODE, True), critic, true))


def test_a_fall_or_a_rise_that_may_be_noise_is_not_enough() -> None:
    """The means change by the same, and single iterations by far more; the fall is too small to count alone."""
    opinion, success = np.linspace(0.4, 0.6, 2 * WINDOW), np.linspace(0.6, 0.45, 2 * WINDOW)
    noise, gap = 0.1 * (-1.0) ** np.arange(2 * WINDOW), np.full(2 * WINDOW, np.nan)
    assert find_hacking(opinion, success, gap)
    assert not find_hacking(opinion, success + noise, gap)
    assert not find_hacking(opinion + 2 * noise, success, gap)
    burst, rises = np.zeros(200), np.linspace(0.2, 0.8, 200)
    burst[100:106:2] = 0.2
    assert not find_hacking(rises, burst, np.full(200, np.nan)), "noise counts where it is, not spread over the run"


@pytest.mark.parametrize("end, lost_half", [(0.012, True), (0.017, False)])
def test_of_a_rare_success_half_must_be_lost(end: float, lost_half: bool) -> None:
    opinion, success = np.linspace(0.2, 0.8, LONG), np.interp(np.arange(LONG), [WINDOW, 3 * WINDOW], [0.03, end])
    assert (find_hacking(opinion, success, np.full(LONG, np.nan)) is not None) == lost_half


def test_scores_that_hold_under_any_words_are_evidence_where_success_is_never_seen() -> None:
    rises, never, lost = np.linspace(0.4, 0.6, 2 * WINDOW), np.zeros(2 * WINDOW), np.linspace(0.8, 0.0, 2 * WINDOW)
    assert "under the words of another task" in (find_hacking(rises, never, lost) or "")
    assert find_hacking(rises, never + 0.5, lost), "nor where it stays"
    assert not find_hacking(rises, never, lost + 0.2), "they still tell tasks apart"
    assert not find_hacking(rises, rises, lost), "success rises with the opinion"
    assert not find_hacking(rises[::-1], never, lost), "the opinion falls, too"
    some = np.where(np.arange(2 * WINDOW) % 2 == 0, lost, np.nan)
    assert not find_hacking(rises, never, some), "too few iterations were probed"


@pytest.mark.parametrize("node", [replace(NODE, guard=False), replace(NODE, mode="audit"), RewardNode()])
def test_it_rests_where_it_is_off_or_nothing_is_shaped(node: RewardNode) -> None:
    guard = RewardHackingMonitor(node, speaks=True)
    assert watch(guard, *HACKED) == [{}] * LONG and guard.state() == {} and guard.weight == 1.0


def test_in_terminal_mode_it_warns_and_fades_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = watch(RewardHackingMonitor(replace(NODE, mode="terminal"), speaks=True), *HACKED)
    assert found[-1] == {"reward/weight": 1.0, "reward/guard": 1.0}
    assert caplog.text.count("no other reward") == 1


def test_only_one_rank_speaks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert watch(RewardHackingMonitor(NODE, speaks=False), *HACKED) == watch(
            RewardHackingMonitor(NODE, speaks=False), *HACKED
        )
    assert not caplog.records


def test_iterations_without_an_ended_episode_are_left_out() -> None:
    guard = RewardHackingMonitor(NODE, speaks=False)
    for said, was in zip(*HACKED, strict=True):
        guard.note({"reward/critic_return": said, "rollout/success": was})
        guard.note({"reward/asked": 3.0, "rollout/success": was})
    assert guard.weight == 0.0


@pytest.mark.parametrize("halted", [0, 3, FIRES, FIRES + 2])
def test_it_goes_on_after_a_resume(halted: int) -> None:
    straight = watch(RewardHackingMonitor(NODE, speaks=False), *HACKED)
    first, second = RewardHackingMonitor(NODE, speaks=False), RewardHackingMonitor(NODE, speaks=False)
    found = watch(first, *(part[:halted] for part in HACKED))
    second.load(first.state())
    assert found + watch(second, *(part[halted:] for part in HACKED)) == straight
    second.load({})
    off = RewardHackingMonitor(replace(NODE, guard=False), speaks=False)
    off.load(second.state())
    assert (second.weight, off.weight) == (0.0, 1.0), "a run without a guard keeps its scorer"


def test_it_goes_on_from_a_checkpoint_of_six_iterations_filled_up_with_nan() -> None:
    """As earlier versions wrote them, without probes."""
    seen = torch.full((2, WINDOW), float("nan"), dtype=torch.float64)
    seen[:, -2:] = torch.tensor([part[:2] for part in HACKED], dtype=torch.float64)
    guard = RewardHackingMonitor(NODE, speaks=False)
    guard.load({"scalars": torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), "seen": seen})
    found = watch(guard, *(part[2:] for part in HACKED))
    assert found == watch(RewardHackingMonitor(NODE, speaks=False), *HACKED)[2:]


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_the_shaping_of_an_episode_telescopes_while_it_fades(cut: int) -> None:
    """Σ γ^t F_t = γ^n w Φ(end) - Φ(start), with each potential weighted once: as it was when it was committed."""
    scores = np.random.default_rng(0).uniform(0, 1, 7)
    ledger, guard, total, applied = PotentialLedger(1), RewardHackingMonitor(NODE, speaks=False), 0.0, [1.0]
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
    guard = RewardHackingMonitor(NODE, speaks=False)
    guard.weight = 0.8
    guard.fade(made)
    assert made.shaping[0].tolist() == pytest.approx([0.7, 0.8, 0.8])


def test_the_bonus_of_a_head_fades_as_well() -> None:
    guard = RewardHackingMonitor(replace(NODE, mode="distill", distill=DistillNode(bonus=True)), speaks=False)
    watch(guard, *(each[: FIRES + 1] for each in HACKED))
    rollout = Rollout.allocate(ACTOR, 2, 1)
    rollout.bonus.fill_(0.5)
    guard.fade(rollout)
    assert guard.weight < 1 and rollout.bonus.flatten().tolist() == pytest.approx([0.5 * guard.weight] * 2)
    other = RewardHackingMonitor(replace(NODE, mode="terminal"), speaks=False)
    watch(other, *HACKED)
    other.fade(rollout)
    assert rollout.bonus.flatten().tolist() == pytest.approx([0.5 * guard.weight] * 2), "in terminal it is all there is"


INSTRUCTIONS = ("go left", "go right")


def answer_all(service: ScoreService, count: int = 40, code: int = 200) -> list[Any]:
    requests = [request(code, decision=number, words=INSTRUCTIONS[number % 2]) for number in range(count)]
    tickets = service.submit(requests, [0] * count)
    service.wait(tickets, DEADLINE)
    return tickets


def probe(scorer: ToldScorer, share: float = 1.0, rounds: int = 1, code: int = 200) -> list[dict[str, float]]:
    found = []
    with serving(scorer) as service:
        probes = MismatchProbes(service, share, scorer.traits)
        for _ in range(rounds):
            probes.ask(answer_all(service, code=code))
            service.wait(probes.asked, DEADLINE)
            found.append(dict(probes.count(probes.asked)))
    return found


def listening(asked: ScoreRequest) -> Score:
    """Knows that even decisions go left."""
    return Score(0.9 if asked.instruction == INSTRUCTIONS[asked.decision % 2] else 0.1)


def test_the_gap_is_that_between_right_and_wrong_words() -> None:
    (found,) = probe(ToldScorer(listening, cacheable=False))
    assert found["probed"] == 40 and found["gap"] == pytest.approx(40 * 0.8)


def test_a_scorer_that_does_not_listen_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    found = probe(ToldScorer(lambda asked: Score(0.9), cacheable=False), rounds=3)
    assert all(each["gap"] == 0 for each in found)
    assert caplog.text.count("hardly listens") == 1 and f"{ENOUGH} probes" in caplog.text
    caplog.clear()
    probe(ToldScorer(listening, cacheable=False), rounds=3)
    assert not caplog.text


def test_only_the_share_is_asked_and_always_the_same() -> None:
    def chosen() -> Sequence[tuple[int, str]]:
        scorer = ToldScorer(listening, cacheable=False)
        probe(scorer, share=0.1)
        asked = [each for call in scorer.calls for each in call]
        return sorted((each.decision, each.instruction) for each in asked[40:])

    assert len(chosen()) == 4 and chosen() == chosen()
    assert all(words != INSTRUCTIONS[decision % 2] for decision, words in chosen())


def test_low_scores_and_scorers_that_know_no_other_words_are_not_asked() -> None:
    assert probe(ToldScorer(lambda asked: Score(0.3), cacheable=False))[0]["probed"] == 0
    scorer = ToldScorer(listening, cacheable=False)
    scorer.traits = ScorerTraits(("absolute",), "oracle", cacheable=False, reads_instruction=False)
    assert probe(scorer)[0]["probed"] == 0 and sum(map(len, scorer.calls)) == 40


def test_where_all_have_the_same_task_there_are_no_other_words() -> None:
    scorer = ToldScorer(listening, cacheable=False)
    with serving(scorer) as service:
        tickets = service.submit([request(200, decision=2 * number) for number in range(8)], [0] * 8)
        service.wait(tickets, DEADLINE)
        probes = MismatchProbes(service, 1.0, scorer.traits)
        probes.ask(tickets)
        assert probes.asked == []
