"""Probes: high scores asked about again under other words, late, deterministic, and never waited for."""

from collections.abc import Sequence
from typing import Any

import pytest

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerTraits
from embodied_rl.judge.requests.service import ScoreService
from embodied_rl.judge.reward.mismatch_probes import ENOUGH, MismatchProbes
from tests.support.scoring import DEADLINE, ToldScorer, request, serving

WORDS = ("go left", "go right")


def answer_all(service: ScoreService, count: int = 40, code: int = 200) -> list[Any]:
    requests = [request(code, decision=number, words=WORDS[number % 2]) for number in range(count)]
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
    return Score(0.9 if asked.instruction == WORDS[asked.decision % 2] else 0.1)


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
    assert all(words != WORDS[decision % 2] for decision, words in chosen())


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
