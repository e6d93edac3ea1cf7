"""Scores and traits of scorers that others write."""

import json
import math

import numpy as np
import pytest

from embodied_rl.interfaces.scorer import Score, ScorerTraits


def test_numbers_of_numpy_become_those_of_a_log() -> None:
    score = Score(np.float32(0.5), np.float16(0.25), np.float32(1)).checked("absolute")  # type: ignore[arg-type]
    assert score == Score(0.5, 0.25, 1.0)
    assert json.dumps([score.value, score.done, score.confidence]) == "[0.5, 0.25, 1.0]"


@pytest.mark.parametrize("confidence", [math.nan, -0.1, 1.5, math.inf])
def test_a_confidence_that_is_none_is_no_score(confidence: float) -> None:
    score = Score(0.5, confidence=confidence).checked("absolute")
    assert score.reason == "range" and "confidence" in score.detail and score.confidence == 0


@pytest.mark.parametrize("size", [{"batch": 0}, {"frames": 0}])
def test_traits_with_which_nothing_could_be_asked(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ScorerTraits(("absolute",), "told", **size)  # type: ignore[arg-type]
