"""The client of JSON servers keeps one connection for each request in flight, and uses it again."""

import asyncio
from collections.abc import Callable, Coroutine

import httpx2
import pytest

from embodied_rl.interfaces.scorer import ScorerError
from embodied_rl.judge.scorers.http_json import JsonServer, shorten


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


def test_an_error_without_words_is_named_by_its_kind() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("")

    server = JsonServer("http://127.0.0.1:8000/v1", None, httpx2.MockTransport(answer))
    with pytest.raises(ScorerError, match="cannot be reached: ReadError"):
        asyncio.run(server.send("GET", "models"))


def test_what_a_server_says_is_one_line_that_a_terminal_does_not_act_on() -> None:
    assert shorten(b"\x1b[2Jno \r\n such\x07 \xe2\x80\xa8 model\xff") == "?[2Jno such? model\ufffd"
