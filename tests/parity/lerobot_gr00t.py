"""What lerobot's own GR00T N1.7, which is NVIDIA's, makes of the weights and inputs of `recipe`.

Runs in an environment of its own, on lerobot 0.6.1's modules of the policy alone, which the rest of lerobot, for
Python 3.12, does not load:

    python3.11 -m venv oracle && oracle/bin/pip install torch==2.13.0
    oracle/bin/pip install transformers==5.23.0 safetensors einops dm-tree opencv-python-headless pillow requests
    oracle/bin/pip install --no-deps diffusers==0.42.1 importlib_metadata zipp torchvision==0.28.0
    pip download --no-deps --python-version 3.12 --only-binary=:all: lerobot==0.6.1 && unzip lerobot-*.whl -d lerobot
    oracle/bin/python lerobot_gr00t.py golden golden/gr00t_lerobot.safetensors
    oracle/bin/python lerobot_gr00t.py load FOLDER    # a checkpoint of these sizes → keys that differ, actions

PYTHONPATH names the checkout, for `tests.support`, and the unpacked lerobot. What lerobot's modules import beside, and
what they would ask the hub for, is replaced: steps of processors are called directly.
"""

import json
import sys
import types
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from safetensors.torch import load_file, save_file

OPERATIONS = torch.library.Library("torchvision", "DEF")  # torchvision's own need CUDA
for operation in (
    "deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "qnms", "qroi_align", "roi_align", "roi_pool",
    *(f"_{name}_backward" for name in ("deform_conv2d", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool")),
):  # fmt: skip
    OPERATIONS.define(f"{operation}(Tensor x) -> Tensor")

import transformers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLProcessor  # noqa: E402
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor  # noqa: E402

from tests.support import gr00t_sizes as sizes  # noqa: E402
from tests.support import gr00t_tokenizer, recipe  # noqa: E402
from tests.support.double_precision import in_float64  # noqa: E402

PLACE = next(Path(entry) / "lerobot" for entry in sys.path if (Path(entry) / "lerobot" / "policies").is_dir())


class StandIn(types.ModuleType):
    """A module that has everything."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def stand_in(name: str, path: str | None = None, **known: object) -> None:
    """Register a module that has `known`; a package with a `path` finds its real modules."""
    module = StandIn(name)
    module.__path__ = [] if path is None else [str(PLACE / path)]
    for key, value in known.items():
        setattr(module, key, value)
    sys.modules[name] = module


registry = SimpleNamespace(register=lambda name: lambda cls: cls)
for package in ("", ".policies", ".policies.groot"):
    stand_in(f"lerobot{package}", package.removeprefix(".").replace(".", "/"))
always = {f"_{name}_available": True for name in ("transformers", "diffusers", "datasets")}
stand_in("lerobot.utils.import_utils", require_package=lambda *_, **__: None, **always)
stand_in("lerobot.utils.constants", OBS_STATE="observation.state", OBS_IMAGES="observation.images",
         OBS_IMAGE="observation.image", ACTION="action")  # fmt: skip
stand_in("lerobot.processor", ProcessorStep=object, ProcessorStepRegistry=registry)
for other in (
    "utils",
    "utils.device_utils",
    "datasets",
    "datasets.lerobot_dataset",
    "policies.groot.configuration_groot",
):
    stand_in(f"lerobot.{other}")
defaults: Any = sys.modules["lerobot.policies.groot.configuration_groot"]
defaults.GROOT_ACTION_DECODE_TRANSFORM_LIBERO = "libero"
defaults.N1_7_DEFAULT_IMAGE_CROP_SIZE, defaults.N1_7_DEFAULT_IMAGE_TARGET_SIZE = (230, 230), (256, 256)
stand_in("lerobot.lerobot_types", TransitionKey=SimpleNamespace(
    OBSERVATION="observation", ACTION="action", COMPLEMENTARY_DATA="complementary_data"))  # fmt: skip

groot_n1_7 = import_module("lerobot.policies.groot.groot_n1_7")
processor_groot = import_module("lerobot.policies.groot.processor_groot")


def stay_offline() -> None:
    """Answer what lerobot asks the hub: the backbone's configuration, and its processor."""
    text = sizes.TEXT | {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": 4096}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": sizes.BASE, "mrope_section": sizes.SECTIONS,
                               "mrope_interleaved": True}  # fmt: skip
    found = gr00t_tokenizer.make_tokenizer()
    ids = {f"{name}_token_id": found.token_to_id(token) for name, token in {
        "image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>",
        "vision_end": "<|vision_end|>"}.items()}  # fmt: skip
    config = Qwen3VLConfig(text_config=text, vision_config=sizes.VISION, tie_word_embeddings=True, **ids)
    groot_n1_7._cosmos_reason2_qwen3_vl_config = lambda: config
    processor_groot._build_n1_7_processor = lambda _: make_processor()


def make_processor() -> Qwen3VLProcessor:
    """Qwen3-VL's own processor with a tiny tokenizer and small pictures."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=gr00t_tokenizer.make_tokenizer(), pad_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    for name in ("image", "video"):
        setattr(tokenizer, f"{name}_token", f"<|{name}_pad|>")
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>"))
    shared = {"patch_size": sizes.VISION["patch_size"], "merge_size": sizes.VISION["spatial_merge_size"],
              "size": {"shortest_edge": sizes.LEAST_PIXELS, "longest_edge": sizes.MOST_PIXELS},
              "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shared), tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(), chat_template=gr00t_tokenizer.TEMPLATE,
    )  # fmt: skip
    processor.tokenizer.padding_side = "left"
    return processor


def prepare_as_nvidia() -> torch.Tensor:
    """The patches of the first row's pictures by the transforms of Isaac-GR00T without albumentations."""
    transforms: Any = import_module("torchvision.transforms.v2")
    steps = [transforms.Resize(sizes.TARGET), transforms.CenterCrop(sizes.CUT), transforms.Resize(sizes.TARGET)]
    pictures = [torch.from_numpy(value[0]).permute(2, 0, 1) for value in sizes.pictures().values()]
    made = [transforms.Compose(steps)(picture) for picture in pictures]
    return make_processor().image_processor(made, return_tensors="pt")["pixel_values"]


def build(**changes: Any) -> Any:
    """A GR00T with the recipe's weights."""
    config = groot_n1_7.GR00TN17Config(**sizes.model_config(**changes))
    model = groot_n1_7.GR00TN17(config, load_backbone_weights=False).eval().to(torch.get_default_dtype())
    weights = recipe.weights({key: tuple(value.shape) for key, value in model.state_dict().items()})
    weights["backbone.model.lm_head.weight"] = weights["backbone.model.model.language_model.embed_tokens.weight"]
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return model


def prepare(row: int, **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The pack step and the encoded inputs of one row, by lerobot's steps."""
    kwargs = sizes.processor_config(**changes)["processor_kwargs"]
    raw, robot = sizes.statistics()[sizes.TAG], kwargs["modality_configs"][sizes.TAG]
    flat = {
        f"observation.{kind}" if kind == "state" else kind: processor_groot.flatten_n1_7_modality_stats(
            embodiment_stats=raw, embodiment_config=robot, modality=kind,
            use_percentiles=kwargs["use_percentiles"], use_relative_action=False,
        )
        for kind in sizes.GROUPS
    }  # fmt: skip
    pack = processor_groot.GrootN17PackInputsStep(
        action_horizon=sizes.HORIZON, valid_action_horizon=sizes.TRAINED, video_horizon=1,
        max_state_dim=sizes.STATE_DIM, max_action_dim=sizes.ACTION_DIM, formalize_language=kwargs["formalize_language"],
        embodiment_tag=sizes.TAG, embodiment_mapping=sizes.ROBOTS, stats=flat, clip_outliers=kwargs["clip_outliers"],
        use_percentiles=kwargs["use_percentiles"], video_modality_keys=list(sizes.CAMERAS), raw_stats=raw,
        modality_config=robot,
    )  # fmt: skip
    encode = processor_groot.GrootN17VLMEncodeStep(
        **{key: kwargs[key] for key in ("image_crop_size", "image_target_size", "shortest_image_edge", "crop_fraction",
                                        "use_albumentations", "letter_box_transform")}
    )  # fmt: skip
    seen = {f"observation.images.{name}": torch.from_numpy(value[[row]]).permute(0, 3, 1, 2)
            for name, value in sizes.pictures().items()}  # fmt: skip
    given = {"observation": seen | {"observation.state": torch.from_numpy(sizes.state()[[row]])},
             "complementary_data": {"task": [sizes.INSTRUCTIONS[row]]}}  # fmt: skip
    done = encode(pack(given))
    return pack, done["observation"] | done["complementary_data"]


@torch.no_grad()
def act(model: Any, inputs: dict[str, Any], row: int, steps: int) -> torch.Tensor:
    """Actions [H, D] after Euler steps from the recipe's noise."""
    model.action_head.num_inference_timesteps = steps
    start = torch.from_numpy(sizes.noise()[[row]]).to(torch.get_default_dtype())
    with patch.object(torch, "randn", lambda *_, **__: start.clone()):
        return model.get_action({k: v for k, v in inputs.items() if isinstance(v, torch.Tensor)})["action_pred"][0]


@torch.no_grad()
def golden() -> dict[str, torch.Tensor]:
    """Every variant's prefix and actions; prepared pictures, prompts and states; actions in the robot's units."""
    tensors: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, value: torch.Tensor) -> None:
        tensors.setdefault(name, []).append(value.float() if value.is_floating_point() else value)

    for row in range(sizes.ROWS):
        for name, changes in sizes.PICTURES.items():
            if row == 0:
                keep(f"pixels/{name}", prepare(row, **changes)[1]["pixel_values"][::8])
        if row == 0:
            keep("pixels/bilinear", prepare_as_nvidia()[::8])
        pack, inputs = prepare(row)
        keep("state", inputs["state"][0, 0])
        ids = inputs["input_ids"][0]
        keep("tokens", torch.nn.functional.pad(ids, (0, 200 - len(ids)), value=-1))
        for variant, changes in sizes.VARIANTS.items():
            model = build(**changes)
            prefix = model.backbone(model.prepare_input(dict(inputs))[0])["backbone_features"][0]
            keep(f"{variant}/hidden", prefix.mean(dim=0))
            for steps in (sizes.STEPS, *sizes.OTHER_STEPS) if variant == "base" else (sizes.STEPS,):
                keep(f"{variant}/actions/{steps}", act(model, inputs, row, steps))
        decode = processor_groot.GrootN17ActionDecodeStep(
            raw_stats=pack.raw_stats, modality_config=pack.modality_config, use_percentiles=True, pack_step=pack
        )
        predicted = tensors[f"base/actions/{sizes.STEPS}"][row][None]
        keep("decoded", decode({"action": predicted, "complementary_data": {}})["action"][0])
        with in_float64():
            keep_double = act(build(), inputs, row, sizes.STEPS)
        tensors.setdefault("float64", []).append(keep_double)
    return {name: torch.stack(values).contiguous() for name, values in tensors.items()}


def load(folder: str) -> dict[str, Any]:
    """A checkpoint's keys against lerobot's, and the actions it gives for the recipe's inputs."""
    config = groot_n1_7.GR00TN17Config(**sizes.model_config())
    expected = groot_n1_7.GR00TN17(config, load_backbone_weights=False).state_dict()
    tied = "backbone.model.lm_head.weight"
    found = {key.removeprefix("_groot_model."): value.shape
             for key, value in load_file(Path(folder) / "model.safetensors").items()}  # fmt: skip
    wrong = sorted(key for key in found.keys() & expected.keys() if found[key] != expected[key].shape)
    report: dict[str, Any] = {
        "missing": sorted(expected.keys() - found.keys() - {tied}), "wrong_shapes": wrong,
        "unexpected": sorted(found.keys() - expected.keys()),
    }  # fmt: skip
    if (Path(folder) / "processor_config.json").is_file():  # NVIDIA's layout, which is loaded whole
        with patch.object(groot_n1_7, "snapshot_download", lambda path, **_: path):
            model = groot_n1_7.GR00TN17.from_pretrained(folder).eval().float()
        report["actions"] = [act(model, prepare(row)[1], row, sizes.STEPS).tolist() for row in range(sizes.ROWS)]
    return report


def main(command: str, path: str) -> None:
    """Run one command of the module's docstring."""
    assert transformers.__version__ == "5.23.0", transformers.__version__
    stay_offline()
    if command == "golden":
        save_file(golden(), path)
    elif command == "load":
        print(json.dumps(load(path)))
    else:
        raise SystemExit(f"{command!r} is neither golden nor load.")


if __name__ == "__main__":
    main(*sys.argv[1:])
