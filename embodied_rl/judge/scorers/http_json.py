"""A client of servers that answer in JSON. What they answer is data: nothing is done with it here."""

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx2

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Scorer, ScorerError
from embodied_rl.system.untrusted_files import SecretFilter, make_printable

CONNECT_TIMEOUT = 4.0
"""Seconds in which a server must accept a connection, of which a second one is tried."""
LONGEST_ANSWER = 1_000_000
"""Bytes of an answer; a longer one is refused."""

_REMEDIES: dict[Reason, str] = {
    "failed": "Does the server run, and does reward.url end with /v1?",
    "timeout": "Is the server still loading its model? Otherwise give a longer reward.timeout.",
    "busy": "Others use the server as well: try later, or with a lower reward.in_flight.",
    "refused": "Does the model take pictures? It must be one for images and text.",
}


class AnsweredError(ScorerError):
    """An error that a server answered with, by its HTTP status."""

    def __init__(self, status: int, reason: Reason, message: str, permanent: bool = False, after: float | None = None):
        super().__init__(reason, message, permanent, after)
        self.status = status


class JsonServer:
    """Client of one server.

    Args:
        url: beginning of all paths.
        key_variable: environment variable of the server's key; None sends no key.
        transport: instead of the network, for tests.

    Raises:
        UserError: the key cannot be sent.
    """

    def __init__(self, url: str, key_variable: str | None, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._key_variable = key_variable
        key = os.environ.get(key_variable) or None if key_variable else None
        if key is not None and not all("!" <= letter <= "~" for letter in key):  # HTTP libraries would print the key
            raise UserError(
                f"reward.key_variable={key_variable}: the environment variable holds a key with a space, a line break "
                "or a letter beyond ASCII, which cannot be sent. Set it to the key alone.",
                code="key-variable-invalid",
            )
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

    async def send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Return the JSON object that the server answers, without the key if it repeats that.

        Args:
            method: of HTTP.
            path: below the server's address.
            content: `json`, or `data` and `files` of a form.

        Raises:
            ScorerError: it cannot be reached, or answers something else.
            AnsweredError: it refuses, is overloaded, or fails.
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
            raise self._refuse(response, text)
        try:
            answer = json.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError):  # no JSON, no UTF-8, too long a number, or too deep
            raise ScorerError("failed", f"the server's answer is not JSON: {shorten(text)}") from None
        if not isinstance(answer, dict):
            raise ScorerError("failed", f"the server's answer is not a JSON object: {shorten(text)}")
        return answer

    async def _ask(self, method: str, path: str, **content: Any) -> tuple[httpx2.Response, bytes]:
        """Return a response and its body.

        Each client has one connection, and the most recently used one is taken: a client checks all its connections for
        each request, which took longer than the request itself with 64 connections.
        """
        client, text = self._idle.pop() if self._idle else self._make_client(), b""
        try:
            async with client.stream(method, path, **content) as response:
                async for chunk in response.aiter_bytes():
                    text += chunk
                    if len(text) > LONGEST_ANSWER:
                        raise ScorerError("failed", f"the server's answer is longer than {LONGEST_ANSWER} bytes")
            if response.status_code >= 500:
                await client.aclose()  # the server closes the connection after this error
        finally:
            if not client.is_closed:
                self._idle.append(client)
        return response, self._filter.clean(text)

    def _refuse(self, response: httpx2.Response, text: bytes) -> AnsweredError:
        status, said = response.status_code, f"the server answers {response.status_code}: {shorten(text)}"
        if status in (401, 403) and self._key_variable:
            what = "refuses the key in" if os.environ.get(self._key_variable) else "wants a key in"
            message = f"the server {what} the environment variable {self._key_variable} ({status})"
            return AnsweredError(status, "refused", message, permanent=True)
        if status in (408, 429) or status >= 500:
            try:
                after = float(response.headers.get("Retry-After", "-1"))
            except ValueError:  # a date, or nonsense
                after = -1.0
            known = after if 0 <= after < float("inf") else None
            return AnsweredError(status, "busy" if status == 429 else "failed", said, after=known)
        return AnsweredError(status, "refused", said, permanent=True)


class ServerScorer(Scorer):
    """Base of scorers behind a server: `_server` connects with the first request."""

    _server: JsonServer

    def __init__(self, url: str | None, key_variable: str | None, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._make_server = partial(JsonServer, str(url), key_variable, transport)

    async def open(self) -> None:
        self._server = self._make_server()

    async def close(self) -> None:
        await self._server.close()


def check_url(url: str | None, example: str) -> None:
    """Check that an address was given, which is written into logs and therefore holds no secret.

    Raises:
        UserError: it is missing or no such address; a possible secret is not repeated.
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


def shorten(text: bytes) -> str:
    """Return the beginning of a server's answer, in one line, without what a terminal would act on."""
    said = make_printable(" ".join(text.decode("utf-8", "replace").split()))
    return said if len(said) <= 200 else f"{said[:200]} …"


def list_ids(answer: Mapping[str, Any]) -> list[str]:
    """Return the names of the models in the answer to GET models; without those that cannot be printed in a line."""
    listed = answer.get("data")
    entries = [entry for entry in (listed if isinstance(listed, list) else []) if isinstance(entry, Mapping)]
    names = [str(entry["id"]) for entry in entries if "id" in entry]
    return [name for name in names if name.isprintable()]


def explain_failure(url: str | None, key_variable: str, error: ScorerError) -> UserError:
    """Return the error for the user: the failure of a request, and the remedy."""
    said = str(error).rstrip(".")
    missing = isinstance(error, AnsweredError) and (error.status == 404 or 300 <= error.status < 400)
    remedy = _REMEDIES.get("failed" if missing else error.reason, "")
    if any(word in said for word in ("reward.model", "It has:", "no model")):
        remedy = ""
    if "environment variable" in said:
        remedy = f"Set {key_variable} to a key that the server knows, or name another reward.key_variable."
    if is_about_probabilities(error):
        remedy = "This prompt needs log-probabilities, which the server does not return: choose another reward.prompt."
    return UserError(f"reward.url={url}: {said}. {remedy}".rstrip(), code=f"scorer-{error.reason}")


def is_about_probabilities(error: ScorerError) -> bool:
    """Return whether a server refused to return log-probabilities."""
    return error.reason == "refused" and "logprobs" in str(error)
