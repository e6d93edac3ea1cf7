"""Conversion of texts to token ids: by the tasks' words, or by the tokenizer of a language model."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

Ids = NDArray[np.int64]


def tokenize_words(texts: Sequence[str], vocabulary: Sequence[str], length: int) -> Ids:
    """Return each word's position in the vocabulary, int64 [n, length], 0 where padded.

    Raises:
        UserError: a word is unknown (the message names it), or a text has more than `length` words.
    """
    known = {word: index for index, word in enumerate(vocabulary) if index}
    rows: list[list[int]] = []
    for text in texts:
        words = text.lower().split()
        if unknown := [word for word in words if word not in known]:
            listed = ", ".join(known)
            raise UserError(
                f"The policy does not know the word {unknown[0]!r} of {text!r}; it knows {listed}.", code="word-unknown"
            )
        if len(words) > length:
            raise UserError(
                f"{text!r} has {len(words)} words; the policy reads at most {length}.", code="prompt-too-long"
            )
        rows.append([known[word] for word in words])
    return _padded(rows, length)


def tokenize_pieces(texts: Sequence[str], tokenizer: str, length: int) -> Ids:
    """Return ids of a tokenizer's pieces, int64 [n, length], 0 where padded; any start token of the tokenizer leads.

    `tokenizer` is the content of its tokenizer.json.

    Raises:
        UserError: a prompt has more than `length` tokens, or half of a surrogate pair.
    """
    loaded = load_tokenizer(tokenizer)
    start = loaded.token_to_id("<bos>")
    try:
        rows = [encoding.ids for encoding in loaded.encode_batch(list(texts))]
    except TypeError:
        message = f"prompt: {ascii(list(texts))[:200]} has a character that is not Unicode (a lone surrogate)."
        raise UserError(message, code="prompt-invalid") from None
    rows = [ids if start is None or ids[:1] == [start] else [start, *ids] for ids in rows]
    for text, row in zip(texts, rows, strict=True):
        if len(row) > length:
            raise UserError(
                f"The prompt {text!r} has {len(row)} tokens; the policy reads at most {length}. "
                "Shorten the instruction, or raise policy.token_length.",
                code="prompt-too-long",
            )
    return _padded(rows, length)


def count_ids(tokenizer: str) -> int:
    """Return the number of ids of a tokenizer, given the content of its tokenizer.json."""
    return load_tokenizer(tokenizer).get_vocab_size()


def drop_added_tokens(tokenizer: str, rows: int) -> str:
    """Return a tokenizer.json without added tokens whose id is not below `rows`.

    PaliGemma's has `<image>` as the first id after the rows of π0's table of words; in a prompt it is then plain text.
    """
    content = json.loads(tokenizer)
    content["added_tokens"] = [token for token in content.get("added_tokens") or () if token["id"] < rows]
    return json.dumps(content, ensure_ascii=False)


@lru_cache(maxsize=4)
def load_tokenizer(tokenizer: str) -> Any:
    """Create a `tokenizers.Tokenizer` from the content of its tokenizer.json, without padding and truncation.

    A tokenizer that is saved after use holds both. Here prompts are padded, and too long ones are errors.

    Raises:
        UserError: the content is damaged, or not a tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_str(tokenizer)
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        raise UserError(
            f"The tokenizer is damaged, or not a tokenizer.json: {shorten(error)}.", code="tokenizer-damaged"
        ) from None
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


def make_word_tokenizer(words: Sequence[str]) -> str:
    """Return the tokenizer.json of a case-insensitive word tokenizer, for a network that starts without a tokenizer."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    listed = ["<pad>", "<unk>", *sorted({word.lower() for word in words} - {"<pad>", "<unk>"})]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(listed)}, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s,;:?]+"), "removed")
    return made.to_str()


def _padded(rows: Sequence[Sequence[int]], length: int) -> Ids:
    ids = np.zeros((len(rows), length), np.int64)
    for row, values in enumerate(rows):
        ids[row, : len(values)] = values
    return ids
