"""HTTP transport that captures the responses of a server to a scorer."""

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from embodied_rl.judge.prompts.answer_parser import read_log_probabilities
from embodied_rl.judge.scorers.http_json import LONGEST_ANSWER
from embodied_rl.system.untrusted_files import SecretFilter


class ResponseCapture(httpx2.AsyncBaseTransport):
    """Forwards requests and keeps the last JSON object of each path, without the key that was sent.

    Args:
        transport: of the network; None is the default one.

    Attributes:
        answers: last part of the path → last answer.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx2.AsyncClient(transport=transport, limits=limits)
        self.answers: dict[str, dict[str, Any]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and read its response."""
        answer = await self._client.send(request, stream=True)
        text = b""
        async for chunk in answer.aiter_bytes():
            text += chunk
            if len(text) > LONGEST_ANSWER:
                break  # the scorer refuses longer answers
        await answer.aclose()
        text = SecretFilter(request.headers.get("Authorization", "").removeprefix("Bearer ")).clean(text)
        if answer.status_code == 200:
            self.answers[request.url.path.rpartition("/")[2]] = _read_object(text)
        kept = {name: value for name, value in answer.headers.items() if name.casefold() == "retry-after"}
        return httpx2.Response(answer.status_code, headers=kept, content=text, request=request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @property
    def models(self) -> list[str]:
        """Return the names of the server's models; empty if it lists none."""
        listed = self.answers.get("models", {}).get("data")
        entries = listed if isinstance(listed, list) else []
        return [str(entry["id"])[:100] for entry in entries if isinstance(entry, dict) and "id" in entry]

    def find_request_hints(self, model: str | None) -> Mapping[str, Any]:
        """Return the entry `asked_with` of a model, or of the only one, in the model list; empty if there is none."""
        listed = self.answers.get("models", {}).get("data")
        entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        mine = [each for each in entries if model in (None, each.get("id"))]
        told = mine[0].get("asked_with") if len(mine) == 1 else None
        return told if isinstance(told, dict) else {}

    @property
    def tokens(self) -> list[tuple[str, float]] | None:
        """Return the tokens and log-probabilities of the last answer; None if it has none."""
        try:
            told = self.answers["completions"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            return read_log_probabilities(told)
        except (KeyError, IndexError, TypeError, ValueError):
            return None


def _read_object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
