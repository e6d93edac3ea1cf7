"""What lerobot's own SmolVLA makes of the weights and inputs of `recipe`. Runs in an environment of its own.

    python3.11 -m venv oracle && oracle/bin/pip install torch==2.13.0
    oracle/bin/pip install --no-deps lerobot==0.4.4
    oracle/bin/pip install transformers==4.53.3 draccus==0.10.0 safetensors einops gymnasium termcolor packaging \\
        deepdiff jsonlines pillow num2words imageio
    oracle/bin/python lerobot_smolvla.py golden golden/smolvla_lerobot.safetensors
    oracle/bin/python lerobot_smolvla.py steps golden/smolvla_lerobot_steps.safetensors  # 6 and 10, float32 and float64
    oracle/bin/python lerobot_smolvla.py keys golden/keys_smolvla_lerobot.json
    oracle/bin/python lerobot_smolvla.py load FOLDER    # a checkpoint of these sizes → keys that differ, actions

PYTHONPATH names the checkout, for `support`. `steps` was made with lerobot 0.6.1 and transformers 5.5.4.
What lerobot imports beside, and no SmolVLA uses, is replaced by empty modules; so is what it would ask the hub for.
Newer transformers of the 4 series (4.56 and 4.57 do) move the patches of float32 images by one position; older ones,
the 5 series, and bfloat16 images, which lerobot's vision tower gets from SmolVLM2's own weights on, have them right.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import transformers  # before the stand-ins, so that it knows what is not there
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

from tests.support import recipe
from tests.support import smolvla_sizes as sizes
from tests.support.double_precision import in_float64

STAND_INS = (
    "torchvision",
    "serial",
    "datasets",
    "pandas",
    "pyarrow",
    "accelerate",
    "cv2",
    "av",
    "lerobot.policies.groot",
)


class StandIn(types.ModuleType):
    """A module that has everything."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `STAND_INS` and what is in them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        known = any(name == stand_in or name.startswith(f"{stand_in}.") for stand_in in STAND_INS)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, StandInFinder())

from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.smolvla import smolvlm_with_expert  # noqa: E402
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig  # noqa: E402
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy, make_att_2d_masks  # noqa: E402


def tiny_language_model() -> SmolVLMConfig:
    """The sizes of `smolvla_sizes`, with layers to cut off and a rotary base that lerobot must not use."""
    text = {
        "model_type": "llama",
        "hidden_size": sizes.WIDTH,
        "intermediate_size": sizes.HIDDEN,
        "num_hidden_layers": sizes.LAYERS + 2,
        "num_attention_heads": sizes.HEADS,
        "num_key_value_heads": sizes.KEY_VALUE_HEADS,
        "head_dim": sizes.HEAD_DIM,
        "vocab_size": sizes.VOCABULARY,
    }
    vision = {
        "hidden_size": sizes.VISION_WIDTH,
        "intermediate_size": sizes.VISION_HIDDEN,
        "num_hidden_layers": sizes.VISION_LAYERS,
        "num_attention_heads": sizes.VISION_HEADS,
        "image_size": sizes.RESOLUTION,
        "patch_size": sizes.PATCH,
    }
    return language_model(text, vision, sizes.PIXEL_SHUFFLE)


def full_language_model() -> SmolVLMConfig:
    """SmolVLM2-500M-Video-Instruct, as its config.json gives it."""
    text = {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49_280,
    }
    vision = {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12}
    return language_model(text, vision, 4)


def language_model(text: dict, vision: dict, scale_factor: int) -> SmolVLMConfig:
    """What both sizes have in common."""
    text = {**text, "rms_norm_eps": 1e-5, "rope_theta": 100_000, "pad_token_id": 2}
    return SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=scale_factor, tie_word_embeddings=False, pad_token_id=2
    )


def policy_config(every: int = 2, framed: bool = False) -> SmolVLAConfig:
    """lerobot's configuration of one of `smolvla_sizes.VARIANTS`."""
    images = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *sizes.PICTURES[camera]))
        for camera in sizes.CAMERAS
    }
    return SmolVLAConfig(
        device="cpu",
        chunk_size=sizes.HORIZON,
        n_action_steps=sizes.HORIZON,
        max_state_dim=sizes.STATE_DIM,
        max_action_dim=sizes.ACTION_DIM,
        resize_imgs_with_padding=(sizes.RESOLUTION, sizes.RESOLUTION),
        tokenizer_max_length=sizes.TOKEN_LENGTH,
        num_steps=sizes.STEPS,
        num_vlm_layers=sizes.LAYERS,
        self_attn_every_n_layers=every,
        add_image_special_tokens=framed,
        input_features={**images, "observation.state": PolicyFeature(FeatureType.STATE, (sizes.STATE_DIM,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (sizes.ACTION_DIM,))},
    )


def stay_offline(config: SmolVLMConfig) -> None:
    """Answer what lerobot asks the hub: a configuration, two token ids, a language model in half precision."""
    tokenizer = SimpleNamespace(
        fake_image_token_id=sizes.FAKE_IMAGE_TOKEN, global_image_token_id=sizes.GLOBAL_IMAGE_TOKEN
    )

    def half_precision(*_: object, **__: object) -> SmolVLMForConditionalGeneration:
        config.text_config.torch_dtype = torch.bfloat16
        return SmolVLMForConditionalGeneration(config).to(torch.bfloat16)

    smolvlm_with_expert.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, **__: config)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(
        from_pretrained=lambda *_, **__: SimpleNamespace(tokenizer=tokenizer)
    )
    smolvlm_with_expert.AutoModelForImageTextToText = SimpleNamespace(from_pretrained=half_precision)


def tiny_policy(every: int, framed: bool) -> SmolVLAPolicy:
    """A SmolVLA with the recipe's weights."""
    stay_offline(tiny_language_model())
    policy = SmolVLAPolicy(policy_config(every, framed)).eval()
    weights = recipe.weights({key: tuple(value.shape) for key, value in policy.state_dict().items()})
    policy.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()}, strict=True)
    return policy


def batch(config: SmolVLAConfig) -> dict[str, torch.Tensor]:
    """The recipe's observation, as lerobot's processors would hand it over, for the features of a configuration.

    Cameras take the pictures in order, and a shorter state the first values.
    """
    tokens = torch.from_numpy(recipe.words("tokens", sizes.ROWS, sizes.TOKEN_LENGTH, sizes.GLOBAL_IMAGE_TOKEN))
    given = {"observation.language.tokens": tokens, "observation.language.attention_mask": tokens != 0}
    state = torch.from_numpy(recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM)))
    given["observation.state"] = state[:, : config.robot_state_feature.shape[0]]
    for key, (camera, size) in zip(config.image_features, sizes.PICTURES.items(), strict=False):
        picture = torch.from_numpy(recipe.picture(camera, sizes.ROWS, *size))
        given[key] = picture.permute(0, 3, 1, 2).float() / 255
    return given


def noise() -> torch.Tensor:
    """What a chunk is denoised from."""
    return torch.from_numpy(recipe.normal("noise", (sizes.ROWS, sizes.HORIZON, sizes.ACTION_DIM)))


@torch.no_grad()
def velocities(policy: SmolVLAPolicy, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The velocity at the noise, at the rotations of `sizes.TIMES`."""
    model = policy.model
    images, image_masks = policy.prepare_images(given)
    embedded, padding, attention = model.embed_prefix(
        images,
        image_masks,
        given["observation.language.tokens"],
        given["observation.language.attention_mask"],
        state=policy.prepare_state(given),
    )
    _, cache = model.vlm_with_expert.forward(
        attention_mask=make_att_2d_masks(padding, attention),
        position_ids=torch.cumsum(padding, dim=1) - 1,
        past_key_values=None,
        inputs_embeds=[embedded, None],
        use_cache=True,
        fill_kv_cache=True,
    )
    times = [torch.tensor(np.roll(sizes.TIMES, turn), dtype=torch.float32) for turn in range(len(sizes.TIMES))]
    return [model.denoise_step(padding, cache, noise(), time) for time in times]


def golden() -> dict[str, torch.Tensor]:
    """Every variant's velocities and actions, and the first row's prepared pictures."""
    tensors = {}
    for name, (every, framed) in sizes.VARIANTS.items():
        policy = tiny_policy(every, framed)
        given = batch(policy.config)
        for index, velocity in enumerate(velocities(policy, given)):
            tensors[f"{name}/velocity/{index}"] = velocity
        tensors[f"{name}/actions"] = policy.predict_action_chunk(given, noise=noise())
        for camera, prepared in zip(sizes.CAMERAS, policy.prepare_images(given)[0], strict=True):
            tensors[f"prepared/{camera}"] = prepared[:1]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def steps() -> dict[str, torch.Tensor]:
    """The base variant's actions after other numbers of steps, in float32 and with the whole network in float64."""
    tensors = {}
    for precision, entered in {"float32": nullcontext(), "float64": in_float64()}.items():
        with entered:
            policy, start = tiny_policy(*sizes.VARIANTS["base"]), noise().to(torch.get_default_dtype())
            given = batch(policy.config)
            given["observation.state"] = given["observation.state"].to(torch.get_default_dtype())
            for count in sizes.OTHER_STEPS:
                policy.config.num_steps = count
                tensors[f"{precision}.{count}"] = policy.predict_action_chunk(given, noise=start).contiguous()
    return tensors


def full_keys() -> dict[str, object]:
    """Keys and shapes of the full size, and what is not float32 when it starts without and with SmolVLM2's weights."""
    stay_offline(full_language_model())
    with torch.device("meta"):
        fresh = SmolVLAPolicy(SmolVLAConfig(device="cpu")).state_dict()
        pretrained = SmolVLAPolicy(SmolVLAConfig(device="cpu", load_vlm_weights=True)).state_dict()
    assert {k: v.shape for k, v in fresh.items()} == {k: v.shape for k, v in pretrained.items()}
    return {
        "shapes": {key: list(value.shape) for key, value in sorted(fresh.items())},
        "fresh": _not_float32(fresh),
        "load_vlm_weights": _not_float32(pretrained),
        "tied": [],
    }


def _not_float32(state: dict[str, torch.Tensor]) -> dict[str, str]:
    return {key: str(value.dtype) for key, value in sorted(state.items()) if value.dtype != torch.float32}


def load(folder: str) -> dict[str, object]:
    """A checkpoint's keys against lerobot's, and the normalised actions it gives for the recipe's inputs."""
    stay_offline(tiny_language_model())
    config = PreTrainedConfig.from_pretrained(folder)
    expected = SmolVLAPolicy(config).state_dict()
    with safe_open(Path(folder) / "model.safetensors", "pt") as stored:
        found = {key: stored.get_slice(key).get_shape() for key in stored.keys()}  # noqa: SIM118
    wrong = sorted(k for k in found.keys() & expected.keys() if list(expected[k].shape) != list(found[k]))
    report = {"missing": sorted(expected.keys() - found.keys()), "unexpected": sorted(found.keys() - expected.keys())}
    if any((*report.values(), wrong)):
        return {**report, "wrong_shapes": wrong}
    policy = SmolVLAPolicy.from_pretrained(folder, config=config, strict=True)
    actions = policy.predict_action_chunk(batch(config), noise=noise())
    return {**report, "actions": actions.tolist()}


def main(command: str, path: str) -> None:
    """Run one command of the module's docstring."""
    assert transformers.__version__.startswith(("4.53", "5.")), transformers.__version__
    if command == "golden":
        save_file(golden(), path)
    elif command == "steps":
        save_file(steps(), path, {name: version(name) for name in ("lerobot", "transformers", "torch")})
    elif command == "keys":
        Path(path).write_text(json.dumps(full_keys(), indent=0) + "\n")
    elif command == "load":
        print(json.dumps(load(path)))
    else:
        raise SystemExit(f"{command!r} is none of golden, steps, keys, load.")


if __name__ == "__main__":
    main(*sys.argv[1:])
