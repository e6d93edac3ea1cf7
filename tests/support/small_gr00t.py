"""A small GR00T with the recipe's weights, as a folder of NVIDIA's, and what lerobot's own made of the recipe's inputs."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.assembly import build
from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.policy import Context, PolicyInput
from embodied_rl.interfaces.sim import Camera, Observation, SimulatorSpec, Task
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.schema import PolicyNode
from embodied_rl_policies.gr00t.policy import Gr00t
from tests.support import gr00t_sizes as sizes
from tests.support import gr00t_tokenizer, recipe

GOLDEN_FILE = Path(__file__).parents[1] / "parity" / "golden" / "gr00t_lerobot.safetensors"
TOLD = {
    "embodiment": sizes.TAG, "expert_heads": sizes.EXPERT["num_attention_heads"],
    "vision_heads": sizes.VISION["num_heads"], "deepstack": sizes.VISION["deepstack_visual_indexes"],
    "rotary_sections": sizes.SECTIONS, "least_pixels": sizes.LEAST_PIXELS, "most_pixels": sizes.MOST_PIXELS,
}  # fmt: skip
"""What neither tensors nor files tell of sizes that were never published."""
CLOSE = 1e-5
"""Of float32, between two projects."""


def golden() -> dict[str, Tensor]:
    """What `parity/lerobot_gr00t.py golden` recorded."""
    return load_file(GOLDEN_FILE)


def shapes(**changes: Any) -> dict[str, tuple[int, ...]]:
    """NVIDIA's name → shape of the tensors of a variant."""
    options = Gr00t.Config(**config(**changes))
    with torch.device("meta"):
        network = Gr00t(options, 4, 6, sizes.CAMERAS, sizes.PICTURE, 1, options.token_length)
    named = {
        weight_names.to_their_name(Gr00t, name): tuple(value.shape) for name, value in network.state_dict().items()
    }
    return named | {"backbone.model.model.language_model.norm.weight": (options.width,)}


def config(**changes: Any) -> dict[str, Any]:
    """Our keys of the sizes, with changes of config.json."""
    model, text, vision = sizes.model_config(**changes), sizes.TEXT, sizes.VISION
    mixer = model["vl_self_attention_cfg"]
    return {
        "width": text["hidden_size"], "layers": sizes.KEPT_LAYERS, "hidden": text["intermediate_size"],
        "heads": text["num_attention_heads"], "key_value_heads": text["num_key_value_heads"],
        "head_dim": text["head_dim"], "vocabulary": text["vocab_size"], "rotary_sections": tuple(sizes.SECTIONS),
        "vision_width": vision["hidden_size"], "vision_layers": vision["depth"],
        "vision_hidden": vision["intermediate_size"], "vision_heads": vision["num_heads"],
        "vision_positions": vision["num_position_embeddings"], "patch": vision["patch_size"],
        "deepstack": tuple(vision["deepstack_visual_indexes"]), "expert_width": model["input_embedding_dim"],
        "expert_layers": sizes.EXPERT["num_layers"], "expert_heads": sizes.EXPERT["num_attention_heads"],
        "expert_hidden": 4 * model["input_embedding_dim"], "feature_width": model["hidden_size"],
        "mixer_layers": mixer["num_layers"], "mixer_heads": mixer.get("num_attention_heads", 1),
        "mixer_hidden": 4 * text["hidden_size"], "prefix_norm": model["use_vlln"],
        "alternate": model["use_alternate_vl_dit"], "robots": sizes.MOST_ROBOTS, "robot": sizes.ROBOTS[sizes.TAG],
        "positions": sizes.PLACES if model["add_pos_embed"] else 0, "horizon": sizes.HORIZON,
        "trained": sizes.TRAINED, "action_dim": sizes.ACTION_DIM, "state_dim": sizes.STATE_DIM,
        "token_length": 60, "least_pixels": sizes.LEAST_PIXELS, "most_pixels": sizes.MOST_PIXELS,
        "target_height": sizes.TARGET[0], "target_width": sizes.TARGET[1], "shortest_edge": 32, "cut_fraction": 0.95,
        "state_sizes": tuple(sizes.GROUPS["state"].values()), "state_forms": ("clipped",) * len(sizes.GROUPS["state"]),
    }  # fmt: skip


def weights(**changes: Any) -> dict[str, Tensor]:
    """NVIDIA's names → the recipe's weights of a variant."""
    return {name: torch.from_numpy(value) for name, value in recipe.weights(shapes(**changes)).items()}


def nvidia(folder: Path, *, processor: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder such as Isaac-GR00T's training leaves behind, beside a folder `tokenizer`.

    Args:
        folder: it is made.
        processor: changes of processor_config.json.
        changes: of config.json.
    """
    folder.mkdir(parents=True)
    save_file(weights(**changes), folder / "model.safetensors", {"format": "pt"})
    small = {
        "config.json": sizes.model_config(**changes),
        "processor_config.json": sizes.processor_config(**(processor or {})),
        "statistics.json": sizes.statistics(),
        "embodiment_id.json": sizes.ROBOTS,
    }
    for name, content in small.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    tokenizer(folder.parent)
    return folder


def tokenizer(folder: Path) -> Path:
    """A tokenizer.json in a folder `tokenizer`."""
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    (place / "tokenizer.json").write_text(gr00t_tokenizer.make_tokenizer().to_str())
    return place


def simulator() -> SimulatorSpec:
    """A simulator whose state and actions are those of the folder's robot."""
    names = {kind: [f"{key}{index}" for key, size in groups.items() for index in range(size)]
             for kind, groups in sizes.GROUPS.items()}  # fmt: skip
    return SimulatorSpec(
        cameras=tuple(Camera(name, *sizes.PICTURE) for name in sizes.CAMERAS),
        state_names=tuple(names["state"]),
        action_names=tuple(names["action"]),
        action_low=(-9.0,) * len(names["action"]),
        action_high=(9.0,) * len(names["action"]),
        control_hz=10,
        horizon=20,
        tasks=(Task("open", "open it"),),
        words=("open", "it"),
    )


def node(folder: Path, options: dict[str, Any] | None = None, **changes: Any) -> PolicyNode:
    """The user's settings of a policy that starts from a folder."""
    told: dict[str, Any] = {"checkpoint": str(folder), "tokenizer": str(folder.parent / "tokenizer")} | changes
    return PolicyNode("gr00t", options=TOLD | (options or {}), **told)


def attach(folder: Path, options: dict[str, Any] | None = None, **changes: Any) -> tuple[Any, Embodiment]:
    """The network and the embodiment of a folder."""
    return build.build_backbone(node(folder, options, **changes), simulator())


def observation() -> Observation:
    """The recipe's observation of the robot."""
    return Observation(sizes.pictures(), sizes.state(), sizes.INSTRUCTIONS)


def network(variant: str = "base", **changes: Any) -> Gr00t:
    """A network with the recipe's weights, without a folder."""
    varied = sizes.VARIANTS[variant]
    options = Gr00t.Config(**config(**varied) | changes)
    made = Gr00t(options, 4, 6, sizes.CAMERAS, sizes.PICTURE, 1, options.token_length)
    given = weights(**varied)
    made.load_state_dict({name: given[weight_names.to_their_name(Gr00t, name)] for name in made.state_dict()})
    return made


def inputs(robot: Embodiment, made: Gr00t) -> PolicyInput:
    """The recipe's observation as the network takes it."""
    return robot.inputs(observation(), made)


def noise() -> Tensor:
    """What a chunk is denoised from."""
    return torch.from_numpy(sizes.noise()).to(torch.get_default_dtype())


def euler(made: Gr00t, context: Context, steps: int) -> Tensor:
    """Actions [n, H, D] by our sampler."""
    return ode_sample(partial(made.velocity, context=context), noise(), steps)
