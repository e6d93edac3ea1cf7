"""A scorer that asks a vision-language model behind an OpenAI-compatible server, such as vLLM, SGLang or Ray Serve LLM.

Only `/v1/models` and `/v1/chat/completions` are used. Pictures travel inside the request. What the server answers is
data: labels and numbers are read from it, and nothing else is done with it.
"""

import base64
import io
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
from PIL import Image

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind, Scorer, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.scorers.labels import expect_value, read_log_probabilities
from embodied_rl.scorers.prompt import MOST_LABELS, PromptText, load_prompt

CONNECT_TIMEOUT = 2.0
"""Seconds in which a server must accept a connection."""
LONGEST_ANSWER = 1_000_000
"""Bytes of an answer; a longer one is refused."""
KEPT_PICTURES = 512
"""Encoded pictures that are kept, since an episode's first one comes with each of its requests."""
JPEG_QUALITY = 90
PICTURE_SIZE = 224
"""Pixels of the longer side, where neither prompt nor setting says otherwise."""


@dataclass(frozen=True)
class VlmConfig:
    """The settings of `VlmScorer`."""

    url: str | None = None
    """of the server, up to and with /v1, such as http://127.0.0.1:8000/v1."""
    model: str | None = None
    """of the server; null takes the only one that it has."""
    prompt: str = "progress_digit"
    """what is asked: progress_digit, progress_percent, or a YAML file of the same keys."""
    picture_size: int | None = None
    """pixels of the longer side of pictures that are sent; null: 224, or as they are where the prompt wants them so."""
    least_mass: float = 0.5
    """probability that the allowed answers must have together; else the score is missing."""
    key_variable: str = "OPENAI_API_KEY"
    """environment variable that holds the server's key, if it wants one."""

    def __post_init__(self) -> None:
        if self.url is None:
            raise UserError("reward.url is missing: the server's address, such as reward.url=http://127.0.0.1:8000/v1.")
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"reward.url={self.url}: an address begins with http:// or https://.")
        if (self.picture_size is not None and self.picture_size < 1) or not 0 <= self.least_mass <= 1:
            raise UserError("reward.picture_size must be at least 1, and reward.least_mass within 0 … 1.")


class VlmScorer(Scorer):
    """Asks a server, one request a call.

    Where the server tells log-probabilities, a prompt with labels is answered by their expectation; where it refuses
    to, the text of the answer is read.

    Raises:
        UserError: a setting or the prompt is wrong.
    """

    Config = VlmConfig

    def __init__(self, config: VlmConfig, spec: SimulatorSpec, transport: httpx2.AsyncBaseTransport | None = None):
        self._config, self._prompt, self._transport = config, load_prompt(config.prompt), transport
        self._spec = spec
        if self._prompt.lossless and config.picture_size is not None:
            raise UserError(
                f"reward.picture_size: the prompt {config.prompt} sends pictures as they are; leave it out."
            )
        self._model, self._tells_probabilities = config.model, bool(self._prompt.labels)
        self._encoded: OrderedDict[bytes, str] = OrderedDict()
        identity = f"{config.model or 'the only model'} at {config.url}, prompt {self._prompt.name}"
        self.traits = ScorerTraits((self._prompt.kind,), identity)

    async def open(self) -> None:
        """Make the client; it connects with the first request."""
        key = os.environ.get(self._config.key_variable)
        self._client = httpx2.AsyncClient(
            base_url=str(self._config.url).rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),  # the service limits the rest
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            transport=self._transport,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def check(self) -> None:
        """Ask the server for its models, and once about grey pictures.

        Raises:
            UserError: the server cannot be reached, lacks the model, or cannot answer about pictures.
        """
        asked = _make_grey_request(self._spec, self._prompt.kind)
        try:
            await self._choose_model()
            (score,) = await self.score([asked])
        except ScorerError as error:
            raise UserError(f"reward.url={self._config.url}: {error}") from None
        if score.reason == "unreadable":
            raise UserError(
                f"reward.url={self._config.url}: {self._model} answered {score.detail}, which the prompt "
                f"{self._prompt.name} cannot read. Try reward.prompt=progress_percent, or a prompt of your own."
            )

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer one request.

        Raises:
            ScorerError: the server did not answer it.
        """
        (request,) = requests
        if self._model is None:
            await self._choose_model()
        body = self._describe(request)
        try:
            answer = await self._post(body)
        except ScorerError as error:
            if not self._tells_probabilities or not _is_about_probabilities(error):
                raise
            self._tells_probabilities = False
            answer = await self._post(self._describe(request))
        return [self._read(answer)]

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _choose_model(self) -> None:
        """Take the configured model if the server has it, or else the only one that it has."""
        listed = (await self._send("GET", "models")).get("data")
        entries = listed if isinstance(listed, list) else []
        known = [str(entry["id"]) for entry in entries if isinstance(entry, Mapping) and "id" in entry]
        if self._config.model is None and len(known) == 1:
            self._model = known[0]
        elif self._config.model is None or (known and self._config.model not in known):
            wanted = "several models; choose one with reward.model" if known else "no model"
            if self._config.model is not None:
                wanted = f"no model '{self._config.model}'"
            names = suggest_name(self._config.model or "", known) or f" It has: {', '.join(known)}."
            raise ScorerError("refused", f"the server has {wanted}.{names if known else ''}", permanent=True)

    def _describe(self, request: ScoreRequest) -> dict[str, Any]:
        """Return the body of a request. What repeats comes first, so that a server can keep it."""
        parts: list[dict[str, Any]] = []
        values = {
            "instruction": request.instruction,
            "state": " ".join(f"{number:.9g}" for number in request.state),  # nine digits are exact for float32
            "cameras": ", ".join(sorted(request.frames)),
        }
        for part in self._prompt.parts:
            if isinstance(part, PromptText):
                parts.append({"type": "text", "text": part.fill(values)})
                continue
            shown = request.first if part == "first" else {name: each[-1] for name, each in request.frames.items()}
            parts += [{"type": "image_url", "image_url": {"url": self._encode(shown[name])}} for name in sorted(shown)]
        system = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        told = {"logprobs": True, "top_logprobs": MOST_LABELS} if self._tells_probabilities else {}
        return {
            "model": self._model,
            "messages": [*system, {"role": "user", "content": parts}],
            "max_tokens": self._prompt.max_tokens,
            "temperature": 0,
            **told,
        }

    def _encode(self, picture: Array) -> str:
        """Return a picture, uint8 [h, w, 3], as a data URL; equal pictures give equal texts."""
        key = picture.tobytes() + repr(picture.shape).encode()
        if key not in self._encoded:
            drawn = Image.fromarray(np.ascontiguousarray(picture))
            self._encoded[key] = _encode_png(drawn) if self._prompt.lossless else self._encode_jpeg(drawn)
            if len(self._encoded) > KEPT_PICTURES:
                self._encoded.popitem(last=False)
        self._encoded.move_to_end(key)
        return self._encoded[key]

    def _encode_jpeg(self, drawn: Image.Image) -> str:
        factor = (self._config.picture_size or PICTURE_SIZE) / max(drawn.size)
        size = tuple(max(1, round(side * factor)) for side in drawn.size)
        with io.BytesIO() as buffer:
            drawn.resize((size[0], size[1]), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=JPEG_QUALITY)
            return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("POST", "chat/completions", body)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object that the server answers.

        Raises:
            ScorerError: it cannot be reached, refuses, has too much to do, or answers something else.
        """
        try:
            async with self._client.stream(method, path, json=body) as response:
                text = await _read_limited(response)
        except httpx2.TimeoutException as error:
            raise ScorerError("timeout", f"no connection in time ({type(error).__name__})") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ScorerError("failed", f"the server cannot be reached: {error or type(error).__name__}") from None
        if response.status_code != 200:
            raise self._refusal(response, text)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):  # no JSON, no UTF-8, too long a number, or too deep
            raise ScorerError("failed", f"the server's answer is no JSON: {_shorten(text)}") from None
        if not isinstance(answer, dict):
            raise ScorerError("failed", f"the server's answer is no JSON object: {_shorten(text)}")
        return answer

    def _refusal(self, response: httpx2.Response, text: bytes) -> ScorerError:
        status, said = response.status_code, f"the server answers {response.status_code}: {_shorten(text)}"
        if status in (401, 403):
            what = "refuses the key in" if os.environ.get(self._config.key_variable) else "wants a key in"
            variable = self._config.key_variable
            return ScorerError("refused", f"the server {what} the environment variable {variable} ({status})", True)
        if status == 429:
            return ScorerError("busy", said, retry_after=_read_seconds(response.headers.get("Retry-After")))
        if status == 408 or status >= 500:
            return ScorerError("failed", said, retry_after=_read_seconds(response.headers.get("Retry-After")))
        return ScorerError("refused", said, permanent=True)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, answer: Mapping[str, Any]) -> Score:
        """Return the score of an answer; an invalid one if it does not say what was asked."""
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"]
            told = choice.get("logprobs") if self._tells_probabilities else None
            if told is not None:
                tokens = read_log_probabilities(told["content"][0]["top_logprobs"])
                return expect_value(tokens, self._prompt.labels, self._config.least_mass)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
            return Score.invalid("unreadable", f"something that is no chat completion ({error})")
        value = self._prompt.read_text(text) if isinstance(text, str) else None
        if value is None:
            return Score.invalid("unreadable", repr(_shorten(str(text).encode())))
        return Score(value)


def _encode_png(drawn: Image.Image) -> str:
    with io.BytesIO() as buffer:
        drawn.save(buffer, "PNG", compress_level=1)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _make_grey_request(spec: SimulatorSpec, kind: ScoreKind) -> ScoreRequest:
    """Return a request about grey pictures of the simulator's cameras, with words that it knows."""
    grey = {each.name: np.full((1, each.height, each.width, 3), 128, np.uint8) for each in spec.cameras}
    first = {name: frames[0] for name, frames in grey.items()}
    words = spec.words[-1] if spec.words else "nothing"
    return ScoreRequest(0, 0, kind, words, grey, first, np.zeros(len(spec.state_names), np.float32))


async def _read_limited(response: httpx2.Response) -> bytes:
    text = b""
    async for chunk in response.aiter_bytes():
        text += chunk
        if len(text) > LONGEST_ANSWER:
            raise ScorerError("failed", f"the server's answer is longer than {LONGEST_ANSWER} bytes")
    return text


def _is_about_probabilities(error: ScorerError) -> bool:
    return error.reason == "refused" and "logprobs" in str(error)


def _read_seconds(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None for a date, or nonsense."""
    try:
        seconds = float(header) if header is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _shorten(text: bytes) -> str:
    said = " ".join(text.decode("utf-8", "replace").split())
    return said if len(said) <= 200 else f"{said[:200]} …"
