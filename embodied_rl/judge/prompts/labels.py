"""A score from the probabilities that a language model gives to the answers it may choose from."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from embodied_rl.interfaces.scorer import Score

_ROUNDING = 1e-3
"""A log-probability may exceed 0 by so much."""


def read_log_probabilities(entries: Any) -> list[tuple[str, float]]:
    """Return (token, log-probability) pairs of a server's `top_logprobs`.

    Raises:
        ValueError: they are not what the protocol says; the message says what is wrong.
    """
    if not isinstance(entries, list):
        raise ValueError("top_logprobs is no list")  # noqa: TRY004 - one error for all that a server may send
    found: list[tuple[str, float]] = []
    for entry in entries:
        token, value = (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError("top_logprobs holds an entry without token or number")  # noqa: TRY004 - as above
        if math.isnan(value) or value > _ROUNDING:
            raise ValueError(f"top_logprobs holds {value}, which is no log-probability")
        found.append((token, float(value)))
    return found


def expect_value(tokens: Sequence[tuple[str, float]], labels: Mapping[str, float], least_mass: float = 0.5) -> Score:
    """Return the mean of the labels' values, weighted by their probabilities.

    A label's probability is the sum over its tokens: " Yes", "Yes" and "yes" are one. The confidence is
    1 - H / log n of the n labels' distribution. Where all labels together have little probability, the model wanted to
    say something else, and the score is invalid.

    Args:
        tokens: with log-probabilities, as far as the server tells them.
        labels: lower-case label → value.
        least_mass: probability that all labels must have together.
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
    """Return 1 + log P / `log_range` of a label's probability P, at least 0.

    Unlike the share among several labels it does not saturate where the label is likely at all. Where the server does
    not tell the label's probability, the score is invalid: it is then below that of the tokens it tells, by nobody
    knows how much.

    Args:
        tokens: with log-probabilities, as far as the server tells them.
        label: in lower case.
        log_range: natural logarithm of the odds at which the score ends, positive.
    """
    mass = sum(math.exp(each) for token, each in tokens if token.strip().casefold() == label)
    if mass == 0:
        return Score.invalid("unsure", f"'{label}' is not among the {len(tokens)} answers whose probability is told")
    return Score(min(max(1 + math.log(mass) / log_range, 0.0), 1.0))
