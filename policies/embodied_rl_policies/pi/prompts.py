"""Prompts in openpi's format for PaliGemma (`openpi.models.tokenizer.PaligemmaTokenizer`)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

BINS = 256


def format_plain(instructions: Sequence[str]) -> list[str]:
    """Write prompts of π0: the instruction on one line and a line feed."""
    return [f"{clean_text(text)}\n" for text in instructions]


def end_line(instructions: Sequence[str]) -> list[str]:
    """Write prompts of π0 as lerobot does: the instruction unchanged, with a line feed unless it ends with one."""
    return [text if text.endswith("\n") else f"{text}\n" for text in instructions]


def format_with_state(instructions: Sequence[str], state: Tensor) -> list[str]:
    """Write prompts of π0.5: the instruction and the normalised state [n, S], each entry as its bin number.

    [-1, 1) is divided into 256 equal bins; smaller values become -1, larger values fall into the last bin.
    """
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    bins = np.digitize(state.detach().cpu().numpy(), edges) - 1
    written = [" ".join(map(str, row)) for row in bins]
    pairs = zip(instructions, written, strict=True)
    return [f"Task: {clean_text(text)}, State: {numbers};\nAction: " for text, numbers in pairs]


def clean_text(text: str) -> str:
    """Return an instruction on one line, without underscores."""
    return text.strip().replace("_", " ").replace("\n", " ")
