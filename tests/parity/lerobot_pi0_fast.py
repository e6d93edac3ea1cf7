"""What lerobot's own π0-FAST computes: run with a Python in which lerobot works, as `lerobot_pi.py` says, with scipy.

    python lerobot_pi0_fast.py tokenizer CODE golden/fast                    # a FAST tokenizer, trained by its own code
    python lerobot_pi0_fast.py golden CODE golden/pi0_fast_lerobot.safetensors
    python lerobot_pi0_fast.py keys CODE golden/keys_pi0_fast_lerobot.json   # what its full-size checkpoints hold
    python lerobot_pi0_fast.py load CODE FOLDER                             # its greedy actions for a folder of ours

CODE is the folder with physical-intelligence/fast's `processing_action_tokenizer.py`; PYTHONPATH names the checkout.
Made with lerobot 0.6.1, transformers 5.5.4 and scipy 1.18.
"""

# pyright: reportMissingImports=false

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pi0_fast import modeling_pi0_fast as modeling
from lerobot.policies.pi0_fast.configuration_pi0_fast import PI0FastConfig
from lerobot.processor import tokenizer_processor
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tests.support import fast_sizes, key_lists, pi_inputs, recipe
from tests.support import pi_sizes as sizes
from tests.support.pi_inputs import observation
from tests.support.tiny_tokenizer import SPECIAL

EXAMPLES = 8


def fast_class(code: str) -> Any:
    """FAST's own class."""
    sys.path.insert(0, code)
    return importlib.import_module("processing_action_tokenizer").UniversalActionProcessor


def stored_fast(code: str, folder: Path = fast_sizes.FAST) -> Any:
    """FAST's own class with the tokenizer of a folder."""
    told = json.loads((folder / "processor_config.json").read_text())
    pieces = PreTrainedTokenizerFast.from_pretrained(folder / "bpe_tokenizer")
    return fast_class(code)(pieces, told["scale"], told["vocab_size"], told["min_token"])


def configuration(**changes: Any) -> Any:
    cameras = {f"observation.images.{name}": (3, *shape) for name, shape in sizes.CAMERAS.items()}
    features = {name: PolicyFeature(FeatureType.VISUAL, shape) for name, shape in cameras.items()}
    features |= {"observation.state": PolicyFeature(FeatureType.STATE, (sizes.STATE_DIM,))}
    given = {"output_features": {"action": PolicyFeature(FeatureType.ACTION, (sizes.ACTION_DIM,))}}
    return PI0FastConfig(**fast_sizes.configuration(), device="cpu", input_features=features, **given, **changes)


@contextmanager
def small(code: str, tokenizer: Any = None, fast: Any = None) -> Iterator[None]:
    """lerobot knows networks of fixed sizes and tokenizers of the hub only: here these are small."""
    vlm = modeling.PaliGemmaForConditionalGenerationWithPiGemma

    def small_vlm(config: Any) -> Any:
        config.text_config.vocab_size = fast_sizes.VOCABULARY
        for name, value in (sizes.VISION | {"projection_dim": sizes.LANGUAGE["width"]}).items():
            setattr(config.vision_config, name, value)
        return vlm(config)

    words = PreTrainedTokenizerFast(tokenizer_object=fast_sizes.prompt_tokenizer(), **SPECIAL)
    words, fast = tokenizer or words, fast or stored_fast(code)
    sizes_of = modeling.GemmaConfig(**sizes.LANGUAGE)
    with ExitStack() as stack:
        for module in (modeling, tokenizer_processor):
            stack.enter_context(patch.object(module.AutoTokenizer, "from_pretrained", lambda *_, **__: words))
            stack.enter_context(patch.object(module.AutoProcessor, "from_pretrained", lambda *_, **__: fast))
        stack.enter_context(patch.object(modeling, "get_gemma_config", lambda name: sizes_of))
        stack.enter_context(patch.object(modeling, "PaliGemmaForConditionalGenerationWithPiGemma", small_vlm))
        yield


def filled(code: str) -> Any:
    """lerobot's policy with the recipe's weights, in eval mode."""
    with small(code):
        policy = modeling.PI0FastPolicy(configuration()).eval()
    shapes = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    policy.load_state_dict({name: torch.from_numpy(value) for name, value in recipe.weights(shapes).items()})
    return policy


def processors(code: str, config: Any) -> tuple[Any, Any]:
    dims = {"observation.state": ("state", sizes.STATE_DIM), "action": ("action", sizes.ACTION_DIM)}
    stats = {key: sizes.statistics(*arguments) for key, arguments in dims.items()}
    with small(code):
        return make_pre_post_processors(config, dataset_stats=stats)


def forced_logits(policy: Any, given: Any, wanted: Tensor) -> Tensor:
    """Logits [rows, steps, V] where lerobot's loop is made to write `wanted` [rows, steps]."""
    network, seen, steps = policy.model, [], iter(wanted.unbind(1))
    hook = network.paligemma_with_expert.paligemma.lm_head.register_forward_hook(
        lambda module, inputs, output: seen.append(output[:, -1])
    )
    with patch.object(modeling.torch, "argmax", lambda *_, **__: next(steps)[:, None]):
        network.sample_actions_fast_kv_cache(*given, max_decoding_steps=wanted.shape[1])
    hook.remove()
    return torch.stack(seen, dim=1)


def padded(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def network_tensors(policy: Any, code: str) -> dict[str, Tensor]:
    """Logits where codes of demonstrated chunks are written, and lerobot's loss where the start token sees no less."""
    words, images = policy._paligemma_tokenizer, pi_inputs.network_inputs("pi05")
    tokens = torch.from_numpy(fast_sizes.prompts())
    opening, end = words.convert_tokens_to_ids(list(fast_sizes.OPENING)), words.convert_tokens_to_ids("|")
    codes = stored_fast(code)(fast_sizes.walks("demonstrated", sizes.ROWS))
    wanted = padded([fast_sizes.ids(row, opening, end) for row in codes], end)
    counted = padded([[1] * (len(row) + 4) for row in codes], 0).bool()
    start = torch.full((sizes.ROWS, 1), words.bos_token_id)
    prompt, there = torch.cat([tokens, start], 1), torch.cat([tokens > 0, start > 0], 1)
    loss = policy.model(images["images"], images["masks"], prompt, there, wanted, counted)["loss"]
    given = images["images"], images["masks"], tokens, tokens > 0
    return {"codes": padded(codes, -1), "logits": forced_logits(policy, given, wanted), "loss": loss}


def policy_tensors(policy: Any, pipelines: tuple[Any, Any], codes: Tensor) -> dict[str, Tensor]:
    """Prompts, actions of written tokens (whole, cut, too long, repeated), and of the robot."""
    batch, words = pipelines[0](observation()), policy._paligemma_tokenizer
    opening, end = words.convert_tokens_to_ids(list(fast_sizes.OPENING)), words.convert_tokens_to_ids("|")
    rows = [[code for code in row if code >= 0] for row in codes.tolist()]
    rows += [rows[0][:5], rows[0] + rows[1], []]
    written = padded([fast_sizes.ids(row, opening, end) for row in rows], 0)
    actions = policy.detokenize_actions(written, *fast_sizes.SHAPE)
    return {
        "tokens": batch["observation.language.tokens"],
        "state": batch["observation.state"],
        "written": padded(rows, -1),
        "normalized_actions": actions,
        "actions": pipelines[1](actions),
    }


def tokenizer(code: str, folder: str) -> None:
    """A FAST tokenizer of 300 ids, without its code."""
    made = fast_class(code).fit(list(fast_sizes.walks("training", 400)), scale=10, vocab_size=300)
    made.register_for_auto_class("AutoProcessor")
    made.save_pretrained(folder)
    for file in Path(folder).glob("*.py"):
        file.unlink()
    shutil.rmtree(Path(folder) / "__pycache__", ignore_errors=True)


def golden(code: str, path: str) -> None:
    policy = filled(code)
    with torch.no_grad():
        network = network_tensors(policy, code)
        answers = policy_tensors(policy, processors(code, policy.config), network["codes"])
    chunks, fast = fast_sizes.walks("encoded", EXAMPLES), stored_fast(code)
    ids = fast(chunks)
    decoded = torch.from_numpy(np.asarray(fast.decode(ids)))
    tensors = {"fast.codes": padded(ids, -1), "fast.decoded": decoded}
    tensors |= {f"network.{name}": value for name, value in network.items()}
    save_file(
        {
            name: value.contiguous()
            for name, value in (tensors | {f"policy.{k}": v for k, v in answers.items()}).items()
        },
        path,
    )


def keys(code: str, path: str) -> None:
    """Keys and shapes at full size."""
    fast = stored_fast(code)
    with (
        patch.object(modeling.AutoTokenizer, "from_pretrained", lambda *_, **__: None),
        patch.object(modeling.AutoProcessor, "from_pretrained", lambda *_, **__: fast),
        torch.device("meta"),
    ):
        config = PI0FastConfig(device="cpu")
        config.device = "meta"
        policy = modeling.PI0FastPolicy(config)
    key_lists.write(path, policy, {}, "lerobot trains output layer and embedding apart", {})


def load(code: str, folder: str) -> None:
    """Keys that lerobot misses or does not know, and its greedy actions; the last line is JSON."""
    found: dict[str, Any] = {}
    original = torch.nn.Module.load_state_dict

    def recorded(module: Any, state: Any, **_: Any) -> Any:
        result = original(module, state, strict=False)
        found.update(missing=result.missing_keys, unexpected=result.unexpected_keys)
        return result

    words = PreTrainedTokenizerFast.from_pretrained(Path(folder) / "tokenizer", **SPECIAL)
    with small(code, words, stored_fast(code, Path(folder) / "action_tokenizer")), torch.no_grad():
        with patch.object(torch.nn.Module, "load_state_dict", recorded):
            policy = modeling.PI0FastPolicy.from_pretrained(folder).eval()
        before, after = make_pre_post_processors(policy.config, pretrained_path=folder)
        unseen = f"observation.images.{list(sizes.CAMERAS)[-1]}"
        batch = before({name: value for name, value in observation().items() if name != unseen})
        normalized = policy.predict_action_chunk(batch)
    tensors = {"tokens": batch["observation.language.tokens"], "normalized": normalized, "actions": after(normalized)}
    print(json.dumps(found | {name: tensor.tolist() for name, tensor in tensors.items()}))


if __name__ == "__main__":
    {"tokenizer": tokenizer, "golden": golden, "keys": keys, "load": load}[sys.argv[1]](*sys.argv[2:])
