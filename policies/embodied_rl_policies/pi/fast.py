"""The FAST tokenizer of action chunks (arXiv:2501.09747): a cosine transform over time, rounding, byte-pair encoding.

It reads the data of a published tokenizer, and never its code: a coefficient c of a chunk becomes the character of
number round(c · scale) + offset, and the characters, first those of the lowest frequency, are encoded by `tokenizers`
(`processing_action_tokenizer.py` of physical-intelligence/fast).

Shapes: `n` chunks, `H` actions, `D` dimensions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.errors import UserError

LAST_CHARACTER = 0xD7FF
"""The numbers above are no characters (surrogates); no action in the range of its statistics has such coefficients."""
NO_CHARACTER = "\ufffd"
"""What `tokenizers` makes of bytes that are no character."""


class FastTokenizer:
    """Converts chunks to ids and back.

    Attributes:
        size: N, the number of ids.
    """

    def __init__(self, content: str, size: int, *, scale: float, offset: int, shape: tuple[int, int]) -> None:
        """Create a tokenizer for chunks of `shape` (H, D).

        Args:
            content: of its tokenizer.json; empty for one id for each coefficient, from -`offset` to N - 1 - `offset`.
            size: N.
            scale, offset: `scale` and -`min_token` of its processor_config.json.

        Raises:
            UserError: the content is damaged, or has another number of ids.
        """
        self.size, self._scale, self._offset, self._shape = size, scale, offset, shape
        self._cosines = make_cosines(shape[0])
        self._bpe = load_bpe(content) if content else None
        if self._bpe is not None and (found := self._bpe.get_vocab_size()) != size:
            message = f"policy.action_tokens={size}, and the FAST tokenizer has {found} tokens: leave the key out."
            raise UserError(message, code="tokenizer-does-not-fit")

    def encode(self, actions: NDArray[Any]) -> list[list[int]]:
        """Convert chunks [n, H, D] to ids, of any number for each."""
        coefficients = np.rint(self._cosines @ actions.astype(np.float64) * self._scale)
        last = LAST_CHARACTER if self._bpe is not None else self.size - 1
        codes = np.clip(coefficients + self._offset, 0, last).astype(np.int64).reshape(len(actions), -1).tolist()
        if self._bpe is None:
            return codes
        return [each.ids for each in self._bpe.encode_batch(["".join(map(chr, row)) for row in codes])]

    def decode(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Convert the ids of n chunks to actions float32 [n, H, D].

        Missing coefficients are 0, and those in excess are left out (lerobot's `relaxed_decoding`). Ids whose bytes are
        no characters stand for a chunk of zeros.
        """
        coefficients = np.stack([self._find_coefficients(row) for row in rows]).reshape(-1, *self._shape)
        return (self._cosines.T @ coefficients / self._scale).astype(np.float32)

    def _find_coefficients(self, ids: Sequence[int]) -> NDArray[np.float64]:
        found = np.zeros(self._shape[0] * self._shape[1])
        codes = list(ids)
        if self._bpe is not None:
            text = self._bpe.decode(codes, skip_special_tokens=False)
            codes = [] if NO_CHARACTER in text else [ord(character) for character in text]
        codes = codes[: len(found)]
        found[: len(codes)] = np.asarray(codes, np.float64) - self._offset
        return found


def make_cosines(count: int) -> NDArray[np.float64]:
    """Return the orthonormal cosine transform of `count` values (DCT-II), a matrix of frequencies and times."""
    frequency, time = np.arange(count)[:, None], np.arange(count)
    rows = np.sqrt(2 / count) * np.cos(np.pi * frequency * (2 * time + 1) / (2 * count))
    rows[0] /= np.sqrt(2)
    return rows


def load_bpe(content: str) -> Any:
    """Create a `tokenizers.Tokenizer` from the content of its tokenizer.json, without padding and truncation.

    Raises:
        UserError: the content is damaged.
    """
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_str(content)
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        message = f"The FAST tokenizer is damaged, or not a tokenizer.json: {str(error)[:80]}."
        raise UserError(message, code="tokenizer-damaged") from None
    loaded.no_padding()
    loaded.no_truncation()
    return loaded
