"""Prompts as openpi writes them for PaliGemma (`openpi.models.tokenizer.PaligemmaTokenizer`)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

BINS = 256


def format_plain(instructions: Sequence[str]) -> list[str]:
    """π0: the instruction and a line feed, where an answer would begin."""
    return [f"{clean_text(text)}\n" for text in instructions]


def format_with_state(instructions: Sequence[str], state: Tensor) -> list[str]:
    """π0.5: the instruction and the normalised state [n, S], each entry as the number of its bin.

    [-1, 1) is cut into 256 equal bins; what lies below is -1, what lies above falls into the last one.
    """
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    bins = np.digitize(state.detach().cpu().numpy(), edges) - 1
    written = [" ".join(map(str, row)) for row in bins]
    pairs = zip(instructions, written, strict=True)
    return [f"Task: {clean_text(text)}, State: {numbers};\nAction: " for text, numbers in pairs]


def clean_text(text: str) -> str:
    """An instruction on one line, without underscores."""
    return text.strip().replace("_", " ").replace("\n", " ")
