"""A small GR00T with the recipe's weights, also as a folder, and what lerobot's own made of the recipe's inputs."""

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
from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.interfaces.sim import Camera, Observation, SimulatorSpec, Task
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.schema import PolicyNode
from embodied_rl_policies.gr00t.policy import Gr00t
from tests.support import gr00t_sizes as sizes
from tests.support import gr00t_tokenizer, recipe

GOLDEN_FILE = Path(__file__).parents[1] / "parity" / "golden" / "gr00t_lerobot.safetensors"
TOLD = {
    "embodiment": sizes.TAG, "expert_heads": sizes.EXPERT["num_attention_heads"],
    "mixer_heads": sizes.MIXER["num_attention_heads"], "vision_heads": sizes.VISION["num_heads"],
    "deepstack": sizes.VISION["deepstack_visual_indexes"], "rotary_sections": sizes.SECTIONS,
    "least_pixels": sizes.LEAST_PIXELS, "most_pixels": sizes.MOST_PIXELS,
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


def lerobot(folder: Path, *, native: bool = True, **changes: Any) -> Path:
    """A folder such as lerobot's training leaves behind, beside a folder `tokenizer`.

    Args:
        folder: it is made.
        native: whether the processors have NVIDIA's groups of entries, or a dataset's statistics.
        changes: of config.json.
    """
    folder.mkdir(parents=True)
    save_file({f"_groot_model.{name}": value for name, value in weights().items()}, folder / "model.safetensors")
    kwargs, raw = sizes.processor_config()["processor_kwargs"], sizes.statistics()[sizes.TAG]
    robot = kwargs["modality_configs"][sizes.TAG]
    flat = {f"{name}.{bound}": torch.cat([torch.tensor(raw[kind][group][key]) for group in sizes.GROUPS[kind]])
            for kind, name in (("state", "observation.state"), ("action", "action"))
            for bound, key in (("min", "q01"), ("max", "q99"))}  # fmt: skip
    shared = {"raw_stats": raw, "modality_config": robot} if native else {"raw_stats": None, "modality_config": None}
    pack = {"state_horizon": 1, "action_horizon": sizes.HORIZON, "valid_action_horizon": sizes.TRAINED,
            "video_horizon": 1 if native else None, "max_state_dim": sizes.STATE_DIM,
            "max_action_dim": sizes.ACTION_DIM, "language_key": "task", "formalize_language": True,
            "embodiment_tag": sizes.TAG, "embodiment_mapping": sizes.ROBOTS, "normalize_min_max": True,
            "state_dropout_prob": 0.0, "clip_outliers": True, "use_percentiles": native,
            "video_modality_keys": list(sizes.CAMERAS) if native else None}  # fmt: skip
    encode = {key: kwargs[key] for key in ("image_crop_size", "image_target_size", "shortest_image_edge",
                                           "crop_fraction", "use_albumentations", "letter_box_transform")}  # fmt: skip
    decode = {"env_action_dim": 4, "use_percentiles": True, "use_relative_action": False,
              "action_decode_transform": "libero"}  # fmt: skip
    unpack = {"env_action_dim": 4, "normalize_min_max": True, "clip_normalized_action": True,
              "libero_gripper_action": False, "libero_gripper_binarize": True}  # fmt: skip
    state, action = "policy_preprocessor_step_2_pack.safetensors", "policy_postprocessor_step_0_unpack.safetensors"
    first = [
        ("rename_observations_processor", {"rename_map": {}}, None), ("to_batch_processor", {}, None),
        ("groot_n1_7_pack_inputs_v1", pack | shared, state),
        ("groot_n1_7_vlm_encode_v1", encode | {"model_name": "nvidia/Cosmos-Reason2-2B", "device": "cuda"}, None),
        ("device_processor", {"device": "cuda", "float_dtype": None}, None),
    ]  # fmt: skip
    last = ("groot_n1_7_action_decode_v1", decode | shared, None)
    last = last if native else ("groot_action_unpack_unnormalize_v2", unpack, action)
    for name, steps in (("pre", first), ("post", [last, ("device_processor", {"device": "cpu"}, None)])):
        listed = [{"registry_name": step, "config": config} | ({"state_file": file} if file else {})
                  for step, config, file in steps]  # fmt: skip
        content = {"name": f"policy_{name}processor", "steps": listed}
        (folder / f"policy_{name}processor.json").write_text(json.dumps(content, indent=2))
    for file in [state] if native else [state, action]:
        save_file(flat, folder / file)
    feature = {"type": "VISUAL", "shape": [3, *sizes.PICTURE]}
    config_file = {
        "type": "groot", "n_obs_steps": 1,
        "input_features": {f"observation.images.{name}": feature for name in sizes.CAMERAS}
        | {"observation.state": {"type": "STATE", "shape": [6]}},
        "output_features": {"action": {"type": "ACTION", "shape": [4]}}, "device": "cuda", "chunk_size": sizes.HORIZON,
        "n_action_steps": 3, "max_state_dim": sizes.STATE_DIM, "max_action_dim": sizes.ACTION_DIM,
        "base_model_path": "nvidia/GR00T-N1.7-3B", "embodiment_tag": sizes.TAG, "num_inference_timesteps": None,
        "use_relative_actions": False, "optimizer_lr": 1e-4, "use_bf16": True, "action_decode_transform": "libero",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config_file | changes, indent=4))
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
