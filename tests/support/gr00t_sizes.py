"""One tiny GR00T N1.7, in words that both projects understand, and what it is asked. NumPy alone, as in `recipe`.

It keeps what the full size has: heads that share keys and values, deepstack layers, a grid of places that is
interpolated, several robots, prompts of different lengths. Hardly two sizes are equal, and pictures are not square.
The numbers of heads that a user has to give divide the full size's widths, too.
"""

from typing import Any

import numpy as np

from tests.support import recipe

TAG, OTHER_TAG = "libero_sim", "new_embodiment"
ROBOTS = {TAG: 2, OTHER_TAG: 1}
"""Tag → number of its weights."""
CAMERAS = ("image", "wrist_image")
PICTURE = (30, 43)
"""Height and width."""
ROWS = 3
INSTRUCTIONS = ("Pick up the Red_cube!", "open it", "Don't push the drawer, please")
STEPS, OTHER_STEPS = 4, (1, 6, 10)
"""Euler steps; GR00T's own number is 4."""

TEXT: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 290,
}  # fmt: skip
SECTIONS, BASE = [2, 2, 2], 5_000_000
KEPT_LAYERS = 4
VISION: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 36, "depth": 4, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "out_hidden_size": TEXT["hidden_size"], "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
EXPERT: dict[str, Any] = {
    "positional_embeddings": None, "num_layers": 6, "num_attention_heads": 3, "attention_head_dim": 10,
    "norm_type": "ada_norm", "dropout": 0.2, "final_dropout": True, "output_dim": 26,
    "interleave_self_attention": True,
}  # fmt: skip
MIXER: dict[str, Any] = {
    "positional_embeddings": None, "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 10, "dropout": 0.2,
    "final_dropout": True,
}  # fmt: skip
HORIZON, TRAINED, ACTION_DIM, STATE_DIM, MOST_ROBOTS, PLACES, BUCKETS = 7, 5, 11, 13, 4, 9, 1000
LEAST_PIXELS, MOST_PIXELS, TARGET, CUT = 64, 4096, (32, 32), (28, 28)
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "plain": {"use_alternate_vl_dit": False, "vl_self_attention_cfg": {"num_layers": 0}, "add_pos_embed": False,
              "use_vlln": False},
}  # fmt: skip
"""name → changes of config.json."""
PICTURES: dict[str, dict[str, Any]] = {
    "area": {"use_albumentations": True, "shortest_image_edge": 32, "crop_fraction": 0.95},
    "bicubic": {"use_albumentations": False, "shortest_image_edge": None, "crop_fraction": None},
}
"""name → changes of the processor."""

GROUPS = {"state": {"x": 1, "y": 1, "arm": 2, "gripper": 2}, "action": {"x": 1, "rot": 2, "gripper": 1}}
"""Groups of the state's and the action's entries, with their sizes."""


def model_config(**changes: Any) -> dict[str, Any]:
    """config.json as Isaac-GR00T's training writes it."""
    return {
        "action_horizon": HORIZON,
        "add_pos_embed": True,
        "architectures": ["Gr00tN1d7"],
        "attend_text_every_n_blocks": 2,
        "attn_dropout": 0.2,
        "backbone_embedding_dim": TEXT["hidden_size"],
        "backbone_model_type": "qwen",
        "diffusion_model_cfg": EXPERT,
        "dtype": "float32",
        "hidden_size": EXPERT["output_dim"],
        "input_embedding_dim": EXPERT["num_attention_heads"] * EXPERT["attention_head_dim"],
        "max_action_dim": ACTION_DIM,
        "max_num_embodiments": MOST_ROBOTS,
        "max_seq_len": PLACES,
        "max_state_dim": STATE_DIM,
        "model_name": "nvidia/Cosmos-Reason2-2B",
        "model_type": "Gr00tN1d7",
        "num_inference_timesteps": STEPS,
        "num_timestep_buckets": BUCKETS,
        "select_layer": KEPT_LAYERS,
        "state_history_length": 1,
        "transformers_version": "4.57.3",
        "use_alternate_vl_dit": True,
        "use_relative_action": False,
        "use_vlln": True,
        "vl_self_attention_cfg": MIXER,
    } | changes


def processor_config(**changes: Any) -> dict[str, Any]:
    """processor_config.json as Isaac-GR00T's training writes it, for two robots."""
    language = {"delta_indices": [0], "modality_keys": ["annotation.human.action.task_description"]}
    robot: dict[str, dict[str, Any]] = {
        "video": {"delta_indices": [0], "modality_keys": list(CAMERAS)},
        "state": {"delta_indices": [0], "modality_keys": list(GROUPS["state"])},
        "action": {"delta_indices": list(range(TRAINED)), "modality_keys": list(GROUPS["action"])},
        "language": language,
    }
    absolute = {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    robot["action"]["action_configs"] = [absolute] * len(GROUPS["action"])
    missing = {"sin_cos_embedding_keys": None, "mean_std_embedding_keys": None, "action_configs": None}
    kwargs = {
        "modality_configs": {tag: {kind: missing | entry for kind, entry in robot.items()} for tag in ROBOTS},
        "image_crop_size": list(CUT),
        "image_target_size": list(TARGET),
        "random_rotation_angle": None,
        "color_jitter_params": None,
        "letter_box_transform": False,
        "model_name": "nvidia/Cosmos-Reason2-2B",
        "model_type": "qwen",
        "formalize_language": True,
        "max_state_dim": STATE_DIM,
        "max_action_dim": ACTION_DIM,
        "max_action_horizon": HORIZON,
        "use_percentiles": True,
        "use_mean_std": False,
        "clip_outliers": True,
        "apply_sincos_state_encoding": False,
        "use_relative_action": False,
        "exclude_state": False,
        "state_dropout_prob": 0.2,
    } | PICTURES["area"]
    return {"processor_class": "Gr00tN1d7Processor", "processor_kwargs": kwargs | changes}


def statistics() -> dict[str, Any]:
    """statistics.json: those of the second robot are others."""
    return {tag: {kind: _groups(tag, kind) for kind in GROUPS} for tag in ROBOTS}


def _groups(tag: str, kind: str) -> dict[str, dict[str, list[float]]]:
    found = {}
    for key, size in GROUPS[kind].items():
        low = np.sort(recipe.normal(f"{tag} {kind} {key}", (size, 4)).astype(np.float64), axis=1)
        names = ("min", "q01", "q99", "max")
        found[key] = {name: low[:, index].tolist() for index, name in enumerate(names)}
        found[key] |= {"mean": low.mean(1).tolist(), "std": (low.std(1) + 0.1).tolist()}
    return found


def state() -> np.ndarray:
    """float32 [ROWS, entries], some of them beyond the statistics."""
    return recipe.normal("gr00t state", (ROWS, sum(GROUPS["state"].values())))


def noise() -> np.ndarray:
    """What a chunk is denoised from."""
    return recipe.normal("gr00t noise", (ROWS, HORIZON, ACTION_DIM))


def pictures() -> dict[str, np.ndarray]:
    """uint8 [ROWS, h, w, 3] of each camera."""
    return {name: recipe.picture(f"gr00t {name}", ROWS, *PICTURE) for name in CAMERAS}
