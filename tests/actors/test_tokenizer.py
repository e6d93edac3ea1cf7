"""Ids of texts by the pieces of a tokenizer: its words, its start token, and what is refused."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from embodied_rl.actors.tokenizer import count_ids, load_tokenizer, make_word_tokenizer, tokenize_pieces
from tests.support.refusals import refuses

WORDS = make_word_tokenizer(["Push", "cube", "push", "the"])
"""Ids by hand: <pad> 0, <unk> 1, then cube 2, push 3, the 4."""


def with_start() -> Tokenizer:
    """Words whose first is a start token."""
    made = Tokenizer(models.WordLevel({"<bos>": 0, "go": 1, "<unk>": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def test_ids_of_words_ignore_case_and_separators() -> None:
    """Each word has one id, in the order of the alphabet; a strange word has that of the unknown; 0 fills up."""
    assert count_ids(WORDS) == 5
    found = tokenize_pieces(["PUSH the  Cube", "push,the;\ncube: the", "lift the cube", ""], WORDS, 5)
    assert found.dtype == "int64"
    assert found.tolist() == [[3, 4, 2, 0, 0], [3, 4, 2, 4, 0], [1, 4, 2, 0, 0], [0, 0, 0, 0, 0]]


def test_an_embodiment_with_a_tokenizer_reads_with_it(embodiment) -> None:
    """Also words that it was not trained with: they are known to be unknown."""
    reader = replace(embodiment, tokenizer=WORDS)
    assert reader.tokens(["push the cube", "the bowl"]).tolist() == [[3, 4, 2, 0, 0, 0], [4, 1, 0, 0, 0, 0]]


def test_a_start_token_leads_once() -> None:
    assert tokenize_pieces(["go go", "<bos> go", ""], with_start().to_str(), 3).tolist() == [
        [0, 1, 1],
        [0, 1, 0],
        [0, 0, 0],
    ]


def test_a_longer_prompt_than_the_length_is_refused() -> None:
    assert tokenize_pieces(["push the cube"], WORDS, 3).tolist() == [[3, 4, 2]]
    with refuses("prompt-too-long", "'push the cube'", 3, 2):
        tokenize_pieces(["cube", "push the cube"], WORDS, 2)


def test_half_a_surrogate_pair_is_no_text() -> None:
    """JSON can hold it."""
    with refuses("prompt-invalid", r"\ud800"):
        tokenize_pieces(["cube", "push \ud800"], WORDS, 3)


def test_padding_and_truncation_of_a_saved_tokenizer_are_dropped() -> None:
    """As a library leaves them behind: both would change the ids of a batch."""
    used = Tokenizer.from_str(WORDS)
    used.enable_truncation(2)
    used.enable_padding(length=8, pad_id=1)
    assert tokenize_pieces(["push the cube", "cube"], used.to_str(), 4).tolist() == [[3, 4, 2, 0], [2, 0, 0, 0]]


@pytest.mark.parametrize("content", ["", "{}", "no tokenizer"])
def test_content_that_is_not_a_tokenizer_is_refused(content: str) -> None:
    with refuses("tokenizer-damaged"):
        load_tokenizer(content)
