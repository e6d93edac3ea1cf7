"""π0-FAST so small that a whole checkpoint is a megabyte, for this project and lerobot: NumPy, torch and tokenizers.

Networks, images and states are those of `pi_sizes`. The FAST tokenizer in `parity/golden/fast` was trained by
physical-intelligence/fast's own code on chunks of `walks`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from tests.support import pi_sizes as sizes
from tests.support import recipe
from tests.support.tiny_tokenizer import tiny_tokenizer

VOCABULARY, SKIPPED, PROMPT_LENGTH, WRITTEN = 512, 10, 90, 40
"""Ids of the prompt's tokenizer, its last ids without a meaning, tokens of a prompt, and of what follows it."""
SHAPE = sizes.CHUNK, sizes.ACTION_DIM
FAST = Path(__file__).parents[1] / "parity" / "golden" / "fast"
"""A FAST tokenizer as transformers stores it, less the code."""
OPENING = ("Action", ":", "▁")


def prompt_tokenizer() -> Tokenizer:
    """The letters of `tiny_tokenizer`, "Action" as one token as in PaliGemma's, and as many ids as FAST needs."""
    tiny = tiny_tokenizer()
    vocabulary: dict[str, int] = json.loads(tiny.to_str())["model"]["vocab"]
    word = OPENING[0]
    merges = [(word[:end], word[end]) for end in range(1, len(word))]
    further = [*("".join(pair) for pair in merges), *(f"<loc{index:04d}>" for index in range(VOCABULARY))]
    vocabulary |= {
        piece: len(vocabulary) + index for index, piece in enumerate(further[: VOCABULARY - len(vocabulary)])
    }
    tiny.model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>")
    return tiny


def walks(name: str, rows: int) -> NDArray[np.float32]:
    """Smooth chunks in the policy's units, float32 [rows, H, D]."""
    steps = recipe.normal(f"walks {name}", (rows, *SHAPE))
    return np.clip(np.cumsum(steps, axis=1) * 0.3, -1.5, 1.5).astype(np.float32)


def prompts() -> NDArray[np.int64]:
    """Ids of prompts of several lengths, int64 [rows, L], 0 where padded; none is a special token."""
    words = recipe.words("fast prompt", sizes.ROWS, PROMPT_LENGTH, 90)
    return np.where(words > 0, words + 4, 0)


def ids(row: list[int], opening: list[int], end: int) -> list[int]:
    """The ids of the prompt's vocabulary that stand for FAST's, with what stands before and after them."""
    return [*opening, *(VOCABULARY - 1 - SKIPPED - code for code in row), end]


def configuration() -> dict[str, Any]:
    """What lerobot's config.json says besides the features."""
    return {
        "chunk_size": sizes.CHUNK, "n_action_steps": sizes.CHUNK, "max_state_dim": sizes.PADDED_DIM,
        "max_action_dim": sizes.PADDED_DIM, "tokenizer_max_length": PROMPT_LENGTH, "fast_skip_tokens": SKIPPED,
        "max_action_tokens": WRITTEN + 1, "max_decoding_steps": WRITTEN,
        "image_resolution": [sizes.IMAGE_SIZE, sizes.IMAGE_SIZE],
    }  # fmt: skip
