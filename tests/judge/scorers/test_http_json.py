"""The client of JSON servers: its connections, address and key, and what is said of a server that cannot be used."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScorerError
from embodied_rl.judge.scorers.http_json import JsonServer, list_ids, shorten
from embodied_rl.judge.scorers.robometer import RobometerConfig
from embodied_rl.judge.scorers.vlm import VlmConfig
from tests.judge.scorers.test_vlm import URL, ask, completion, saying
from tests.support.refusals import refuses


class Counting:
    """A server that answers "{}" once it holds `together` requests; notes its connections."""

    def __init__(self) -> None:
        self.opened = self.open = self.waiting = 0
        self.together = 1
        self.status = b"200 OK"
        self.release = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened, self.open = self.opened + 1, self.open + 1
        try:
            while await self._read(reader):
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 2\r\n\r\n{}" % self.status)
        finally:
            self.open -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        if (await reader.readline()).startswith(b"GET /v1/hang-up"):
            return False
        while (await reader.readline()).strip():
            pass
        if reader.at_eof():
            return False
        self.waiting += 1
        if self.waiting >= self.together:
            self.release.set()
        await self.release.wait()
        return True


def run(body: Callable[[Counting, JsonServer], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        counting = Counting()
        async with asyncio.timeout(60), await asyncio.start_server(counting.handle, "127.0.0.1", 0) as listening:
            client = JsonServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", None)
            await body(counting, client)
            await client.close()
            while counting.open:
                await asyncio.sleep(0.001)

    asyncio.run(whole())


def test_requests_one_after_the_other_share_a_connection() -> None:
    async def body(counting: Counting, client: JsonServer) -> None:
        for _ in range(5):
            assert await client.send("GET", "models") == {}
        assert counting.opened == 1

    run(body)


def test_requests_at_once_have_a_connection_each_and_use_them_again() -> None:
    async def body(counting: Counting, client: JsonServer) -> None:
        for _ in range(3):
            counting.waiting, counting.together = 0, 8
            counting.release.clear()
            await asyncio.gather(*(client.send("GET", "models") for _ in range(8)))
        assert counting.opened == 8

    run(body)


def test_after_a_failure_or_a_cancelled_request_the_next_one_is_answered() -> None:
    async def body(counting: Counting, client: JsonServer) -> None:
        with pytest.raises(ScorerError, match="cannot be reached"):
            await client.send("GET", "hang-up")
        counting.together = 2
        given_up = asyncio.ensure_future(client.send("GET", "models"))
        while not counting.waiting:
            await asyncio.sleep(0.001)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled() and await client.send("GET", "models") == {}

    run(body)


def test_a_connection_on_which_a_server_failed_is_not_used_again() -> None:
    """Servers hang up after it, often only when the next request is on its way."""

    async def body(counting: Counting, client: JsonServer) -> None:
        counting.status = b"500 Internal Server Error"
        with pytest.raises(ScorerError, match="500"):
            await client.send("GET", "models")
        counting.status = b"200 OK"
        assert await client.send("GET", "models") == {}
        assert counting.opened == 2

    run(body)


@pytest.mark.parametrize("late", [1, 2])
def test_a_connection_that_came_too_late_is_tried_once_more(late: int) -> None:
    """A busy machine holds up the client's own loop, which then sees the time over before it sees the connection."""
    tried = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        tried.append(request.url.path)
        if len(tried) <= late:
            raise httpx2.ConnectTimeout("")
        return httpx2.Response(200, json={"data": []})

    server = JsonServer("http://127.0.0.1:8000/v1", None, httpx2.MockTransport(answer))
    if late == 1:
        assert asyncio.run(server.send("GET", "models")) == {"data": []}
    else:
        with pytest.raises(ScorerError, match=r"no connection in time \(ConnectTimeout\)"):
            asyncio.run(server.send("GET", "models"))
    assert tried == ["/v1/models"] * 2


def test_what_a_server_says_is_one_line_that_a_terminal_does_not_act_on() -> None:
    assert shorten(b"\x1b[2Jno \r\n such\x07 \xe2\x80\xa8 model\xff") == "?[2Jno such? model\ufffd"


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


def test_a_model_that_cannot_be_printed_is_left_out() -> None:
    listed = json.loads('{"data": [{"id": "judge"}, {"id": "a\\nb"}, {"id": "\\u001b[2J"}, {"id": "\\ud800"}]}')
    assert list_ids(listed) == ["judge"]
