"""Parsing of a vision-language model's answer, from its text or the probabilities of its tokens."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied_rl.interfaces.scorer import Score

_ROUNDING = 1e-3
"""A log-probability may exceed 0 by so much."""
_TAG = re.compile(r"[<◁](/?)think(?:ing)?[>▷]", re.IGNORECASE)
"""Tags around what a model thinks before it answers; ◁think▷ is Kimi-VL's."""


@dataclass(frozen=True)
class EntryKeys:
    """The keys of each object in a list that a model answers in JSON."""

    number: str
    """key of the frame's number, from 1 on."""
    value: str
    """key of its value."""


@dataclass(frozen=True)
class Reading:
    """The way to read answers; one of `labels`, `words`, `pattern` and `entries`.

    Attributes:
        labels: lower-case answer of one token → value; the score is their mean, weighted by probability.
        log_range: with one label: the score is 1 + log P / log_range, at least 0, of the label's probability P.
        words: lower-case word → value; those of the last line with one count, and must have one value.
        pattern: finds the number in a text; those of the last line with one count, and must be equal.
        entries: keys of a list of objects in JSON, one for each frame; a frame with two values has none.
        offset, scale: a number x in a text means (x - offset) / scale.
    """

    labels: Mapping[str, float] = field(default_factory=dict)
    log_range: float | None = None
    words: Mapping[str, float] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    entries: EntryKeys | None = None
    offset: float = 0.0
    scale: float = 1.0

    @property
    def needs_probabilities(self) -> bool:
        """Return whether nothing can be read from text alone."""
        return self.log_range is not None

    def read_tokens(self, tokens: Sequence[tuple[str, float]], least_mass: float) -> Score:
        """Return the score of (token, log-probability) pairs."""
        if self.log_range is not None:
            return measure_likelihood(tokens, next(iter(self.labels)), self.log_range)
        return expect_value(tokens, self.labels, least_mass)

    def read_text(self, text: str) -> float | None:
        """Return the number in the text of an answer, outside of thinking tags; None unless there is exactly one."""
        text = drop_thoughts(text)
        if self.words:
            known = r"\b(" + "|".join(map(re.escape, self.words)) + r")\b"
            return _read_last_line(re.finditer(known, text.casefold()), lambda word: self.words[word])
        if self.pattern is None:
            return self.labels.get(text.strip().strip("\"'.").casefold())
        return _read_last_line(self.pattern.finditer(text), lambda found: (float(found) - self.offset) / self.scale)

    def read_entries(self, text: str, count: int) -> tuple[float, ...] | None:
        """Return a number for each of `count` frames, NaN unless there is exactly one; None if the text has no list."""
        assert self.entries is not None
        text = drop_thoughts(text)
        try:
            found = json.loads(text[text.find("[") : text.rfind("]") + 1])  # the outermost list, between other words
        except (ValueError, RecursionError):
            return None
        said: list[set[float]] = [set() for _ in range(count)]
        for entry in (each for each in found if isinstance(each, dict)):
            number, value = entry.get(self.entries.number), _read_number(entry.get(self.entries.value))
            if isinstance(number, int) and 1 <= number <= count and value is not None:
                said[number - 1].add((value - self.offset) / self.scale)
        values = [each.pop() if len(each) == 1 else math.nan for each in said]
        return None if all(map(math.isnan, values)) else tuple(values)


def drop_thoughts(text: str) -> str:
    """Return a text without thinking.

    A tag that is not closed reaches to the end; one that was opened by a chat template reaches back to the beginning.
    """
    kept, thinks = list[str](), False
    parts = _TAG.split(text)  # texts, and between them "/" of a closing tag, or nothing
    for place, part in enumerate(parts):
        if place % 2 == 0:
            kept += [] if thinks else [part]
        elif part and not thinks:
            kept.clear()
        else:
            thinks = not part
    return "".join(kept)


def _read_last_line(found: Iterator[re.Match[str]], read: Callable[[str], float]) -> float | None:
    """Return the value of the matches that begin in the last one's line; None if there are none, or they differ."""
    matches = list(found)
    if not matches:
        return None
    begin = matches[-1].string.rfind("\n", 0, matches[-1].start()) + 1
    values = {read(each[1]) for each in matches if each.start() >= begin}
    return values.pop() if len(values) == 1 else None


def _read_number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value.strip().removesuffix("%"))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def read_log_probabilities(entries: Any) -> list[tuple[str, float]]:
    """Return (token, log-probability) pairs of a server's `top_logprobs`, or raise `ValueError` with the fault."""
    if not isinstance(entries, list):
        raise ValueError("top_logprobs is not a list")  # noqa: TRY004 - one error for all that a server may send
    found: list[tuple[str, float]] = []
    for entry in entries:
        token, value = (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError("top_logprobs holds an entry without token or number")  # noqa: TRY004 - as above
        if math.isnan(value) or value > _ROUNDING:
            raise ValueError(f"top_logprobs holds {value}, which is not a log-probability")
        found.append((token, float(value)))
    return found


def expect_value(tokens: Sequence[tuple[str, float]], labels: Mapping[str, float], least_mass: float = 0.5) -> Score:
    """Compute the mean of the labels' values, weighted by their probabilities.

    A label's probability is the sum over its tokens: " Yes", "Yes" and "yes" are one. The confidence is
    1 - H / log n of the n labels' distribution. The score is invalid below a total probability of `least_mass`.

    Args:
        tokens: with log-probabilities, as far as the server returned them.
        labels: lower-case label → value.
    """
    mass = dict.fromkeys(labels, 0.0)
    for token, log_probability in tokens:
        label = token.strip().casefold()
        if label in mass:
            mass[label] += math.exp(log_probability)
    total = sum(mass.values())
    if total < least_mass or total == 0:
        return Score.invalid("unsure", f"the allowed answers have a probability of {total:.2f} together")
    shares = {label: each / total for label, each in mass.items()}
    entropy = -sum(share * math.log(share) for share in shares.values() if share > 0)
    confidence = 1.0 if len(labels) == 1 else 1 - entropy / math.log(len(labels))
    value = sum(labels[label] * share for label, share in shares.items())
    return Score(min(max(value, min(labels.values())), max(labels.values())), confidence=max(0.0, confidence))


def measure_likelihood(tokens: Sequence[tuple[str, float]], label: str, log_range: float) -> Score:
    """Compute 1 + log P / `log_range` of a label's probability P, at least 0.

    Unlike the share among several labels it does not saturate for likely labels. If the server did not return the
    label's probability, the score is invalid: P is then only known to be smaller than that of the returned tokens.
    """
    mass = sum(math.exp(each) for token, each in tokens if token.strip().casefold() == label)
    if mass == 0:
        return Score.invalid("unsure", f"'{label}' is not among the {len(tokens)} most probable answers")
    return Score(min(max(1 + math.log(mass) / log_range, 0.0), 1.0))
