"""How the answer of a vision-language model becomes a number, or one for each frame."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied_rl.interfaces.scorer import Score
from embodied_rl.judge.prompts.labels import expect_value, measure_likelihood


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
        words: lower-case word → value; the last one in a text counts.
        pattern: finds the number in a text.
        entries: keys of a list of objects in JSON, one for each frame.
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
        """Return the number that an answer in words says, before any check of its range; None if it says none."""
        if self.words:
            found = re.findall(r"\b(" + "|".join(map(re.escape, self.words)) + r")\b", text.casefold())
            return self.words[found[-1]] if found else None
        if self.pattern is None:
            return self.labels.get(text.strip().strip("\"'.").casefold())
        matched = self.pattern.search(text)
        return None if matched is None else (float(matched[1]) - self.offset) / self.scale

    def read_entries(self, text: str, count: int) -> tuple[float, ...] | None:
        """Return a number for each of `count` frames, NaN where the text has none; None if it has no list at all."""
        assert self.entries is not None
        values = [math.nan] * count
        for entry in _find_list(text) or []:
            number, value = entry.get(self.entries.number), _read_number(entry.get(self.entries.value))
            if isinstance(number, int) and 1 <= number <= count and value is not None:
                values[number - 1] = (value - self.offset) / self.scale
        return None if all(map(math.isnan, values)) else tuple(values)


def _find_list(text: str) -> list[dict[str, Any]] | None:
    """Return the objects of the outermost list in a text, which may stand between other words."""
    begin, end = text.find("["), text.rfind("]")
    if begin < 0 or end < begin:
        return None
    try:
        found = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError):
        return None
    return [entry for entry in found if isinstance(entry, dict)]


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
