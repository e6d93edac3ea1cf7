"""What lerobot's own π0 and π0.5 compute: run with a Python in which lerobot works, for that is no dependency of ours.

    python lerobot_pi.py golden pi0 golden/pi0_lerobot.safetensors   # velocities and actions to compare with
    python lerobot_pi.py steps pi0 golden/pi0_lerobot_steps.safetensors   # 6 and 10 steps, in float32 and float64
    python lerobot_pi.py keys pi0 golden/keys_pi0_lerobot.json       # what its full-size checkpoints hold
    python lerobot_pi.py checkpoint pi0 FOLDER                       # a small checkpoint, written by lerobot
    python lerobot_pi.py load pi0 FOLDER                             # does lerobot take a checkpoint of ours?
    python lerobot_pi.py adapter pi0 FOLDER MERGED                   # adapters of ours on their base, and merged by us
    python lerobot_pi.py time pi0                                    # seconds of its sampling loop, one thread

PYTHONPATH names the checkout: weights and inputs come from `recipe`, `pi_sizes` and `pi_inputs` of `support`.
Made with lerobot 0.6.2 (commit 7427f31) and transformers 5.5.4; `steps` with 0.6.1 on Python 3.11, for which its 3.12
syntax was rewritten outside of the policies. `load` runs with 0.6.1, too, in an environment such as

    python3.12 -m venv oracle && oracle/bin/pip install torch==2.13.0
    oracle/bin/pip install --no-deps lerobot==0.6.1 torchvision==0.28.0 opencv-python-headless==4.12.0.88
    oracle/bin/pip install torch==2.13.0 transformers==5.5.4 'numpy<2.3' 'draccus<0.12' 'huggingface-hub<2' \\
        'gymnasium>=1.1.1' einops termcolor 'packaging<26' pillow tqdm requests safetensors peft==0.21.2
"""

# pyright: reportMissingImports=false

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import make_pre_post_processors
from lerobot.processor import tokenizer_processor
from peft import PeftConfig, PeftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tests.support import key_lists, pi_inputs
from tests.support import pi_sizes as sizes
from tests.support.double_precision import in_float64
from tests.support.pi_inputs import chunk, observation
from tests.support.tiny_tokenizer import SPECIAL, tiny_tokenizer

LAYER = 1
HUB_NAME = "google/paligemma-3b-pt-224"


# lerobot's classes


def modeling(family: str) -> ModuleType:
    return importlib.import_module(f"lerobot.policies.{family}.modeling_{family}")


def policy_class(family: str) -> Any:
    return getattr(modeling(family), f"{family.upper()}Policy")


def configuration(family: str, **changes: Any) -> Any:
    cameras = {f"observation.images.{name}": (3, *shape) for name, shape in sizes.CAMERAS.items()}
    values = {
        "device": "cpu",
        "chunk_size": sizes.CHUNK,
        "n_action_steps": sizes.CHUNK,
        "max_state_dim": sizes.PADDED_DIM,
        "max_action_dim": sizes.PADDED_DIM,
        "num_inference_steps": sizes.STEPS,
        "tokenizer_max_length": sizes.PROMPT_LENGTH[family],
        "image_resolution": (sizes.IMAGE_SIZE, sizes.IMAGE_SIZE),
        "input_features": {name: PolicyFeature(FeatureType.VISUAL, shape) for name, shape in cameras.items()}
        | {"observation.state": PolicyFeature(FeatureType.STATE, (sizes.STATE_DIM,))},
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (sizes.ACTION_DIM,))},
    }
    return getattr(modeling(family), f"{family.upper()}Config")(**values | changes)


@contextmanager
def small(family: str) -> Iterator[None]:
    """lerobot knows networks of fixed sizes only: what it builds in here is small, what it computes is its own."""
    module = modeling(family)
    vlm, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM

    def small_vlm(config: Any) -> Any:
        config.text_config.vocab_size = sizes.VOCABULARY
        for name, value in (sizes.VISION | {"projection_dim": sizes.LANGUAGE["width"]}).items():
            setattr(config.vision_config, name, value)
        return vlm(config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = sizes.VOCABULARY
        return expert(config)

    variants = {"gemma_2b": sizes.LANGUAGE, "gemma_300m": sizes.EXPERT}
    with ExitStack() as stack:
        stack.enter_context(patch.object(module, "get_gemma_config", lambda name: module.GemmaConfig(**variants[name])))
        stack.enter_context(patch.object(module, "PaliGemmaForConditionalGenerationWithPiGemma", small_vlm))
        stack.enter_context(patch.object(module, "PiGemmaForCausalLM", small_expert))
        yield


def filled(family: str, **changes: Any) -> Any:
    """lerobot's policy with the recipe's weights, in eval mode."""
    with small(family):
        policy = policy_class(family)(configuration(family, **changes)).eval()
    policy.load_state_dict(pi_inputs.weights({name: tensor.shape for name, tensor in policy.state_dict().items()}))
    return policy


def processors(config: Any, folder: str | None = None) -> tuple[Any, Any]:
    """lerobot's pipelines before and after the policy: new ones with the recipe's statistics, or a checkpoint's."""
    if folder:
        with patch.object(tokenizer_processor.AutoTokenizer, "from_pretrained", _without_hub(folder)):
            return make_pre_post_processors(config, pretrained_path=folder, **_for_older_versions(folder))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **SPECIAL)
    dims = {"observation.state": ("state", sizes.STATE_DIM), "action": ("action", sizes.ACTION_DIM)}
    stats = {key: sizes.statistics(*arguments) for key, arguments in dims.items()}
    with patch.object(tokenizer_processor.AutoTokenizer, "from_pretrained", lambda name: tokenizer):
        return make_pre_post_processors(config, dataset_stats=stats)


def _without_hub(folder: str) -> Callable[[str], Any]:
    """transformers' loader, where the hub's PaliGemma has the tokenizer in the folder."""
    original = tokenizer_processor.AutoTokenizer.from_pretrained
    return lambda name: original(f"{folder}/tokenizer" if name == HUB_NAME else name)


def _for_older_versions(folder: str) -> dict[str, Any]:
    """What `embodied-rl export` says to give lerobot before 0.6.2 where the folder names no tokenizer on the hub."""
    step = tokenizer_processor.TokenizerProcessorStep
    if hasattr(step, "save_artifacts") or HUB_NAME in Path(folder, "policy_preprocessor.json").read_text():
        return {}
    return {"preprocessor_overrides": {"tokenizer_processor": {"tokenizer_name": f"{folder}/tokenizer"}}}


# What they compute


def arguments(family: str) -> list[Any]:
    """What lerobot's networks take, in their order: π0.5 knows the state from its prompt alone."""
    given = pi_inputs.network_inputs(family)
    return [value for name, value in given.items() if name != "state" or family == "pi0"]


def network_tensors(family: str, policy: Any) -> dict[str, Tensor]:
    """Image features, one layer's keys and values (0 where padded), velocities, actions, and the training loss."""
    network, given, seen = policy.model, arguments(family), {}
    step = network.denoise_step

    def watched(**keywords: Any) -> Tensor:
        seen.update(keywords)
        return step(**keywords)

    with patch.object(network, "denoise_step", watched):
        actions = network.sample_actions(*given, noise=chunk("noise"), num_steps=sizes.STEPS)
    mask = seen["prefix_pad_masks"]
    key, value, _ = list(seen["past_key_values"])[LAYER]
    tensors = {
        "actions": actions,
        "prefix_mask": mask,
        "image_features": network.paligemma_with_expert.embed_image(given[0][0][:1]),
        f"layer{LAYER}.keys": key * mask[:, None, :, None],
        f"layer{LAYER}.values": value * mask[:, None, :, None],
    }
    for moment in sizes.TIMES:
        asked = seen | {"x_t": chunk("noise"), "timestep": torch.full((sizes.ROWS,), moment)}
        tensors[f"velocity.{moment}"] = step(**asked)
    tensors["loss"] = network(*given, actions=chunk("actions"), noise=chunk("noise"), time=pi_inputs.loss_times())
    return tensors


def answers(policy: Any, before: Any, after: Any) -> dict[str, Tensor]:
    """An observation's way through lerobot: prompt, normalized state, actions of the network and of the robot."""
    batch = before(observation())
    normalized = policy.predict_action_chunk(batch, noise=chunk("noise"), num_steps=sizes.STEPS)
    return {
        "tokens": batch["observation.language.tokens"],
        "token_mask": batch["observation.language.attention_mask"],
        "state": batch["observation.state"],
        "normalized_actions": normalized,
        "actions": after(normalized),
    }


def demonstration(before: Any, after: Any) -> dict[str, Tensor]:
    """A demonstrated chunk as the network learns it, and a predicted one as the robot gets it."""
    learned = before({**observation(), "action": chunk("demonstrated", sizes.ACTION_DIM)})["action"]
    return {"learned": learned, "restored": after(chunk("predicted", sizes.ACTION_DIM))}


def network_images(policy: Any, before: Any) -> dict[str, Tensor]:
    """Images that had to be resized as the network takes them: the first row, every second column."""
    images, _ = policy._preprocess_images(before(observation()))
    resized = [name for name, shape in sizes.CAMERAS.items() if shape != (sizes.IMAGE_SIZE, sizes.IMAGE_SIZE)]
    return {name: images[list(sizes.CAMERAS).index(name)][0, :, :, ::2] for name in resized}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor.contiguous() for name, tensor in tensors.items()}


# Commands


def made_by() -> dict[str, str]:
    return {name: version(name) for name in ("lerobot", "transformers", "torch")}


def golden(family: str, path: str) -> None:
    policy = filled(family)
    pipelines = processors(policy.config)
    relative = {"use_relative_actions": True, "action_feature_names": sizes.ACTION_NAMES}
    with torch.no_grad():
        tensors = prefixed("network", network_tensors(family, policy)) | prefixed("policy", answers(policy, *pipelines))
        tensors |= prefixed("absolute", demonstration(*pipelines))
        tensors |= prefixed("relative", demonstration(*processors(configuration(family, **relative))))
        tensors |= prefixed("images", network_images(policy, pipelines[0]))
    save_file(tensors, path, made_by())


def steps(family: str, path: str) -> None:
    """Actions after other numbers of steps, in float32 and with the whole network in float64."""
    tensors = {}
    for precision, entered in {"float32": nullcontext(), "float64": in_float64()}.items():
        with entered, torch.no_grad():
            policy, (images, *others) = filled(family), _in_default_precision(arguments(family))
            given = [[((image + 1) * 127.5).round() / 127.5 - 1 for image in images], *others]
            noise = _in_default_precision([chunk("noise")])[0]
            for count in sizes.OTHER_STEPS:
                tensors[f"{precision}.{count}"] = policy.model.sample_actions(*given, noise=noise, num_steps=count)
    save_file(tensors, path, made_by())


def _in_default_precision(values: list[Any]) -> list[Any]:
    """The tensors of `arguments`, floats in the default type."""
    return [
        _in_default_precision(value)
        if isinstance(value, list)
        else value.to(torch.get_default_dtype() if value.is_floating_point() else value.dtype)
        for value in values
    ]


def write_keys(family: str, path: str) -> None:
    """Keys and shapes at full size, and what stays float32 where the rest is bfloat16."""
    with torch.device("meta"):
        full, half = (_full_size(family, dtype) for dtype in ("float32", "bfloat16"))
    note = "lerobot fills embed_tokens from paligemma.lm_head where a file lacks it; every other key must be there"
    key_lists.write(path, full, half.state_dict(), note, made_by())


def _full_size(family: str, dtype: str) -> Any:
    config = getattr(modeling(family), f"{family.upper()}Config")(device="cpu", dtype=dtype)
    config.device = "meta"
    return policy_class(family)(config)


def checkpoint(family: str, folder: str) -> None:
    """A folder such as lerobot's training leaves behind, written by lerobot."""
    policy = filled(family)
    for part in (policy, *processors(policy.config)):
        part.save_pretrained(folder)


def load(family: str, folder: str) -> None:
    """Keys that lerobot misses or does not know, and what it answers; the last line is JSON.

    lerobot itself goes on with random weights where keys or shapes do not fit, and says so in a printed line only.
    """
    found: dict[str, Any] = {"error": f"lerobot read no model.safetensors in {folder}"}
    with small(family), patch.object(torch.nn.Module, "load_state_dict", _recorder(found)):
        policy = policy_class(family).from_pretrained(folder).eval()
    with torch.no_grad():
        tensors = answers(policy, *processors(policy.config, folder))
    print(json.dumps(found | made_by() | {name: tensor.tolist() for name, tensor in tensors.items()}))


def _recorder(found: dict[str, Any]) -> Callable[..., Any]:
    original = torch.nn.Module.load_state_dict

    def recorded(module: Any, state: Any, **_: Any) -> Any:
        try:
            result = original(module, state, strict=False)
        except RuntimeError as error:
            found.update(error=str(error))
            raise
        found.update(error=None, missing=result.missing_keys, unexpected=result.unexpected_keys)
        return result

    return recorded


def adapter(family: str, folder: str, merged: str) -> None:
    """Differences of lerobot's actions with our adapters, loaded as its factory does, to ours merged, and the base."""
    config = PreTrainedConfig.from_pretrained(folder)
    assert config.use_peft, "lerobot takes the folder for a whole checkpoint"
    settings = PeftConfig.from_pretrained(folder)
    with small(family), torch.no_grad():
        base = policy_class(family).from_pretrained(settings.base_model_name_or_path, config=config)
        whole = policy_class(family).from_pretrained(merged).eval()
        pipelines = processors(whole.config, folder)
        plain = answers(base.eval(), *pipelines)["actions"]
        on_base = PeftModel.from_pretrained(base, folder, config=settings).eval()
        found, expected = (answers(policy, *pipelines)["actions"] for policy in (on_base, whole))
    gaps = {"to_merged": found - expected, "to_base": found - plain, "largest": found}
    print(json.dumps({name: float(gap.abs().max()) for name, gap in gaps.items()} | made_by()))


def measure(family: str) -> None:
    """Seconds of lerobot's own `sample_actions`, network and inputs as in `golden`, one thread: medians of 20 calls."""
    torch.set_num_threads(1)
    policy, given = filled(family), arguments(family)
    taken: dict[int, list[tuple[float, float]]] = {4: [], 10: []}
    for _ in range(25):
        for steps, times in taken.items():
            times.append(_seconds(partial(policy.model.sample_actions, *given, num_steps=steps)))
    medians = {
        steps: [statistics.median(column) for column in zip(*times[5:], strict=True)] for steps, times in taken.items()
    }
    report = {f"steps_{steps}": {"wall": wall, "cpu": cpu} for steps, (wall, cpu) in medians.items()}
    print(json.dumps(report | made_by()))


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


COMMANDS = {
    "golden": golden,
    "steps": steps,
    "keys": write_keys,
    "checkpoint": checkpoint,
    "load": load,
    "adapter": adapter,
    "time": measure,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
