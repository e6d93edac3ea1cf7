"""Parsing and validation of chat completion requests in the format of the OpenAI API.

Unsupported fields are refused by name. Decoding is always greedy (temperature 0).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from embodied_rl.interfaces.sim import Array
from embodied_rl.serving.limits import RequestLimits
from embodied_rl.serving.pictures import decode_picture
from embodied_rl.serving.refusal import Refusal, quote

MOST_LOGPROBS = 20
"""Maximum of `top_logprobs`, as in the OpenAI API; and of choices."""
ROLES = ("system", "user", "assistant")

READ = ("model", "messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "structured_outputs")
IGNORED = ("seed", "top_p", "user", "metadata", "store", "service_tier")
"""Ignored fields: they have no effect with greedy decoding, or on a server that stores nothing."""
FIXED: Mapping[str, tuple[Any, str]] = {
    "temperature": (0, "answers are greedy: send 0"),
    "stream": (False, "answers come whole; this server does not stream: leave it out"),
    "n": (1, "one request has one answer"),
    "presence_penalty": (0, "answers are greedy: send 0"),
    "frequency_penalty": (0, "answers are greedy: send 0"),
    "logit_bias": ({}, "probabilities are the model's own; use structured_outputs to choose between answers"),
    "response_format": ({"type": "text"}, "use structured_outputs={'choice': […]} to choose between answers"),
    "stop": ([], "set max_tokens"),
    "tools": ([], "this server has no tools"),
}
"""Field → the only supported value, and why."""
ELSEWHERE: Mapping[str, str] = {"guided_choice": "structured_outputs={'choice': […]}, as in vLLM"}
"""Field of other servers → its name here."""


@dataclass(frozen=True, eq=False)
class Message:
    """Message with its texts and pictures (uint8 [h, w, 3]) in order."""

    role: str
    parts: tuple[str | Array, ...]


@dataclass(frozen=True, eq=False)
class ChatRequest:
    """Validated request.

    Attributes:
        messages: at least one.
        max_tokens: of the answer.
        top_logprobs: alternatives returned with each token; None returns no log-probabilities.
        choices: allowed answers; empty allows any.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    top_logprobs: int | None
    choices: tuple[str, ...]


def parse_request(body: bytes, limits: RequestLimits, reserve: Callable[[int], None]) -> ChatRequest:
    """Parse the body of a request and decode its pictures.

    Raises:
        Refusal: the request is invalid or unsupported; the message names the field. Or `reserve` raised, which is
            called with the bytes of each picture before it is decoded.
    """
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8, a number too long, or nesting too deep
        raise Refusal(400, f"the body is not valid JSON: {quote(str(error))}.") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is not a JSON object.")
    fields = {name: value for name, value in found.items() if value is not None}
    for name, value in fields.items():
        if name in FIXED:
            wanted, why = FIXED[name]
            if value != wanted:
                raise Refusal(400, f"{name}={quote(value)} is not supported: {why}.", name, "unsupported_value")
        elif name not in READ and name not in IGNORED:
            instead = f" It is {ELSEWHERE[name]}." if name in ELSEWHERE else ""
            what = quote(name)
            raise Refusal(400, f"the field {what} is not supported.{instead}", what, "unsupported_parameter")
    if not isinstance(fields.get("model"), str):
        raise Refusal(400, "model is missing: the name of a model, see /v1/models.", "model")
    return ChatRequest(
        fields["model"],
        _read_messages(fields.get("messages"), limits, reserve),
        *_read_numbers(fields, limits.tokens),
        _read_choices(fields.get("structured_outputs")),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _read_numbers(fields: Mapping[str, Any], most: int) -> tuple[int, int | None]:
    """Return the maximum length of the answer, and the number of log-probabilities of each token."""
    given = {name: fields[name] for name in ("max_completion_tokens", "max_tokens") if name in fields}
    for name, value in given.items():
        if type(value) is not int or not 1 <= value <= most:
            raise Refusal(400, f"{name}={quote(value)} must be a whole number within 1 … {most}.", name)
    if len(set(given.values())) > 1:
        raise Refusal(400, "max_tokens and max_completion_tokens differ; send one.", "max_tokens")
    enabled, top = fields.get("logprobs", False), fields.get("top_logprobs", 0)
    if not isinstance(enabled, bool):
        raise Refusal(400, f"logprobs={quote(enabled)} must be true or false.", "logprobs")
    if type(top) is not int or not 0 <= top <= MOST_LOGPROBS:
        raise Refusal(
            400, f"top_logprobs={quote(top)} must be a whole number within 0 … {MOST_LOGPROBS}.", "top_logprobs"
        )
    if top and not enabled:
        raise Refusal(400, "top_logprobs needs logprobs=true.", "top_logprobs")
    return next(iter(given.values()), 16), top if enabled else None


def _read_choices(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    where = "structured_outputs"
    choices = value.get("choice") if isinstance(value, dict) and list(value) == ["choice"] else None
    if not isinstance(choices, list) or not 1 <= len(choices) <= MOST_LOGPROBS:
        raise Refusal(400, f"{where} must be {{'choice': [1 … {MOST_LOGPROBS} answers]}}.", where)
    for choice in choices:
        if not isinstance(choice, str) or not choice.strip() or not _is_unicode(choice):
            raise Refusal(400, f"{where}: {quote(choice)} is not a non-empty text.", where)
    if len({choice.strip() for choice in choices}) < len(choices):
        raise Refusal(400, f"{where}: a choice is repeated.", where)
    return tuple(choice.strip() for choice in choices)


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON can hold and UTF-8 cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _read_messages(value: Any, limits: RequestLimits, reserve: Callable[[int], None]) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refusal(400, "messages must be a list with at least one message.", "messages")
    messages, pictures = [], 0
    for number, message in enumerate(value):
        where = f"messages[{number}]"
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ROLES:
            raise Refusal(400, f"{where}.role is {quote(role)}, and must be one of {', '.join(ROLES)}.", where)
        if others := sorted(set(message) - {"role", "content", "name"}):
            raise Refusal(400, f"{where} has {quote(others)}: not supported.", where)
        if isinstance(content, str):
            listed = {f"{where}.content": {"type": "text", "text": content}}
        elif isinstance(content, list) and content:
            listed = {f"{where}.content[{place}]": part for place, part in enumerate(content)}
        else:
            raise Refusal(400, f"{where}.content must be a text, or a list of texts and pictures.", where)
        parts: list[str | Array] = []
        for at, part in listed.items():
            pictures += isinstance(part, dict) and part.get("type") == "image_url"
            if pictures > limits.pictures:
                raise Refusal(413, f"the request has more than {limits.pictures} pictures.", "messages")
            parts.append(_read_part(part, at, limits.pixels, reserve))
        messages.append(Message(role, tuple(parts)))
    return tuple(messages)


def _read_part(value: Any, where: str, pixels: int, reserve: Callable[[int], None]) -> str | Array:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        text = value.get("text")
        if not isinstance(text, str) or not _is_unicode(text):
            raise Refusal(400, f"{where} holds {quote(text)}, which is not a text.", where)
        return text
    if kind != "image_url":
        raise Refusal(400, f"{where} is of the type {quote(kind)}; this server reads text and image_url.", where)
    found = value.get("image_url")
    url = found.get("url") if isinstance(found, dict) else None
    if not isinstance(url, str):
        raise Refusal(400, f"{where}.image_url.url is missing.", where)
    return decode_picture(url, f"{where}.image_url.url", pixels, reserve)
