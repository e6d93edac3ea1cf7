"""A byte-level tokenizer with Qwen's special tokens, as its tokenizer.json, and Qwen3-VL's chat template for users."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>")  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = (("u", "s"), ("us", "e"), ("use", "r"), ("t", "h"), ("th", "e"))


def make_tokenizer() -> Tokenizer:
    """Bytes and a few words; id 0 is "!", as it is Qwen's, and "user" is one token."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=list(MERGES)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in SPECIAL])
    return made
