"""The official client of the OpenAI API against the server."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.serving import FakeCritic, Running, ask_critic, make_picture, running

if TYPE_CHECKING:
    import openai


@pytest.fixture
def client(critic: Running) -> Iterator["openai.OpenAI"]:
    import openai

    with openai.OpenAI(base_url=critic.url, api_key="unused", max_retries=0) as made:
        yield made


def raises(kind: str, **matching: Any) -> Any:
    """The context in which an exception of the client is expected."""
    import openai

    return pytest.raises(getattr(openai, kind), **matching)


def ask(client: "openai.OpenAI", **fields: Any) -> Any:
    """The completion for two pictures."""
    return client.chat.completions.create(**ask_critic(make_picture(1), make_picture(2), **fields))


@pytest.mark.thorough
def test_two_pictures_and_log_probabilities(client: "openai.OpenAI") -> None:
    answer = ask(client, logprobs=True, top_logprobs=20, max_tokens=1, temperature=0)
    (choice,) = answer.choices
    (token,) = choice.logprobs.content
    shares = {each.token: math.exp(each.logprob) for each in token.top_logprobs}
    state = np.array([[0.5, 1]], np.float32)
    judged = FakeCritic().judge(
        {"top": make_picture(2)[None]}, {"top": make_picture(1)[None]}, ["pick red cube"], state
    )
    expected = sum(int(digit) / 9 * share for digit, share in shares.items())
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    assert expected == pytest.approx(float(judged.progress[0]), abs=1e-6)
    assert choice.message.content == token.token == max(shares, key=lambda digit: shares[digit])
    assert (answer.model, answer.object, choice.finish_reason) == ("critic", "chat.completion", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 1
    assert bytes(token.bytes).decode() == token.token


def test_log_probabilities_are_told_where_they_are_asked_for(client: "openai.OpenAI") -> None:
    assert ask(client).choices[0].logprobs is None
    (token,) = ask(client, logprobs=True).choices[0].logprobs.content
    assert token.top_logprobs == []
    (token,) = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    told = [each.logprob for each in token.top_logprobs]
    assert len(told) == 3 and told == sorted(told, reverse=True) and told[0] == token.logprob


def test_the_answer_is_one_of_the_choices(client: "openai.OpenAI") -> None:
    """With the model's own probabilities: they are those without the restriction."""
    free = ask(client, logprobs=True, top_logprobs=20).choices[0].logprobs.content[0]
    whole = {each.token: each.logprob for each in free.top_logprobs}
    worst = sorted(whole, key=lambda digit: whole[digit])[:2]
    chosen = ask(client, logprobs=True, top_logprobs=20, extra_body={"structured_outputs": {"choice": worst}}).choices[
        0
    ]
    told = {each.token: each.logprob for each in chosen.logprobs.content[0].top_logprobs}
    assert chosen.message.content == worst[1] and told == {digit: whole[digit] for digit in worst}


def test_models(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == ["critic"]
    assert client.models.retrieve("critic").id == "critic"
    with raises("NotFoundError"):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    "fields, kind, param",
    [
        ({"model": "gpt-9"}, "NotFoundError", "model"),
        ({"n": 2}, "BadRequestError", "n"),
        ({"top_logprobs": 5}, "BadRequestError", "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "BadRequestError", "max_tokens"),
        ({"extra_body": {"guided_choice": ["1"]}}, "BadRequestError", "'guided_choice'"),
        ({"extra_body": {"structured_outputs": {"choice": ["maybe"]}}}, "BadRequestError", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"regex": "."}}}, "BadRequestError", "structured_outputs"),
        ({"words": "fly home"}, "BadRequestError", "messages"),
        ({"state": "0.5 nan"}, "BadRequestError", "messages"),
        ({"state": "0.5 x"}, "BadRequestError", "messages"),
    ],
)  # fmt: skip
def test_errors_are_the_clients_exceptions(client: "openai.OpenAI", fields: dict, kind: str, param: str) -> None:
    with raises(kind) as raised:
        ask(client, **fields)
    assert raised.value.param == param and raised.value.type == "invalid_request_error"


def test_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRITIC_TOKEN", "0123456789abcdefghij")
    import openai

    from tests.support.serving import make_critic

    with running(make_critic(), token_variable="CRITIC_TOKEN") as server:
        for key, right in (("0123456789abcdefghij", True), ("0123456789abcdefghiX", False), ("x", False)):
            with openai.OpenAI(base_url=server.url, api_key=key, max_retries=0) as made:
                if right:
                    assert ask(made).choices[0].message.content in "0123456789"
                else:
                    with raises("AuthenticationError") as raised:
                        ask(made)
                    assert key not in str(raised.value) or key == "x"
