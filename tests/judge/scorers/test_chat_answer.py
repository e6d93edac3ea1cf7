"""The client reads the answers and token counts of each server, and names what is wrong where it cannot."""

import json
import math
from typing import Any

import httpx2
import pytest

from embodied_rl.interfaces.scorer import Score, ScorerError
from embodied_rl.judge.scorers.chat_answer import add_usage, read_usage
from tests.judge.scorers.golden_answers import (
    DIGITS,
    REFUSALS,
    USAGE,
    make_ray,
    make_sglang,
    make_transformers,
    make_vllm,
)
from tests.judge.scorers.test_vlm import ask, completion, saying

TELLING = {"vllm": make_vllm, "sglang": make_sglang, "ray": make_ray}


def read(answer: dict[str, Any], prompt: str = "done_yesno") -> Score:
    return ask(saying(json=answer), prompt=prompt)


@pytest.mark.parametrize("server", TELLING)
def test_probabilities_over_all_ways_to_write_a_label(server: str) -> None:
    score = read(TELLING[server]())
    assert score.valid and score.value == pytest.approx(0.8 / 0.9)
    assert read(TELLING[server](content=None)).value == score.value, "text may be missing"
    assert read(TELLING[server](DIGITS), "progress_digit").value == pytest.approx((7 * 0.75 + 8 * 0.25) / 9, abs=1e-6)


def test_a_server_without_probabilities_is_read_by_text() -> None:
    assert read(make_transformers("Yes.")).value == 1.0
    assert read(make_transformers("progress: 40%"), "progress_percent").value == pytest.approx(0.4)


@pytest.mark.parametrize(
    "answer",
    [
        make_vllm(content=None, reasoning="First the cube"), make_sglang(content=None, reasoning_content="First"),
        make_transformers(None, reasoning_content="First the cube"), make_transformers("<think>progress: 90%"),
    ],
)  # fmt: skip
def test_thoughts_without_an_answer_are_named(answer: dict[str, Any]) -> None:
    score = read(answer, "progress_percent")
    assert score.reason == "unreadable" and "reasoning off" in score.detail and math.isnan(score.value)


def test_an_answer_that_was_cut_is_named() -> None:
    cut = make_vllm(content="The robot has reached the cube and now")
    assert "cut at the prompt's max_tokens" in read(cut, "progress_percent").detail
    assert "cut" not in read(make_transformers("What?"), "progress_percent").detail


@pytest.mark.parametrize("answer", [make_transformers(None), make_sglang(content=None)])
def test_nothing_at_all_is_no_score(answer: dict[str, Any]) -> None:
    score = read(answer, "progress_percent")
    assert score.reason == "unreadable" and score.detail.startswith("nothing")


def test_numbers_of_tokens_are_named() -> None:
    score = read(make_vllm({"token_id:9891": 0.8, "token_id:2152": 0.2}))
    assert score.reason == "unreadable" and "--return-tokens-as-token-ids" in score.detail


@pytest.mark.parametrize("server", REFUSALS)
def test_refusals_say_what_the_server_said(server: str) -> None:
    status, body = REFUSALS[server]
    with pytest.raises(ScorerError) as raised:
        ask(saying(status, json=body), prompt="progress_percent")
    assert raised.value.permanent and str(body.get("error", body).get("message", body.get("detail")))[:20] in str(
        raised.value
    )


@pytest.mark.parametrize("server", TELLING)
def test_how_likely_true_is(server: str) -> None:
    """TOPReward: the log of the probability on a fixed scale, whatever else is likely."""
    told = {"False": 0.9, "True": 0.06, " true": 0.01}
    assert read(TELLING[server](told), "topreward").value == pytest.approx(1 + math.log(0.07) / 12)
    assert read(TELLING[server]({"True": math.exp(-30)}), "topreward").value == 0.0
    assert read(TELLING[server]({"False": 0.9}), "topreward").reason == "unsure"


def test_likelihood_cannot_be_read_from_text() -> None:
    assert "log-probabilities" in read(make_transformers("True"), "topreward").detail


def test_likelihood_is_not_asked_for_in_text() -> None:
    def refuse(sent: httpx2.Request) -> httpx2.Response:
        if b"logprobs" in sent.content:
            return httpx2.Response(400, json={"error": {"message": "logprobs are not supported"}})
        return httpx2.Response(200, json=make_transformers("True"))

    with pytest.raises(ScorerError, match="logprobs"):
        ask(refuse, prompt="topreward")


def test_half_a_letter_is_no_answer() -> None:
    """JSON may hold half of a surrogate pair, which UTF-8 does not."""
    score = ask(saying(content=json.dumps(make_transformers("\ud800")).encode()))
    assert score.reason == "unreadable" and "'?'" in score.detail


COUNTED = (USAGE["prompt_tokens"], USAGE["completion_tokens"])


@pytest.mark.parametrize("make", [make_vllm, make_sglang, make_ray])
def test_servers_that_count(make: Any) -> None:
    assert read_usage(make()) == COUNTED


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], {"prompt_tokens": 7}, {"prompt_tokens": 7, "completion_tokens": None}, {"total_tokens": 9},
     {"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": True, "completion_tokens": 1},
     {"prompt_tokens": "7", "completion_tokens": 1}, {"prompt_tokens": 10**400, "completion_tokens": 1}],
)  # fmt: skip
def test_what_is_no_count_is_unknown(usage: Any) -> None:
    assert read_usage({"usage": usage}) is None


def test_a_server_that_does_not_count_is_unknown() -> None:
    assert read_usage(make_transformers()) is None
    assert add_usage([(1, 2), (3, 4)]) == (4, 6) and add_usage([(1, 2), None]) is None


@pytest.mark.parametrize("done", [None, "done_yesno"])
def test_a_score_tells_the_tokens_of_all_its_requests(done: str | None) -> None:
    def serve(sent: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, json=completion("7", **{"7": 0.5, "8": 0.5, "yes": 0.3, "no": 0.2}) | {"usage": USAGE}
        )

    score = ask(serve, done_prompt=done, least_mass=0.1)
    times = 2 if done else 1
    assert score.tokens == (times * COUNTED[0], times * COUNTED[1])


def test_an_answer_that_cannot_be_read_was_paid_for_all_the_same() -> None:
    score = ask(lambda sent: httpx2.Response(200, json=completion("perhaps") | {"usage": USAGE}))
    assert not score.valid and score.tokens == COUNTED
