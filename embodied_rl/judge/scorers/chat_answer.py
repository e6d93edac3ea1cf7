"""Conversion of a chat completion to a score. Servers differ: see `tests/judge/scorers/golden_answers.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from embodied_rl.interfaces.scorer import Score
from embodied_rl.judge.prompts.answer_parser import Reading, drop_thoughts, read_log_probabilities
from embodied_rl.judge.scorers.http_json import shorten

NUMBERED = "token_id:"
"""Tokens begin so where vLLM was started with --return-tokens-as-token-ids."""
MOST_TOKENS = 2**53
"""Upper bound of plausible token counts; floats are exact for whole numbers up to here."""


def read_answer(
    answer: Mapping[str, Any], reading: Reading, least_mass: float, wants_probabilities: bool, order: Sequence[int] = ()
) -> Score:
    """Return the score of a chat completion, invalid if it cannot be read.

    Args:
        answer: of the server.
        reading: of the prompt.
        least_mass: minimum total probability of the labels.
        wants_probabilities: whether log-probabilities were requested; the server may have omitted them.
        order: of the frames in a trajectory prompt; index of the frame at each position.
    """
    try:
        choice = answer["choices"][0]
        logprobs = choice.get("logprobs") if wants_probabilities else None
        if logprobs is not None:
            tokens = read_log_probabilities(logprobs["content"][0]["top_logprobs"])
            if tokens and tokens[0][0].startswith(NUMBERED):
                return Score.invalid("unreadable", "numbers of tokens: start vLLM without --return-tokens-as-token-ids")
            return reading.read_tokens(tokens, least_mass)
        text = choice["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return Score.invalid("unreadable", f"not a chat completion ({error})")
    if reading.needs_probabilities:
        return Score.invalid("unreadable", "the server returned no log-probabilities, which this prompt needs")
    score = _read_text(text, reading, order) if isinstance(text, str) else None
    if score is not None:
        return score
    said = repr(shorten(text.encode("utf-8", "replace"))) if isinstance(text, str) else "nothing"
    thought = choice["message"].get("reasoning_content") or choice["message"].get("reasoning")
    written = text.strip() if isinstance(text, str) else ""
    if not drop_thoughts(written).strip() and (thought or written):
        said = "thoughts, and no answer: turn the model's reasoning off, or use a prompt with more max_tokens"
    if choice.get("finish_reason") == "length":
        said += " (it was cut at the prompt's max_tokens)"
    return Score.invalid("unreadable", said)


def _read_text(text: str, reading: Reading, order: Sequence[int]) -> Score | None:
    if reading.entries is None:
        value = reading.read_text(text)
        return None if value is None else Score(value)
    shown = reading.read_entries(text, len(order))
    if shown is None:
        return None
    values = [math.nan] * len(order)
    for place, index in enumerate(order):
        values[index] = shown[place]
    if math.isnan(values[-1]):
        return replace(Score.invalid("unreadable", "nothing about the last frame"), values=tuple(values))
    return Score(values[-1], values=tuple(values))


def read_usage(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the tokens that a server read and wrote, as it counted them; None where it does not say."""
    usage = answer.get("usage")
    counted = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, Mapping) else []
    counts = [each for each in counted if type(each) is int and 0 <= each <= MOST_TOKENS]
    return (counts[0], counts[1]) if len(counts) == 2 else None


def add_usage(parts: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the sum of tokens read and written; None where any part is unknown."""
    known = [part for part in parts if part is not None]
    return (sum(each[0] for each in known), sum(each[1] for each in known)) if len(known) == len(parts) else None
