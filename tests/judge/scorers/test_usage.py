"""The tokens of an answer, as servers count them, or do not."""

from typing import Any

import httpx2
import pytest

from embodied_rl.judge.scorers.chat_answer import add_usage, read_usage
from tests.judge.scorers.golden_answers import USAGE, make_ray, make_sglang, make_transformers, make_vllm
from tests.judge.scorers.test_vlm import ask, completion

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
