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
        ValueError: they do not follow the protocol; the message names the fault.
    """
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
    1 - H / log n of the n labels' distribution. If the total probability of all labels is too small, the score is
    invalid.

    Args:
        tokens: with log-probabilities, as far as the server returned them.
        labels: lower-case label → value.
        least_mass: minimum total probability of the labels.
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

    Args:
        tokens: with log-probabilities, as far as the server returned them.
        label: in lower case.
        log_range: natural logarithm of the odds at which the score ends, positive.
    """
    mass = sum(math.exp(each) for token, each in tokens if token.strip().casefold() == label)
    if mass == 0:
        return Score.invalid("unsure", f"'{label}' is not among the {len(tokens)} most probable answers")
    return Score(min(max(1 + math.log(mass) / log_range, 0.0), 1.0))
