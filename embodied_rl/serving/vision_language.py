"""Vision-language models of transformers behind the chat protocol: chat template, left padding, greedy decoding.

Processors are built here without torchvision: Pillow image processors, no video.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import torch
from PIL import Image
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.chat import MOST_LOGPROBS, ChatRequest
from embodied_rl.serving.model import ChatReply, ModelInput, Token
from embodied_rl.serving.model_folder import check_folder
from embodied_rl.serving.refusal import Refusal, quote
from embodied_rl.system.untrusted_files import shorten

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_BROKEN = (
    OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError, RuntimeError, SafetensorError,
)  # fmt: skip
"""Exceptions of transformers for a damaged folder."""
PARTS = ("image_processor", "tokenizer", "video_processor")


@dataclass(frozen=True)
class Prompted:
    """Request converted to the model's prompt.

    Attributes:
        text: the messages in the chat template.
        pictures: in order.
        max_tokens: of the answer.
        choices: answer → ids of its tokens; empty allows any answer.
    """

    text: str
    pictures: tuple[Image.Image, ...]
    max_tokens: int
    choices: dict[str, list[int]]


def load_model(
    folder: Path, name: str, device: str, dtype: Literal["float32", "bfloat16", "float16"]
) -> "VisionLanguageModel":
    """Load a model folder in the format of transformers, without downloads or custom code.

    Raises:
        UserError: the folder is refused (see `check_folder`), damaged, or of an unknown model type.
    """
    kind = check_folder(folder)
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        known = list(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        raise UserError(
            f"{folder}: transformers knows no vision-language model '{kind}'.{suggest_name(kind, known)}",
            code="model-unsupported",
        )
    try:
        processor = _load_processor(folder)
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **_LOCAL
        )
        model, info = loaded
        model.to(device)
    except UserError:
        raise
    except _BROKEN as error:
        raise UserError(f"{folder} cannot be loaded: {shorten(error)}", code="model-damaged") from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{folder} is damaged: its weights lack {missing[0]} and {len(missing) - 1} more.", code="model-damaged"
        )
    return VisionLanguageModel(model.eval(), processor, name, f"{kind} of {folder}")


class VisionLanguageModel:
    """Model of transformers behind the chat protocol; implements `embodied_rl.serving.model.ChatModel`.

    Args:
        model: image-text-to-text model.
        processor: with a chat template.
        name: model name in requests.
        identity: the model and its weights.
    """

    def __init__(self, model: Any, processor: Any, name: str, identity: str) -> None:
        self.name, self.identity = name, identity
        self.asked_with: Mapping[str, Any] = {"prompt": "progress_digit"}
        self._model, self._processor, self._tokenizer = model, processor, processor.tokenizer
        ends, pad = model.generation_config.eos_token_id, self._tokenizer.pad_token_id
        ends = self._tokenizer.eos_token_id if ends is None else ends
        self._ends: list[int] = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        self._pad = pad if pad is not None else next(iter(self._ends), 0)
        model.generation_config = GenerationConfig(pad_token_id=self._pad, eos_token_id=self._ends or None)
        self._longest: int = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
        self._words = Tokenizer.from_str(self._tokenizer.backend_tokenizer.to_str())  # immutable, so shared by threads
        control = {str(each) for each in self._tokenizer.added_tokens_decoder.values() if each.special}
        control |= {str(each) for each in (*self._tokenizer.all_special_tokens, getattr(processor, "image_token", ""))}
        self._control = sorted(word for word in control if word.strip())

    def prepare(self, request: ChatRequest) -> ModelInput:
        """Apply the chat template.

        Raises:
            Refusal: the template fails, a text contains a control token, or a choice is not a single token.
        """
        pictures, messages = [], []
        for message in request.messages:
            content: list[dict[str, str]] = []
            for part in message.parts:
                if isinstance(part, str):
                    if found := next((word for word in self._control if word in part), None):
                        raise Refusal(400, f"a text holds {quote(found)}, a control token of this model.", "messages")
                    content.append({"type": "text", "text": part})
                else:
                    pictures.append(Image.fromarray(part))
                    content.append({"type": "image"})
            messages.append({"role": message.role, "content": content})
        try:
            text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except jinja2.TemplateError as error:
            raise Refusal(
                400, f"the model's chat template refuses the messages: {shorten(error)}.", "messages"
            ) from None
        choices: dict[str, list[int]] = {}
        for choice in request.choices:  # with and without a leading space
            written = (self._words.encode(word, add_special_tokens=False).ids for word in (choice, f" {choice}"))
            choices[choice] = sorted({ids[0] for ids in written if len(ids) == 1})
            if not choices[choice]:
                what = f"{quote(choice)} is more than one token of this model; choose a shorter word."
                raise Refusal(400, f"structured_outputs: {what}", "structured_outputs")
        max_tokens = 1 if choices else request.max_tokens
        return ModelInput((max_tokens, len(pictures)), Prompted(text, tuple(pictures), max_tokens, choices))

    def answer(self, questions: Sequence[ModelInput]) -> Sequence[ChatReply]:
        """Answer requests with equal max_tokens and number of pictures.

        Raises:
            UserError: a prompt is longer than the context length.
        """
        asked: list[Prompted] = [question.content for question in questions]
        inputs = self._processor(
            text=[each.text for each in asked],
            images=[list(each.pictures) for each in asked] if asked[0].pictures else None,
            return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False,
        )  # fmt: skip
        length, most = inputs["input_ids"].shape[1], asked[0].max_tokens
        if length + most > self._longest:
            raise UserError(
                f"the prompt has {length} tokens; with {most} of the answer the model reads {self._longest}.",
                code="prompt-too-long",
            )
        made = self._model.generate(
            **inputs.to(self._model.device, self._model.dtype), max_new_tokens=most, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        logprobs = torch.stack(made.logits, dim=1).float().log_softmax(dim=-1).cpu()  # [n, tokens, words]
        tokens, counts = made.sequences[:, length:].cpu(), inputs["attention_mask"].sum(dim=1).tolist()
        replies: list[ChatReply] = []
        for row, each in enumerate(asked):
            if each.choices:  # the most probable one, with the unrestricted probabilities of all
                first = logprobs[row, 0]
                ranked = [(choice, float(first[ids].logsumexp(0))) for choice, ids in each.choices.items()]
                ranked.sort(key=lambda choice: -choice[1])
                token = Token(*ranked[0], tuple(ranked))
                replies.append(ChatReply(token.text, (token,), "stop", counts[row]))
            else:
                replies.append(self._read(tokens[row], logprobs[row], counts[row]))
        return replies

    def _read(self, tokens: Tensor, logprobs: Tensor, length: int) -> ChatReply:
        """Return an answer up to its end token."""
        decode = self._tokenizer.decode
        said: list[Token] = []
        ids: list[int] = []
        for word, each in zip(tokens.tolist(), logprobs, strict=True):
            best = each.topk(min(MOST_LOGPROBS, len(each)))
            alternatives = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            said.append(
                Token(decode([word]), float(each[word]), tuple((decode([i]), value) for i, value in alternatives))
            )
            if word in self._ends:
                return ChatReply(decode(ids, skip_special_tokens=True), tuple(said), "stop", length)
            ids.append(word)
        return ChatReply(decode(ids, skip_special_tokens=True), tuple(said), "length", length)


def _load_processor(folder: Path) -> Any:
    """Return the processor of a folder, with the Pillow image processor and without video."""
    config = AutoConfig.from_pretrained(folder, **_LOCAL)
    known: Any = PROCESSOR_MAPPING[type(config)]
    if others := [part for part in known.get_attributes() if part not in PARTS]:
        raise UserError(
            f"{folder}: {known.__name__} requires a {others[0]}; this server reads pictures and text.",
            code="model-unsupported",
        )

    class WithoutVideos(known):
        """Processor without its video part, which needs torchvision."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return type(None)
            return super().check_argument_for_proper_class(argument_name, argument)

    settings, _ = known.get_processor_dict(folder, **_LOCAL)
    parts = {
        "image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil", **_LOCAL),
        "tokenizer": AutoTokenizer.from_pretrained(folder, **_LOCAL),
    }
    processor = WithoutVideos.from_args_and_dict([parts.get(part) for part in known.get_attributes()], settings)
    processor.chat_template = processor.chat_template or parts["tokenizer"].chat_template
    if not isinstance(processor.chat_template, str):
        raise UserError(
            f"{folder} has no chat template: chat_template.jinja, or in tokenizer_config.json.",
            code="chat-template-missing",
        )
    return processor
