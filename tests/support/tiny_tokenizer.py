"""A tokenizer in the manner of PaliGemma's, letter by letter: the same in every project that has `tokenizers`."""

import string

from tokenizers import Tokenizer, models, normalizers, processors

# Ids 0 to 3, as in PaliGemma.
SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}


def tiny_tokenizer() -> Tokenizer:
    """Spaces are kept as their own sign, a newline is a token, and a sentence begins with `<bos>` and has no end."""
    signs = [*SPECIAL.values(), "\n", "▁", *string.digits, *string.ascii_letters, *string.punctuation]
    vocabulary = {sign: index for index, sign in enumerate(signs)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def llama_tokenizer() -> str:
    """A tokenizer.json in the manner of Llama's: letter by letter, a sentence begins with `<s>`, which is id 1."""
    signs = ["<unk>", "<s>", "</s>", "\n", "▁", *string.digits, *string.ascii_letters, *string.punctuation]
    tokenizer = Tokenizer(
        models.BPE(vocab={sign: index for index, sign in enumerate(signs)}, merges=[], unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()
