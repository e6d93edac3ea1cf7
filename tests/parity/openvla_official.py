"""What OpenVLA's and OpenVLA-OFT's own code makes of `recipe`. Runs in an environment of its own.

    python3.11 -m venv oracle && oracle/bin/pip install torch==2.13.0 numpy
    oracle/bin/pip install transformers==4.40.1 tokenizers==0.19.1 safetensors pillow
    oracle/bin/pip install psutil && oracle/bin/pip install --no-deps timm==0.9.10 torchvision==0.28.0
    oracle/bin/pip install --no-deps peft==0.11.1 accelerate==1.15.0  # film, film_l1
    oracle/bin/python openvla_official.py golden oft CHECKOUT golden/openvla_oft.safetensors
    oracle/bin/python openvla_official.py golden l1 CHECKOUT golden/openvla_oft_l1.safetensors
    oracle/bin/python openvla_official.py golden film CHECKOUT golden/openvla_oft_film.safetensors
    oracle/bin/python openvla_official.py golden film_l1 CHECKOUT golden/openvla_oft_l1_film.safetensors
    oracle/bin/python openvla_official.py golden openvla CHECKOUT golden/openvla.safetensors
    oracle/bin/python openvla_official.py keys openvla CHECKOUT golden/keys_openvla.json
    oracle/bin/python openvla_official.py load oft CHECKOUT FOLDER  # an export → keys that differ, actions

CHECKOUT is a checkout of github.com/openvla/openvla (openvla), else of github.com/moojink/openvla-oft. PYTHONPATH
names this repository's checkout, and for the other before it `src` of github.com/moojink/transformers-openvla-oft,
whose Llama attends in both directions. torchvision's compiled operators need CUDA and are only declared here; no image
needs them.
"""

import json
import sys
import types
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import MagicMock, patch

import numpy as np
import torch

OPERATORS = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm  # noqa: E402
import transformers  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

from tests.support import openvla_sizes as sizes  # noqa: E402
from tests.support import recipe  # noqa: E402


def import_official(checkout: str) -> tuple[types.ModuleType, types.ModuleType, types.ModuleType]:
    """Import the modelling, processing and configuration files, without the rest of their package."""
    for name in ("", ".extern", ".extern.hf", ".training", ".vla", ".models"):
        package = types.ModuleType(f"prismatic{name}")
        package.__path__ = [str(Path(checkout, "prismatic", *name.strip(".").split(".")))]
        sys.modules[package.__name__] = package
    files = (f"prismatic.extern.hf.{name}_prismatic" for name in ("modeling", "processing", "configuration"))
    return tuple(__import__(name, fromlist=["any"]) for name in files)


def create_tower(name: str, *, img_size: int, **_: object) -> VisionTransformer:
    """A tiny tower with what timm's function of this name sets besides sizes."""
    dino = name == sizes.TOWERS[1]
    given = sizes.DINO if dino else sizes.SIGLIP
    special = {"init_values": 1e-5, "reg_tokens": sizes.REGISTERS, "no_embed_class": True}
    return VisionTransformer(
        img_size=sizes.RESOLUTION, patch_size=sizes.PATCH, embed_dim=given["width"], depth=given["layers"],
        num_heads=given["heads"], mlp_ratio=given["hidden"] / given["width"] + 1e-9, num_classes=0,
        **(special if dino else {"class_token": False, "global_pool": "map"}),
    )  # fmt: skip


def load_recipe(module: torch.nn.Module, start: str = "") -> None:
    """Fill a module with the recipe's weights, whose names begin with `start`."""
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    weights = {name: torch.from_numpy(sizes.weight(start + name, shape)) for name, shape in shapes.items()}
    module.load_state_dict(weights)


def add_film(network: torch.nn.Module, checkout: str, folder: str) -> torch.nn.Module:
    """The network with FiLM by the official evaluation's function, but in float32; what that file imports is not used.

    A folder's part, which the function loads strictly, is made a pickle as the export says.
    """
    unused = ["tensorflow", "json_numpy", "diffusers", "diffusers.schedulers", "diffusers.schedulers.scheduling_ddim"]
    unused += [f"prismatic.vla.datasets{name}" for name in ("", ".rlds", ".rlds.utils", ".rlds.utils.data_utils")]
    with patch.dict(sys.modules, {name: MagicMock() for name in unused}), patch.object(sys, "path", [checkout]):
        utils = __import__("experiments.robot.openvla_utils", fromlist=["any"])
    stay = patch.object(utils.FiLMedPrismaticVisionBackbone, "to", lambda module, _dtype: module)
    with TemporaryDirectory() as place, stay:
        settings = types.SimpleNamespace(lora_rank=sizes.FILM_RANK, pretrained_checkpoint=place)
        if folder:
            (part,) = Path(folder).glob("vision_backbone--*_checkpoint.safetensors")
            torch.save(load_file(part), Path(place, f"{part.stem}.pt"))
            return utils._apply_film_to_vla(network, settings)
        torch.save({}, Path(place, "vision_backbone--1_checkpoint.pt"))
        with patch.object(torch.nn.Module, "load_state_dict"):
            network = utils._apply_film_to_vla(network, settings)
        load_recipe(network.vision_backbone, "vision_backbone.")
        return network


def build(
    checkout: str, cameras: int = 1, folder: str = "", film: bool = False
) -> tuple[torch.nn.Module, types.ModuleType]:
    """The official network with the recipe's weights, or that of a folder."""
    timm.create_model = create_tower
    modeling, processing, configuration = import_official(checkout)
    cls = modeling.OpenVLAForActionPrediction
    if folder:
        network = cls.from_pretrained(folder, torch_dtype=torch.float32).eval()
    else:
        entries = sizes.config()
        for name in ("image_sizes", "timm_model_ids", "hf_llm_id", "timm_override_act_layers"):
            del entries[name]  # the class has them from the names of the towers
        network = cls(configuration.OpenVLAConfig(**entries)).eval()
        load_recipe(network)
    network = add_film(network, checkout, folder).eval() if film else network
    if cameras > 1:
        network.vision_backbone.set_num_images_in_input(cameras)
    return network, processing


def make_pixels(processing: types.ModuleType, cameras: int) -> torch.Tensor:
    """The recipe's images by the official processor, float32 [rows, 6 · cameras, r, r]."""
    given = {key: value for key, value in sizes.preprocessor().items() if key != "tvf_normalize_params"}
    processor = processing.PrismaticImageProcessor(**given)
    size = sizes.RESOLUTION
    pictures = [recipe.picture(name, sizes.ROWS, size, size) for name in sizes.CAMERAS[:cameras]]
    rows = [[Image.fromarray(picture[row]) for picture in pictures] for row in range(sizes.ROWS)]
    return torch.cat(
        [torch.cat([processor(each, return_tensors="pt")["pixel_values"] for each in row], dim=1) for row in rows]
    )


def make_prompts() -> list[torch.Tensor]:
    """The recipe's prompts without padding, int64 [1, length]."""
    ids = recipe.words("tokens", sizes.ROWS, sizes.TOKEN_LENGTH, sizes.WORDS)
    return [torch.from_numpy(row[row != 0])[None] for row in ids]


def make_state_projector(checkout: str) -> torch.nn.Module:
    """The official projector of the state, with the recipe's weights."""
    module = __import__("prismatic.models.projectors", fromlist=["any"])
    projector = module.ProprioProjector(llm_dim=sizes.WIDTH, proprio_dim=sizes.STATE_DIM)
    load_recipe(projector, "proprio_projector.")
    return projector


def make_action_head() -> torch.nn.Module:
    """The official L1 head with the recipe's weights; its file imports a scheduler, which only the other head uses."""
    for name in ("diffusers", "diffusers.schedulers", "diffusers.schedulers.scheduling_ddim"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["diffusers.schedulers.scheduling_ddim"].DDIMScheduler = object
    module = __import__("prismatic.models.action_heads", fromlist=["any"])
    head = module.L1RegressionActionHead(sizes.WIDTH, sizes.HEAD_HIDDEN, sizes.ACTION_DIM)
    load_recipe(head, "action_head.")
    return head


def normalised_state() -> np.ndarray:
    """The recipe's state as the official evaluation normalises it (experiments/robot/openvla_utils.py)."""
    known = sizes.statistics()[sizes.KEY]["proprio"]
    low, high = np.array(known["q01"]), np.array(known["q99"])
    state = recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM))
    return np.clip(2 * (state - low) / (high - low + 1e-8) - 1, -1, 1)


def record_logits(network: torch.nn.Module) -> list[torch.Tensor]:
    """Collect the logits of every pass of the language model from now on."""
    kept: list[torch.Tensor] = []
    network.language_model.register_forward_hook(lambda _m, _i, result: kept.append(result.logits.detach()))
    return kept


@torch.no_grad()
def golden_oft(checkout: str, folder: str = "", film: bool = False) -> dict[str, torch.Tensor]:
    """Logits of the places, and actions, of each variant; and the prepared picture of one row."""
    tensors = {}
    for name, (cameras, reads_state) in sizes.VARIANTS.items():
        network, processing = build(checkout, cameras, folder, film)
        kept, pixels, places = (
            record_logits(network),
            make_pixels(processing, cameras),
            sizes.HORIZON * sizes.ACTION_DIM,
        )
        state = {"proprio": None, "proprio_projector": make_state_projector(checkout)} if reads_state else {}
        actions, logits = [], []
        for row, prompt in enumerate(make_prompts()):
            state |= {"proprio": normalised_state()[row]} if reads_state else {}
            mask = torch.ones_like(prompt)
            given = {
                "pixel_values": pixels[[row]],
                "attention_mask": mask,
                "unnorm_key": next(iter(network.norm_stats)),
                "use_film": film,
                **state,
            }
            actions.append(torch.from_numpy(network.predict_action(input_ids=prompt, **given)[0]))
            logits.append(
                kept[-1][0, -places - 2 : -2, sizes.VOCABULARY - sizes.PADDING_ROWS - sizes.BINS :][:, : sizes.BINS]
            )
        tensors |= {f"{name}/actions": torch.stack(actions), f"{name}/logits": torch.stack(logits)[:, :: sizes.STEP]}
        tensors |= {f"{name}/pixels": pixels[:1]} if cameras == 1 else {}
    return {name: value.float().contiguous() for name, value in tensors.items()}


@torch.no_grad()
def golden_l1(checkout: str, folder: str = "", film: bool = False) -> dict[str, torch.Tensor]:
    """Actions of each variant with the L1 head, in the robot's units, and as the head gives them."""
    tensors = {}
    for name, (cameras, reads_state) in sizes.VARIANTS.items():
        network, processing = build(checkout, cameras, folder, film)
        pixels, head, predicted, actions = make_pixels(processing, cameras), make_action_head(), [], []
        head.model.register_forward_hook(lambda _m, _i, result, kept=predicted: kept.append(result[0]))
        for row, prompt in enumerate(make_prompts()):
            state = {"proprio": normalised_state()[row], "proprio_projector": make_state_projector(checkout)}
            given = {"pixel_values": pixels[[row]], "attention_mask": torch.ones_like(prompt), "action_head": head}
            given |= {"unnorm_key": next(iter(network.norm_stats)), "use_film": film, **(state if reads_state else {})}
            actions.append(torch.from_numpy(network.predict_action(input_ids=prompt, **given)[0]))
        tensors |= {f"{name}/actions": torch.stack(actions), f"{name}/predicted": torch.stack(predicted)}
    return {name: value.float().contiguous() for name, value in tensors.items()}


@torch.no_grad()
def golden_openvla(checkout: str, folder: str = "") -> dict[str, torch.Tensor]:
    """Actions chosen one entry after another; logits of given entries in one pass, with the prompt's empty token."""
    network, processing = build(checkout, folder=folder)
    pixels, actions, logits = make_pixels(processing, 1), [], []
    first = sizes.VOCABULARY - sizes.PADDING_ROWS - sizes.BINS
    for row, prompt in enumerate(make_prompts()):
        mask = torch.ones_like(prompt)
        given = {"pixel_values": pixels[[row]], "attention_mask": mask, "unnorm_key": next(iter(network.norm_stats))}
        actions.append(torch.from_numpy(network.predict_action(input_ids=prompt, do_sample=False, **given)))
        bins = torch.from_numpy(recipe.words(f"bins{row}", 1, sizes.ACTION_DIM, sizes.BINS, sizes.ACTION_DIM - 1))
        ids = torch.cat([prompt, torch.tensor([[29_871]]), bins[:, :-1] + first], dim=1)
        whole = network(input_ids=ids, pixel_values=pixels[[row]], attention_mask=torch.ones_like(ids)).logits
        logits.append(whole[0, -sizes.ACTION_DIM :, first : first + sizes.BINS])
    return {"actions": torch.stack(actions).float().contiguous(), "logits": torch.stack(logits).contiguous()}


GOLDEN = {
    "oft": golden_oft,
    "l1": golden_l1,
    "film": partial(golden_oft, film=True),
    "film_l1": partial(golden_l1, film=True),
    "openvla": golden_openvla,
}


def keys(checkout: str) -> dict[str, list[int]]:
    """Names and shapes of the full size, as timm and transformers make them from the published config.json."""
    modeling, _, configuration = import_official(checkout)
    entries = {"vision_backbone_id": sizes.TOWERS[0], "llm_backbone_id": "llama2-7b-pure"}
    text = {"model_type": "llama", "pad_token_id": 32_000, "vocab_size": 32_064}
    on_cpu = partial(torch.linspace, device="cpu")  # timm makes Python numbers of it
    with patch("torch.linspace", on_cpu), torch.device("meta"):
        network = modeling.OpenVLAForActionPrediction(configuration.OpenVLAConfig(**entries, text_config=text))
    return {name: list(value.shape) for name, value in sorted(network.state_dict().items())}


def load(policy: str, checkout: str, folder: str) -> dict[str, object]:
    """An export's keys against the official class's, and the actions of the official class loaded from it."""
    with safe_open(Path(folder) / "model.safetensors", "pt") as stored:
        found = set(stored.keys())
    expected = set(build(checkout)[0].state_dict())
    report = {"missing": sorted(expected - found), "unexpected": sorted(found - expected)}
    if any(report.values()):
        return report
    made = GOLDEN[policy](checkout, folder)
    return {**report, "actions": {name: value.tolist() for name, value in made.items() if name.endswith("actions")}}


def main(command: str, policy: str, checkout: str, path: str) -> None:
    """Run one command of the module's docstring."""
    assert transformers.__version__.startswith("4.40.1"), transformers.__version__
    if command == "golden":
        save_file(GOLDEN[policy](checkout), path)
    elif command == "keys":
        lines = (f"{json.dumps(name)}:{json.dumps(shape)}" for name, shape in keys(checkout).items())
        Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif command == "load":
        print(json.dumps(load(policy, checkout, path)))
    else:
        raise SystemExit(f"{command!r} is none of golden, keys, load.")


if __name__ == "__main__":
    main(*sys.argv[1:])
