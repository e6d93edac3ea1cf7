"""A client of servers that answer in JSON. What they answer is data: nothing is done with it here."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, ScorerError
from embodied_rl.system.untrusted_files import SecretFilter, make_printable

CONNECT_TIMEOUT = 4.0
"""Seconds in which a server must accept a connection, of which a second one is tried."""
LONGEST_ANSWER = 1_000_000
"""Bytes of an answer; a longer one is refused."""


class AnsweredError(ScorerError):
    """An error that a server answered with.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, reason: Reason, message: str, permanent: bool = False, after: float | None = None):
        super().__init__(reason, message, permanent, after)
        self.status = status


class JsonServer:
    """A server.

    Args:
        url: what all paths begin with.
        key_variable: environment variable that holds the server's key, if it wants one; None sends no key.
        transport: instead of the network, for tests.

    Raises:
        UserError: the key cannot be sent.
    """

    def __init__(self, url: str, key_variable: str | None, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._key_variable = key_variable
        key = _read_key(key_variable) if key_variable else None
        self._filter = SecretFilter(key)
        self._make_client = partial(
            httpx2.AsyncClient,
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),  # the service limits the rest
            verify=httpx2.create_ssl_context(),
            transport=transport,
        )
        self._idle: list[httpx2.AsyncClient] = []

    async def close(self) -> None:
        """Close all connections, when no request is in flight any more."""
        while self._idle:
            await self._idle.pop().aclose()

    @contextmanager
    def _borrow_client(self) -> Iterator[httpx2.AsyncClient]:
        """Yield the most recently used client for one request.

        Each client has a single connection: a client checks all its connections for each request, which took longer
        than the request itself with 64 connections.
        """
        client = self._idle.pop() if self._idle else self._make_client()
        try:
            yield client
        finally:
            if not client.is_closed:
                self._idle.append(client)

    async def send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Return the JSON object that the server answers, without the key if it repeats that.

        Args:
            method: of HTTP.
            path: below the server's address.
            content: `json`, or `data` and `files` of a form.

        Raises:
            ScorerError: it cannot be reached, or answers something else.
            AnsweredError: it refuses, has too much to do, or fails.
        """
        try:
            try:
                response, text = await self._ask(method, path, **content)
            except httpx2.ConnectTimeout:  # where others held up this loop, the time was over before it could look
                response, text = await self._ask(method, path, **content)
        except httpx2.TimeoutException as error:
            raise ScorerError("timeout", f"no connection in time ({type(error).__name__})") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            said = self._filter.clean_text(str(error)) or type(error).__name__
            raise ScorerError("failed", f"the server cannot be reached: {said}") from None
        if response.status_code != 200:
            raise self._refusal(response, text)
        try:
            answer = json.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError):  # no JSON, no UTF-8, too long a number, or too deep
            raise ScorerError("failed", f"the server's answer is not JSON: {shorten(text)}") from None
        if not isinstance(answer, dict):
            raise ScorerError("failed", f"the server's answer is not a JSON object: {shorten(text)}")
        return answer

    async def _ask(self, method: str, path: str, **content: Any) -> tuple[httpx2.Response, bytes]:
        with self._borrow_client() as client:
            async with client.stream(method, path, **content) as response:
                text = self._filter.clean(await _read_limited(response))
            if response.status_code >= 500:
                await client.aclose()  # the server closes the connection after this error
        return response, text

    def _refusal(self, response: httpx2.Response, text: bytes) -> AnsweredError:
        status, said = response.status_code, f"the server answers {response.status_code}: {shorten(text)}"
        if status in (401, 403) and self._key_variable:
            what = "refuses the key in" if os.environ.get(self._key_variable) else "wants a key in"
            variable = self._key_variable
            message = f"the server {what} the environment variable {variable} ({status})"
            return AnsweredError(status, "refused", message, permanent=True)
        if status in (408, 429) or status >= 500:
            reason = "busy" if status == 429 else "failed"
            return AnsweredError(status, reason, said, after=_read_seconds(response.headers.get("Retry-After")))
        return AnsweredError(status, "refused", said, permanent=True)


def check_url(url: str | None, example: str) -> None:
    """Check that an address was given, which is written into logs and therefore holds no secret.

    Raises:
        UserError: it is missing, no address, or more than one; what may be secret is not repeated.
    """
    if url is None:
        raise UserError(
            f"reward.url is missing: the server's address, such as reward.url={example}.", code="key-missing"
        )
    if not url.startswith(("http://", "https://")):
        raise UserError(f"reward.url={url}: an address begins with http:// or https://.", code="url-invalid")
    if set("@?#") & set(url):
        raise UserError(
            f"reward.url must be an address alone, such as {example}: leave out what has '@', '?' or '#', for logs "
            "hold the address. A key comes from the environment variable that reward.key_variable names.",
            code="url-invalid",
        )
    try:
        read = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise UserError(f"reward.url={url}: {error}. An address looks like {example}.", code="url-invalid") from None
    if not read.host or not 0 < (read.port or 80) < 65536:
        raise UserError(
            f"reward.url={url}: the host or its port is wrong. An address looks like {example}.", code="url-invalid"
        )


def _read_key(variable: str) -> str | None:
    """Return the API key from an environment variable; None if it is empty or unset.

    Raises:
        UserError: it is not a valid HTTP header value. (HTTP libraries would print the key in their message.)
    """
    key = os.environ.get(variable) or None
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise UserError(
            f"reward.key_variable={variable}: the environment variable holds a key with a space, a line break or a "
            "letter beyond ASCII, which cannot be sent. Set it to the key alone.",
            code="key-variable-invalid",
        )
    return key


def shorten(text: bytes) -> str:
    """Return the beginning of a server's answer, in one line, without what a terminal would act on."""
    said = make_printable(" ".join(text.decode("utf-8", "replace").split()))
    return said if len(said) <= 200 else f"{said[:200]} …"


async def _read_limited(response: httpx2.Response) -> bytes:
    text = b""
    async for chunk in response.aiter_bytes():
        text += chunk
        if len(text) > LONGEST_ANSWER:
            raise ScorerError("failed", f"the server's answer is longer than {LONGEST_ANSWER} bytes")
    return text


def _read_seconds(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None for a date, or nonsense."""
    try:
        seconds = float(header) if header is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def list_ids(answer: Mapping[str, Any]) -> list[str]:
    """Return the names of the models in the answer to GET models; without those that cannot be printed in a line."""
    listed = answer.get("data")
    entries = [entry for entry in (listed if isinstance(listed, list) else []) if isinstance(entry, Mapping)]
    names = [str(entry["id"]) for entry in entries if "id" in entry]
    return [name for name in names if name.isprintable()]
