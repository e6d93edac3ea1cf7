"""What is said before a run about a server that cannot be used: one line, with the remedy."""

import json
from typing import Any

import httpx2
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.scorers.http_json import list_ids
from embodied_rl.judge.scorers.vlm import VlmConfig
from tests.judge.scorers.test_vlm import URL, ask, completion, saying
from tests.support.refusals import refuses


def refuse(**options: Any) -> str:
    """What is said of a server that answers so."""
    with pytest.raises(UserError) as raised:
        ask(saying(**options), check=True, prompt=options.pop("prompt", "progress_percent"))
    said = str(raised.value)
    assert said.startswith(f"reward.url={URL}: ") and "\n" not in said
    return said


@pytest.mark.parametrize(
    "options, remedy",
    [
        ({"status": 404, "text": "not found"}, "Does the server run, and does reward.url end with /v1?"),
        ({"status": 307, "headers": {"Location": "/elsewhere"}}, "does reward.url end with /v1?"),
        ({"status": 500}, "Does the server run"),
        ({"text": "<html>"}, "Does the server run"),
        ({"status": 429}, "try later"),
        ({"status": 400, "text": "text only"}, "Does the model take pictures?"),
        ({"status": 401}, "Set OPENAI_API_KEY to a key that the server knows"),
    ],
)
def test_each_has_its_remedy(options: dict[str, Any], remedy: str) -> None:
    assert remedy in refuse(**options)


def test_a_prompt_that_needs_probabilities_says_so() -> None:
    with pytest.raises(UserError, match=r"logprobs are off\. This prompt needs log-prob.*another reward.prompt"):
        ask(saying(400, text="logprobs are off"), check=True, prompt="topreward")


def test_a_score_above_its_range_is_told_before_a_run() -> None:
    said = refuse(json=completion("progress: 700%"))
    assert "7.0 is not within 0 … 1" in said and "Choose another reward.prompt" in said


def test_a_server_that_is_not_there() -> None:
    def answer(sent: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("All connection attempts failed")

    with pytest.raises(UserError, match=r"cannot be reached: All connection attempts failed\. Does the server run"):
        ask(answer, check=True)


def test_a_model_that_cannot_be_printed_is_left_out() -> None:
    listed = json.loads('{"data": [{"id": "judge"}, {"id": "a\\nb"}, {"id": "\\u001b[2J"}, {"id": "\\ud800"}]}')
    assert list_ids(listed) == ["judge"]


@pytest.mark.parametrize("size", [0, 100_000_000])
def test_pictures_of_an_impossible_size(size: int) -> None:
    with refuses("value-out-of-range", f"reward.picture_size={size}", "4096"):
        VlmConfig(url=URL, picture_size=size)
