"""The FAST tokenizer: scipy's transform, the ids and actions of its own code, and ids that stand for no chunk."""

import numpy as np
import pytest
from scipy.fft import dct
from tokenizers import Tokenizer, decoders, models
from tokenizers import pre_tokenizers as pre

from embodied_rl_policies.pi.fast import FastTokenizer, make_cosines
from tests.support import fast_sizes, small_fast
from tests.support.refusals import refuses


def tokenizer() -> FastTokenizer:
    return small_fast.build_network().fast


def bare() -> FastTokenizer:
    """A token for each coefficient from -8 to 7."""
    return FastTokenizer("", 16, scale=10, offset=8, shape=(4, 3))


@pytest.mark.parametrize("count", [1, 2, 6, 50])
def test_the_transform_is_the_orthonormal_one_of_scipy(count: int) -> None:
    chunks = np.random.default_rng(0).standard_normal((3, count, 4))
    np.testing.assert_allclose(make_cosines(count) @ chunks, dct(chunks, axis=1, norm="ortho"), atol=1e-12)
    np.testing.assert_allclose(make_cosines(count) @ make_cosines(count).T, np.eye(count), atol=1e-12)


def test_ids_and_actions_are_those_of_its_own_code() -> None:
    chunks, fast = fast_sizes.walks("encoded", 8), tokenizer()
    ids = fast.encode(chunks)
    assert ids == small_fast.golden_rows("fast.codes")
    assert len({len(row) for row in ids}) > 1, "chunks have sequences of several lengths"
    np.testing.assert_allclose(fast.decode(ids), small_fast.GOLDEN["fast.decoded"].numpy(), atol=1e-6)


def test_what_is_decoded_is_a_rounded_coefficient_away() -> None:
    """The transform is orthonormal: half a unit of each of H coefficients is the distance in time, too."""
    chunks, fast = fast_sizes.walks("rounded", 50), tokenizer()
    distance = np.linalg.norm(fast.decode(fast.encode(chunks)) - chunks, axis=1)
    assert distance.max() <= 0.5 / 10 * fast_sizes.SHAPE[0] ** 0.5 + 1e-6


def test_missing_coefficients_are_zero_and_further_ones_are_left_out() -> None:
    chunk, fast = np.full((1, 4, 3), 0.3), bare()
    (ids,) = fast.encode(chunk)
    assert ids == [14, 14, 14, *[8] * 9], "the lowest frequency is 0.3 · 10 · √4"
    np.testing.assert_allclose(fast.decode([ids, ids[:3], [*ids, 3, 3]]), np.repeat(chunk, 3, axis=0), atol=1e-6)
    assert not fast.decode([[]]).any()


def test_coefficients_beyond_the_ids_are_the_last_ones() -> None:
    (ids,) = bare().encode(np.full((1, 4, 3), [9.0, -9.0, 0.0]))
    assert ids[:3] == [15, 0, 8]


def test_bytes_that_are_no_character_are_a_chunk_of_zeros() -> None:
    """A token for each byte: coefficients from 0 on, with an offset of 354, are characters of two bytes."""
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(sorted(pre.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer, made.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = FastTokenizer(made.to_str(), 256, scale=10, offset=354, shape=(4, 3))
    chunk = np.full((1, 4, 3), 0.3)
    (ids,) = fast.encode(chunk)
    assert len(ids) == 24
    np.testing.assert_allclose(fast.decode([ids]), chunk, atol=1e-6)
    np.testing.assert_allclose(fast.decode([ids[:6]]), chunk, atol=1e-6)
    assert not fast.decode([ids[:5], ids[1:], [*ids, ids[0]]]).any(), "half a character"


def test_damaged_and_other_tokenizers_are_refused() -> None:
    with refuses("tokenizer-damaged"):
        FastTokenizer("{}", 16, scale=10, offset=8, shape=(4, 3))
    with refuses("tokenizer-does-not-fit", 300, 299):
        small_fast.build_network(action_tokens=299)
