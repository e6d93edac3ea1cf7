"""Small OpenVLAs with the recipe's weights, their folders in the true layout, and the official code's results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment, Normalisation
from embodied_rl.assembly.build import build_backbone
from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.schema import PolicyNode
from embodied_rl_policies.openvla.autoregressive import OpenVLA
from embodied_rl_policies.openvla.oft import OpenVLAOFT, OpenVLAOFTL1
from tests.support import openvla_sizes as sizes
from tests.support import recipe
from tests.support.tiny_tokenizer import llama_tokenizer

GOLDEN = Path(__file__).parents[1] / "parity" / "golden"
PART = "proprio_projector--150000_checkpoint.safetensors"
HEAD = "action_head--150000_checkpoint.safetensors"
VISION = "vision_backbone--150000_checkpoint.safetensors"

SIZES: dict[str, Any] = {
    "width": sizes.WIDTH,
    "layers": sizes.LAYERS,
    "hidden": sizes.HIDDEN,
    "heads": sizes.HEADS,
    "key_value_heads": sizes.KEY_VALUE_HEADS,
    "vocabulary": sizes.VOCABULARY,
    "padding_rows": sizes.PADDING_ROWS,
    **{f"dino_{name}": value for name, value in sizes.DINO.items()},
    **{f"siglip_{name}": value for name, value in sizes.SIGLIP.items()},
    "registers": sizes.REGISTERS,
    "patch": sizes.PATCH,
    "resolution": sizes.RESOLUTION,
    "crop_area": 1.0,
}
HEADS = {"dino_heads": sizes.DINO["heads"], "siglip_heads": sizes.SIGLIP["heads"], "crop_area": 1.0}
"""What no folder says of towers that were never published, and no crop."""
CLASSES: dict[str, type[Any]] = {"openvla": OpenVLA, "openvla_oft": OpenVLAOFT, "openvla_oft_l1": OpenVLAOFTL1}


def build(name: str = "openvla_oft", variant: str = "one", **changes: Any) -> Any:
    """A tiny network with fresh weights."""
    (cameras, reads_state), cls = sizes.VARIANTS[variant], CLASSES[name]
    head = {"head_hidden": sizes.HEAD_HIDDEN, "head_blocks": sizes.HEAD_BLOCKS} if name.endswith("l1") else {}
    config = cls.Config(**{**SIZES, **head, "state_dim": sizes.STATE_DIM if reads_state else None, **changes})
    size = (sizes.RESOLUTION, sizes.RESOLUTION)
    made = (config, sizes.ACTION_DIM, sizes.STATE_DIM, sizes.CAMERAS[:cameras], size, sizes.VOCABULARY)
    return cls(*made, sizes.TOKEN_LENGTH)


def network(name: str = "openvla_oft", variant: str = "one", **changes: Any) -> Any:
    """A tiny network with the recipe's weights."""
    made = build(name, variant, **changes)
    with torch.no_grad():
        for key, value in made.state_dict().items():
            value.copy_(torch.from_numpy(sizes.weight(official_name(key), value.shape)))
    return made


def official_name(key: str) -> str:
    """The name of a tensor in the official network."""
    return key.replace(".down.", ".lora_A.default.").replace(".up.", ".lora_B.default.")


def tensors(network: Any) -> dict[str, Tensor]:
    """The tensors of a whole checkpoint, by official names: the network's, and those that it does not read."""
    unread = {key: torch.from_numpy(sizes.weight(key, shape)) for key, shape in network.unread_shapes().items()}
    return {official_name(key): value for key, value in (network.state_dict() | unread).items()}


def write_folder(
    place: Path,
    variant: str = "one",
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    statistics: bool = True,
    head: bool = False,
    film: bool = False,
) -> Path:
    """A folder of Hugging Face's layout with the recipe's weights, sharded if there are several files.

    `head`: whether there is an L1 head; `film`: whether the vision towers read the prompt.
    """
    place.mkdir(parents=True)
    name, changes = "openvla_oft_l1" if head else "openvla_oft", {"film_rank": sizes.FILM_RANK} if film else {}
    made = {key: value.to(dtype) for key, value in tensors(network(name, variant, **changes)).items()}
    parts = ("proprio_projector.", PART), ("action_head.", HEAD), ("vision_backbone.vision_backbone.", VISION)
    for start, file in parts:
        part = {key: made.pop(key) for key in list(made) if key.startswith(start)}
        outer = "" if file == VISION else "module."
        if part:
            save_file({f"{outer}{key.partition('.')[2]}": value for key, value in part.items()}, place / file)
    names = sorted(made)
    if shards == 1:
        save_file(made, place / "model.safetensors", {"format": "pt"})
    else:
        files = {key: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors" for index, key in enumerate(names)}
        for file in set(files.values()):
            save_file({key: made[key] for key in names if files[key] == file}, place / file, {"format": "pt"})
        index = {"metadata": {"total_size": 1}, "weight_map": files}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    contents = {"config.json": sizes.config(), "preprocessor_config.json": sizes.preprocessor()}
    contents |= {"dataset_statistics.json": sizes.statistics()} if statistics else {}
    for file, content in contents.items():
        (place / file).write_text(json.dumps(content, indent=2))
    (place / "tokenizer.json").write_text(llama_tokenizer())
    return place


def observation(variant: str = "one") -> PolicyInput:
    """What the golden tensors were made from."""
    cameras, _ = sizes.VARIANTS[variant]
    size = sizes.RESOLUTION
    images = {name: torch.from_numpy(recipe.picture(name, sizes.ROWS, size, size)) for name in sizes.CAMERAS[:cameras]}
    state = torch.from_numpy(recipe.normal("state", (sizes.ROWS, sizes.STATE_DIM)))
    known = sizes.statistics()[sizes.KEY]["proprio"]
    normal = Normalisation.from_bounds("quantiles", known["q01"], np.array(known["q99"]) + 1e-8).normalise(state)
    tokens = recipe.words("tokens", sizes.ROWS, sizes.TOKEN_LENGTH, sizes.WORDS)
    return PolicyInput(images, normal, torch.from_numpy(tokens))


def golden(name: str) -> dict[str, Tensor]:
    """The recorded tensors of the official code, "openvla" or "openvla_oft"."""
    return load_file(GOLDEN / f"{name}.safetensors")


def simulator(cameras: tuple[str, ...] = ("front", "wrist"), **changes: Any) -> SimulatorSpec:
    """One with a robot as in LIBERO, whose actions no limit cuts but the gripper's."""
    size = sizes.RESOLUTION
    spec = SimulatorSpec(
        cameras=tuple(Camera(name, size, size) for name in cameras),
        state_names=tuple(f"joint_{index}" for index in range(sizes.STATE_DIM)),
        action_names=(*(f"move_{index}" for index in range(sizes.ACTION_DIM - 1)), "close_gripper"),
        action_low=(-100.0,) * (sizes.ACTION_DIM - 1) + (-1.0,),
        action_high=(100.0,) * (sizes.ACTION_DIM - 1) + (1.0,),
        control_hz=10,
        horizon=20,
        tasks=(Task("pick up the cube", "only"),),
        words=("pick", "up", "the", "cube"),
    )
    return replace(spec, **changes)


def attach(
    folder: Path, name: str = "openvla_oft", spec: SimulatorSpec | None = None, options: Any = None, **node: Any
) -> tuple[Any, Embodiment]:
    """The network of a folder, and its robot in `simulator`."""
    wrist = "wrist" if (folder / PART).is_file() else None
    told = {"cameras": {"full_image": "front", "wrist_image": wrist}, "gripper": "one_zero_binary"} | node
    chosen = PolicyNode(name, checkpoint=str(folder), options=HEADS | (options or {}), **told)
    return build_backbone(chosen, spec or simulator())


def given_bins() -> Tensor:
    """The bins of OpenVLA's golden logits, int64 [rows, 1, D]."""
    shortest = sizes.ACTION_DIM - 1
    rows = (recipe.words(f"bins{row}", 1, sizes.ACTION_DIM, sizes.BINS, shortest) for row in range(sizes.ROWS))
    return torch.from_numpy(np.concatenate(list(rows)))[:, None]


def choose_in_order(network: OpenVLA, context: Context) -> Tensor:
    """The likeliest bins int64 [rows, D], one after another."""
    bins = torch.zeros(len(context), 0, dtype=torch.int64)
    for _ in range(sizes.ACTION_DIM):
        bins = torch.cat([bins, network.next_logits(context, bins).argmax(dim=-1, keepdim=True)], dim=1)
    return bins


def restore(unit: Tensor) -> Tensor:
    """Actions [..., D] by the formula of OpenVLA-OFT."""
    known = {name: torch.tensor(values) for name, values in sizes.statistics()[sizes.KEY]["action"].items()}
    scaled = 0.5 * (unit + 1) * (known["q99"] - known["q01"] + 1e-8) + known["q01"]
    return torch.where(known["mask"], scaled, unit)


def difference(one: Tensor, other: Tensor) -> float:
    """The largest one."""
    assert one.shape == other.shape
    return (one.double() - other.double()).abs().max().item()
