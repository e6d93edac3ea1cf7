"""Vision-language models of transformers: answers are those of transformers' own `generate`, one question at a time."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.chat import ChatRequest, Message
from embodied_rl.serving.model_folder import check_folder
from embodied_rl.serving.refusal import Refusal
from tests.support.refusals import refuses
from tests.support.serving import encode, make_picture, running
from tests.support.tiny_vlms import IDEFICS_TEMPLATE, QWEN_TEMPLATE, SAVERS

if TYPE_CHECKING:
    import openai

    from embodied_rl.serving.vision_language import VisionLanguageModel

SIZES = ((16, 16), (12, 16), (16, 12), (8, 16))


def load_model(*settings: Any) -> "VisionLanguageModel":
    """Import transformers only when a test runs: it takes seconds."""
    from embodied_rl.serving import vision_language

    return vision_language.load_model(*settings)


@pytest.fixture(scope="module", params=sorted(SAVERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each kind."""
    path = tmp_path_factory.mktemp("vlm") / request.param
    SAVERS[request.param](path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> "VisionLanguageModel":
    return load_model(folder, "tiny", "cpu", "float32")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / folder.name)


def change(file: Path, **keys: Any) -> None:
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **keys}))


def make_request(
    seed: int, text: str, tokens: int = 1, pictures: int = 2, choices: tuple[str, ...] = ()
) -> ChatRequest:
    shown = tuple(make_picture(seed + number, SIZES[(seed + number) % len(SIZES)]) for number in range(pictures))
    return ChatRequest("tiny", (Message("user", (*shown, text)),), tokens, 20, choices)


def generate(folder: Path, request: ChatRequest) -> Any:
    """What transformers makes of a request: the template by hand, the parts loaded one by one, no padding."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (message,) = request.messages
    pictures = [Image.fromarray(part) for part in message.parts if not isinstance(part, str)]
    seen = AutoImageProcessor.from_pretrained(folder, backend="pil")(images=[pictures], return_tensors="pt")
    text = message.parts[-1]
    if "idefics3" in folder.name:
        shown = "<fake_token_around_image><global-img>" + "<image>" * 4 + "<fake_token_around_image>"
        prompt = "<|im_start|>User: " + shown * len(pictures) + f"{text}<end_of_utterance>\nAssistant:"
    else:
        counts = [int(grid.prod()) // 4 for grid in seen["image_grid_thw"]]
        shown = "".join(f"<|vision_start|>{'<|image_pad|>' * count}<|vision_end|>" for count in counts)
        prompt = f"<|im_start|>user\n{shown}{text}<|im_end|>\n<|im_start|>assistant\n"
    words = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    if "qwen" in folder.name:
        words["mm_token_type_ids"] = (words["input_ids"] == model.config.image_token_id).long()
    made = model.generate(
        **words,
        **seen,
        max_new_tokens=request.max_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logprobs = torch.stack(made.logits)[:, 0].log_softmax(-1)
    return tokenizer, made.sequences[0, words["input_ids"].shape[1] :].tolist(), logprobs


@pytest.mark.thorough
def test_a_batch_answers_as_transformers_does_one_by_one(folder: Path, model: "VisionLanguageModel") -> None:
    """Of texts of different lengths and pictures of different sizes, so that rows are padded on their left."""
    requests = [make_request(seed, "yes or no" + " the" * (3 * seed)) for seed in range(4)]
    replies = model.answer([model.prepare(each) for each in requests])
    for request, reply in zip(requests, replies, strict=True):
        tokenizer, (word,), logprobs = generate(folder, request)
        (token,) = reply.tokens
        assert token.text == tokenizer.decode([word])
        assert token.logprob == pytest.approx(float(logprobs[0, word]), abs=2e-5)
        best = logprobs[0].topk(20)
        assert [text for text, _ in token.alternatives[:3]] == [
            tokenizer.decode([i]) for i in best.indices[:3].tolist()
        ]
        assert [value for _, value in token.alternatives] == pytest.approx(best.values.tolist(), abs=2e-5)
    assert len({reply.tokens[0].logprob for reply in replies}) == 4, "questions differ"


@pytest.mark.thorough
def test_several_tokens_have_their_own_log_probabilities(folder: Path, model: "VisionLanguageModel") -> None:
    requests = [make_request(seed, "what is the" + " no" * seed, tokens=12) for seed in range(5)]
    replies = model.answer([model.prepare(each) for each in requests])
    for request, reply in zip(requests, replies, strict=True):
        tokenizer, words, logprobs = generate(folder, request)
        assert [token.text for token in reply.tokens] == [tokenizer.decode([word]) for word in words]
        wanted = [float(each[word]) for word, each in zip(words, logprobs, strict=True)]
        assert [token.logprob for token in reply.tokens] == pytest.approx(wanted, abs=5e-5)
        assert reply.text == tokenizer.decode(words, skip_special_tokens=True)
        ended = words[-1] == tokenizer.eos_token_id
        assert reply.finish == ("stop" if ended else "length") and (ended or len(words) == 12)


def test_an_answer_ends_with_the_token_that_ends_it(copy: Path, model: "VisionLanguageModel") -> None:
    """Where the model itself would go on; the other row of the batch does."""
    requests = [make_request(seed, "what is the" + " no" * seed, tokens=12) for seed in range(5)]
    whole = [reply.tokens for reply in model.answer([model.prepare(each) for each in requests])]
    tokenizer, words, _ = generate(copy, requests[0])
    end = next(word for word in words[1:] if word != words[0])
    change(copy / "generation_config.json", eos_token_id=end, repetition_penalty=9.0, do_sample=True)
    ending = load_model(copy, "x", "cpu", "float32")
    replies = ending.answer([ending.prepare(each) for each in requests])
    place = words.index(end)
    assert (replies[0].finish, len(replies[0].tokens)) == ("stop", place + 1)
    assert replies[0].text == tokenizer.decode(words[:place], skip_special_tokens=True)
    for reply, tokens in zip(replies, whole, strict=True):
        said = [token.text for token in tokens[: len(reply.tokens)]]
        assert [token.text for token in reply.tokens] == said, "the folder's own way of sampling counts for nothing"


def test_choices_have_the_models_own_probabilities(folder: Path, model: "VisionLanguageModel") -> None:
    """A word counts with and without a space before it."""
    request = make_request(1, "well?", choices=("yes", "no", "7"))
    (reply,) = model.answer([model.prepare(request)])
    tokenizer, _, logprobs = generate(folder, request)
    shares = logprobs[0].exp()

    def find(*words: str) -> float:
        ids = tokenizer.convert_tokens_to_ids(list(words))
        assert None not in ids and len(set(ids)) == len(words)
        return float(shares[ids].sum())

    wanted = {"yes": find("yes", "Ġyes"), "no": find("no", "Ġno"), "7": find("7")}
    told = {text: math.exp(logprob) for text, logprob in reply.tokens[0].alternatives}
    assert told == pytest.approx(wanted, rel=1e-4) and reply.text == max(wanted, key=lambda word: wanted[word])


def test_a_choice_of_several_tokens_is_refused(model: "VisionLanguageModel") -> None:
    with pytest.raises(Refusal, match="'perhaps' is more than one token"):
        model.prepare(make_request(0, "well?", choices=("perhaps",)))


@pytest.mark.parametrize("word", ["<image>", "<|im_end|>", "<|image_pad|>", "<end_of_utterance>"])
def test_words_that_steer_the_model_are_refused(model: "VisionLanguageModel", folder: Path, word: str) -> None:
    template = IDEFICS_TEMPLATE if "idefics3" in folder.name else QWEN_TEMPLATE
    if word in template:
        with pytest.raises(Refusal, match="a control token of this model"):
            model.prepare(make_request(0, f"yes {word} no"))


@pytest.fixture(scope="module")
def client(model: "VisionLanguageModel") -> Iterator["openai.OpenAI"]:
    import openai

    with running(model) as server, openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as made:
        yield made


def ask(client: "openai.OpenAI", text: str, **fields: Any) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": encode(make_picture(seed))}} for seed in range(2)]
    content: Any = [*parts, {"type": "text", "text": text}]
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": content}], **fields)


@pytest.mark.thorough
def test_the_official_client(client: "openai.OpenAI") -> None:
    answer = ask(client, "yes or no?", max_tokens=3, logprobs=True, top_logprobs=5)
    content = answer.choices[0].logprobs.content
    assert 1 <= len(content) <= 3 and all(len(token.top_logprobs) == 5 for token in content)
    assert answer.usage.completion_tokens == len(content) and answer.usage.prompt_tokens > 10
    chosen = ask(client, "yes or no?", extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert chosen.choices[0].message.content in ("yes", "no")


def test_a_question_that_is_too_long_fails_alone(client: "openai.OpenAI", model: "VisionLanguageModel") -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="the model reads 256"):
        ask(client, "the " * 300)
    with refuses("prompt-too-long", "256"):
        model.answer([model.prepare(make_request(0, text)) for text in ("yes", "the " * 300)])


def test_texts_alone_are_answered(client: "openai.OpenAI") -> None:
    messages: Any = [{"role": "system", "content": "no"}, {"role": "user", "content": "yes"}]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=2).choices[0].finish_reason


# -- folders of strangers ---------------------------------------------------------------------------------------------


def test_remote_code_is_refused(copy: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        before = (copy / name).read_text()
        change(copy / name, auto_map={"AutoConfig": "evil.Evil"})
        with refuses("model-contains-code", name, "auto_map"):
            load_model(copy, "x", "cpu", "float32")
        (copy / name).write_text(before)
    (copy / "modeling_evil.py").write_text("raise SystemExit")
    with refuses("model-contains-code", "modeling_evil.py"):
        load_model(copy, "x", "cpu", "float32")


def test_pickles_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with refuses("model-is-pickle", "pytorch_model.bin"):
        load_model(copy, "x", "cpu", "float32")
    (copy / "pytorch_model.bin").unlink()
    with refuses("weights-missing"):
        load_model(copy, "x", "cpu", "float32")


@pytest.mark.parametrize(
    "name, keys, code, named",
    [
        ("config.json", {"model_type": "llama"}, "model-unsupported", "'llama'"),
        ("config.json", {"model_type": 3}, "model-damaged", "model_type"),
        ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}, "model-unsupported", "quantised"),
        ("config.json", {"text_config": {"attn_implementation": "a/kernels"}}, "model-contains-code", "from a hub"),
        ("adapter_config.json", {"base_model_name_or_path": "someone/model"}, "model-adapters-only", "adapter_config"),
        (
            "processor_config.json",
            {"audio_tokenizer": {"audio_tokenizer_name_or_path": "a/b"}},
            "model-unsupported",
            "another model",
        ),
        (
            "model.safetensors.index.json",
            {"weight_map": {"a": "../secret.safetensors"}},
            "path-outside-folder",
            "../secret",
        ),
        ("model.safetensors.index.json", {"weight_map": {"a": "pytorch_model.bin"}}, "model-damaged", "pytorch_model"),
        ("model.safetensors.index.json", {"weight_map": []}, "model-damaged", "weight_map"),
    ],
)
def test_unsafe_and_damaged_folders_are_refused(
    copy: Path, name: str, keys: dict[str, Any], code: str, named: str
) -> None:
    change(copy / name, **keys)
    with refuses(code, named):
        load_model(copy, "x", "cpu", "float32")


def test_a_damaged_folder_is_named(copy: Path, tmp_path: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file({name: value for name, value in tensors.items() if "layers.1" not in name}, copy / "model.safetensors")
    with refuses("model-damaged"):
        load_model(copy, "x", "cpu", "float32")
    (copy / "model.safetensors").write_bytes(b"nonsense")
    with refuses("model-damaged"):
        load_model(copy, "x", "cpu", "float32")
    (copy / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        load_model(copy, "x", "cpu", "float32")
    (copy / "config.json").unlink()
    (copy / "config.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="is a link"):
        check_folder(copy)


def test_a_folder_without_template_or_tokenizer_is_named(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    with refuses("chat-template-missing"):
        load_model(copy, "x", "cpu", "float32")
    (copy / "tokenizer.json").unlink()
    with refuses("tokenizer-missing", "tokenizer.json"):
        load_model(copy, "x", "cpu", "float32")


def test_pictures_change_the_answer(model: "VisionLanguageModel") -> None:
    one, other = make_request(0, "yes"), make_request(0, "yes")
    black = tuple(np.zeros_like(part) if not isinstance(part, str) else part for part in other.messages[0].parts)
    other = ChatRequest("tiny", (Message("user", black),), 1, 20, ())
    replies = model.answer([model.prepare(each) for each in (one, other)])
    assert replies[0].tokens[0].logprob != replies[1].tokens[0].logprob
