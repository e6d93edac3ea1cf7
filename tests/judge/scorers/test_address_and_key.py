"""A server's address and key: what cannot be one is refused in one line, and no secret is repeated."""

import pytest

from embodied_rl.judge.scorers.http_json import JsonServer
from embodied_rl.judge.scorers.robometer import RobometerConfig
from embodied_rl.judge.scorers.vlm import VlmConfig
from tests.support.refusals import refuses

KEY = "sk-secret"


@pytest.mark.parametrize(
    "key", [f"{KEY}\n", f"{KEY}\r", f" {KEY}", f"{KEY} ", f"{KEY}\x01", f"{KEY}\xe9", f"{KEY}\u2028"]
)
def test_a_key_that_no_header_holds_is_named_and_never_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with refuses("key-variable-invalid", "reward.key_variable=JUDGE_KEY") as caught:
        JsonServer("http://server.example/v1", "JUDGE_KEY")
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [VlmConfig, RobometerConfig])
@pytest.mark.parametrize(
    "url",
    [
        f"http://name:{KEY}@server.example/v1",
        f"http://server.example/v1?api_key={KEY}",
        f"http://server.example/#{KEY}",
    ],
)
def test_an_address_with_a_secret_is_refused_and_never_shown(
    url: str, config: type[VlmConfig] | type[RobometerConfig]
) -> None:
    with refuses("url-invalid", "reward.key_variable") as caught:
        config(url=url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://:8000/v1", "http://server.example:99999/v1", "http://server.example:port/v1", "http://[::1/v1"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with refuses("url-invalid", "reward.url=http://", "http://127.0.0.1:8000/v1"):
        VlmConfig(url=url)


def test_addresses() -> None:
    for url in ("http://127.0.0.1:8000/v1", "https://server.example", "http://[::1]:8000/v1/", "http://a_b:80/api/v1"):
        assert VlmConfig(url=url).url == url
