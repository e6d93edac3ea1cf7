"""What is found out about a server: fakes in this process, and one on a real socket."""

import asyncio
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from embodied_rl.commands.critic_probe import run
from embodied_rl.critic.evaluation.server_probe import (
    LoadResult,
    ProbeLimits,
    choose_load,
    choose_words,
    make_fake_spec,
    probe_server,
    read_advertised_spec,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.scorers.vlm import VlmConfig
from embodied_rl.schema import CriticProbeConfig, RewardNode
from tests.support.refusals import refuses

URL = "http://server.example/v1"
SPEC = make_fake_spec(1, 16)
QUICK = ProbeLimits(timeout=30.0, seconds=0.05, most=4)
Answer = Callable[[dict[str, Any]], httpx2.Response]


def complete(asked: dict[str, Any], text: str = "7", mass: float = 0.9) -> dict[str, Any]:
    """A chat completion, with log-probabilities where they were asked for."""
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None}
    if asked.get("logprobs"):
        top = [{"token": text, "logprob": math.log(mass)}, {"token": "The", "logprob": math.log(1 - mass)}]
        choice["logprobs"] = {"content": [{"token": text, "logprob": math.log(mass), "top_logprobs": top}]}
    return {"choices": [choice]}


def answer_all(asked: dict[str, Any]) -> httpx2.Response:
    return httpx2.Response(200, json=complete(asked))


def probe(
    answer: Answer = answer_all, models: Any = ("judge",), limits: ProbeLimits = QUICK,
    found: dict[str, str] | None = None, hints: Any = None, **config: Any,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    def serve(sent: httpx2.Request) -> httpx2.Response:
        if isinstance(models, httpx2.Response):
            return models
        if sent.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": name, "asked_with": hints} for name in models]})
        return answer(json.loads(sent.content))

    found = {} if found is None else found
    settings: dict[str, Any] = {"url": URL} | config
    options = VlmConfig(**settings)
    transport = httpx2.MockTransport(serve)
    typed = asyncio.run(probe_server(options, SPEC, limits, found.__setitem__, transport))
    return typed, found


@pytest.mark.thorough
def test_what_a_good_server_can_do() -> None:
    settings, found = probe()
    assert found["models"] == "judge" and found["pictures"] == "accepted" and found["log-probs"] == "2 a token"
    assert found["prompt progress_digit"] == "its answers have a probability of 0.90 together"
    assert found["prompt progress_percent"].startswith("not usable: unreadable"), "told, and no failure"
    assert "latency" in found and "1 at once" in found and "useful" in found
    assert settings[2] == "reward.model=judge"
    assert settings[0].startswith("reward.in_flight=") and int(settings[1].removeprefix("reward.timeout=")) >= 1


@pytest.mark.thorough
def test_a_model_that_wants_to_say_something_else() -> None:
    found: dict[str, str] = {}
    unsure = lambda asked: httpx2.Response(200, json=complete(asked, mass=0.1))  # noqa: E731
    with refuses("prompt-not-usable", "reward.prompt"):
        probe(unsure, found=found)
    assert found["prompt progress_digit"].startswith("its answers have a probability of 0.10 together: below")
    assert probe(unsure, least_mass=0.05)[0][3] == "reward.prompt=progress_digit"


@pytest.mark.thorough
def test_another_prompt_is_recommended_where_the_given_one_is_not_usable() -> None:
    def answer(asked: dict[str, Any]) -> httpx2.Response:
        reads_text = "progress: " in json.dumps(asked["messages"])
        return httpx2.Response(200, json=complete(asked, *(("progress: 40%",) if reads_text else ("7", 0.1))))

    settings, found = probe(answer)
    assert "not usable" in found["prompt progress_digit"] and "not usable" not in found["prompt progress_percent"]
    assert settings[3] == found["asked with"] == "reward.prompt=progress_percent"


@pytest.mark.thorough
def test_a_server_without_log_probabilities() -> None:
    def answer(asked: dict[str, Any]) -> httpx2.Response:
        if asked.get("logprobs"):
            return httpx2.Response(400, json={"error": "logprobs are not supported"})
        return httpx2.Response(200, json=complete(asked))

    _, found = probe(answer)
    assert found["log-probs"].startswith("none")


@pytest.mark.thorough
def test_requests_show_different_pictures() -> None:
    seen: list[str] = []

    def answer(asked: dict[str, Any]) -> httpx2.Response:
        seen.append(json.dumps(asked))
        return answer_all(asked)

    probe(answer)
    assert len(set(seen)) >= len(seen) - 1


@pytest.mark.thorough
def test_too_much_ends_the_climb() -> None:
    """A server that says 429 from the third request at once on is asked with two at most, and the climb ends there."""
    asked_now, lock = 0, threading.Lock()

    class Slow(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            nonlocal asked_now
            if request.url.path.endswith("/models"):
                return httpx2.Response(200, json={"data": [{"id": "judge"}]})
            with lock:
                asked_now += 1
                many = asked_now > 2
            await asyncio.sleep(0.01)
            asked_now -= 1
            return httpx2.Response(429, text="slow down") if many else answer_all(json.loads(request.content))

    found: dict[str, str] = {}
    limits = ProbeLimits(30.0, 0.2, 64)
    settings = asyncio.run(probe_server(VlmConfig(url=URL), SPEC, limits, found.__setitem__, Slow()))
    assert settings[0] in ("reward.in_flight=1", "reward.in_flight=2") and "8 at once" not in found
    assert "slow down" in found.get("4 at once", "slow down")


@pytest.mark.parametrize(
    ("rates", "useful"),
    [([10, 20, 40, 41], 4), ([10, 10.5], 1), ([10, 19, 12], 2), ([10], 1), ([10, 20, -1], 2)],
    ids=str,
)
def test_the_lowest_concurrency_that_is_nearly_the_best(rates: list[float], useful: int) -> None:
    loads = [LoadResult(2**place, abs(rate), 0.1, "busy" if rate < 0 else "") for place, rate in enumerate(rates)]
    assert choose_load(loads).at_once == useful
    with refuses("scorer-failed"):
        choose_load([LoadResult(1, 0.0, 0.0, "busy")])


def refusing(status: int, text: str = "no") -> Answer:
    return lambda asked: httpx2.Response(status, text=text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": ("a", "b")}, "several models; choose one with reward.model"),
        ({"model": "judje"}, "no model 'judje'. Did you mean 'judge'?"),
        ({"models": httpx2.Response(401)}, "wants a key"),
        ({"models": httpx2.Response(404, text="not found")}, "does reward.url end with /v1"),
        ({"models": httpx2.Response(200, text="<html>")}, "is not JSON"),
        ({"answer": refusing(400, "image input is not supported")}, "Does the model take pictures?"),
        ({"answer": refusing(500)}, "Does the server run"),
        ({"answer": refusing(429)}, "Others use the server"),
        (
            {"answer": lambda asked: httpx2.Response(200, json=complete(asked, "hm", 0.9) | {"choices": []})},
            "cannot read",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_every_failure_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError) as problem:
        probe(**options)
    assert said in str(problem.value) and "\n" not in str(problem.value)
    assert str(problem.value).count(URL) == 1


def test_a_wrong_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with pytest.raises(UserError, match="Set OPENAI_API_KEY") as problem:
        probe(models=httpx2.Response(403))
    assert "sk-secret" not in str(problem.value)


def test_a_server_that_never_answers() -> None:
    class Silent(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await asyncio.Event().wait()
            raise AssertionError

    limits = ProbeLimits(0.05, 0.05, 4)
    with refuses("scorer-timeout", "0.05 s", "reward.timeout"):
        asyncio.run(probe_server(VlmConfig(url=URL), SPEC, limits, lambda what, found: None, Silent()))


def test_the_command_without_a_server() -> None:
    with pytest.raises(UserError, match=r"cannot be reached: .* Does the server run"):
        run(CriticProbeConfig(RewardNode("vlm", options={"url": "http://127.0.0.1:9/v1"})))
    with pytest.raises(UserError, match="has no server to probe"):
        run(CriticProbeConfig(RewardNode("scripted")))


# -- advertised inputs ------------------------------------------------------------------------------------------------

HINTS = {"prompt": "embedded", "cameras": {"top": [8, 6]}, "state": ["x", "y"], "words": ["go", "left"]}


def test_advertised_inputs_are_used() -> None:
    spec = read_advertised_spec(HINTS)
    assert spec is not None and read_advertised_spec({}) is None
    assert [(each.name, each.height, each.width) for each in spec.cameras] == [("top", 8, 6)]
    assert spec.state_names == ("x", "y") and choose_words(spec) == "go"


@pytest.mark.thorough
@pytest.mark.parametrize("prompt", ["progress_percent", "../secret.yaml", 7])
def test_only_a_built_in_prompt_is_taken_from_a_server(prompt: Any) -> None:
    used = "progress_percent" if prompt == "progress_percent" else "progress_digit"

    def answer(asked: dict[str, Any]) -> httpx2.Response:
        return httpx2.Response(200, json=complete(asked, "progress: 7%" if used == prompt else "7"))

    assert probe(answer, hints={"prompt": prompt})[0][3] == f"reward.prompt={used}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cameras", []),
        ("cameras", {}),
        ("cameras", {"top": [8]}),
        ("cameras", {"top": [8, 10**9]}),
        ("cameras", {"top": [8, True]}),
        ("cameras", {"top": [8, 0]}),
        ("cameras", {"": [8, 8]}),
        ("cameras", {str(number): [8, 8] for number in range(9)}),
        ("state", None),
        ("state", [1.0]),
        ("state", ["x"] * 1001),
        ("words", "go"),
        ("words", ["x" * 101]),
    ],
)
def test_what_no_server_of_ours_tells_is_refused(key: str, value: Any) -> None:
    with refuses("server-inputs-invalid"):
        read_advertised_spec(HINTS | {key: value})


@pytest.mark.thorough
def test_a_served_critic_is_probed_as_it_wants_to_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette")
    from tests.support.serving import make_critic, running

    with running(make_critic()) as server:
        run(CriticProbeConfig(RewardNode("vlm", options={"url": server.url}), seconds=0.1, most=2))
    said = capsys.readouterr().out
    assert "asked with                reward.prompt=embedded" in said and "accepted" in said
    assert "reward.prompt=embedded" in said.splitlines()[-1] and "reward.in_flight=" in said.splitlines()[-1]
