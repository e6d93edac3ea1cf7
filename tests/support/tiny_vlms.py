"""Vision-language models of random weights, in the format of transformers: config, weights, tokenizer, processor."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

IDEFICS_SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
)
IDEFICS_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                "<|image_pad|>", "<|video_pad|>")  # fmt: skip
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = (("y", "e"), ("ye", "s"), ("n", "o"), ("Ġ", "yes"), ("Ġ", "no"), ("t", "h"), ("th", "e"))


def save_idefics(folder: Path) -> Any:
    """SmolVLM's kind: 16 × 16 pixels are four tokens. Returns the model."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil

    tokenizer = _make_tokenizer(IDEFICS_SPECIAL, "<|im_end|>", "<end_of_utterance>")
    ids = tokenizer.convert_tokens_to_ids
    text = {"model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.2,
            "max_position_embeddings": 256, "pad_token_id": ids("<|im_end|>")}  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 16, "patch_size": 4, "initializer_range": 0.2}  # fmt: skip
    torch.manual_seed(0)
    kind: Any = Idefics3Config
    config = kind(text_config=text, vision_config=vision, scale_factor=2, image_token_id=ids("<image>"),
                            pad_token_id=ids("<|im_end|>"))  # fmt: skip
    model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = ids("<end_of_utterance>")
    pictures = Idefics3ImageProcessorPil(do_image_splitting=False, size={"longest_edge": 16},
                                         max_image_size={"longest_edge": 16})  # fmt: skip
    _save(folder, model, tokenizer, pictures, IDEFICS_TEMPLATE)
    (folder / "processor_config.json").write_text('{"image_seq_len": 4, "processor_class": "Idefics3Processor"}')
    return model


def save_qwen(folder: Path) -> Any:
    """Qwen2.5-VL's kind: 8 × 8 pixels are a token. Returns the model."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessorPil

    tokenizer = _make_tokenizer(QWEN_SPECIAL, "<|endoftext|>", "<|im_end|>")
    ids = tokenizer.convert_tokens_to_ids
    text = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
            "initializer_range": 0.2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4,
              "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 32,
              "temporal_patch_size": 2, "initializer_range": 0.2}  # fmt: skip
    torch.manual_seed(0)
    kind: Any = Qwen2_5_VLConfig
    config = kind(
        text_config=text, vision_config=vision,
        image_token_id=ids("<|image_pad|>"), video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"), vision_end_token_id=ids("<|vision_end|>"),
        eos_token_id=ids("<|im_end|>"), pad_token_id=0, bos_token_id=0,
    )  # fmt: skip
    model = Qwen2_5_VLForConditionalGeneration(config)
    pictures = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=1024
    )
    _save(folder, model, tokenizer, pictures, QWEN_TEMPLATE)
    return model


SAVERS = {"idefics3": save_idefics, "qwen2_5_vl": save_qwen}


def _save(folder: Path, model: Any, tokenizer: Any, pictures: Any, template: str) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pictures.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)


def _make_tokenizer(special: tuple[str, ...], pad: str, end: str) -> Any:
    """Bytes, and a few words of more letters: "yes" and "no" are tokens, with and without a space."""
    from transformers import PreTrainedTokenizerFast

    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, additional_special_tokens=list(special)
    )
    return made
