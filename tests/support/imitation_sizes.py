"""Small ACTs and Diffusion Policies in lerobot's words, and what they are asked. NumPy alone, as in `recipe`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support import recipe

CAMERAS, SIZE, ROWS, STATE_DIM, ACTION_DIM = ("front", "wrist"), (64, 96), 3, 5, 3
ACT = {
    "chunk_size": 6, "n_action_steps": 3, "dim_model": 16, "n_heads": 4, "dim_feedforward": 40, "n_encoder_layers": 2,
    "n_vae_encoder_layers": 1, "latent_dim": 8, "pretrained_backbone_weights": None, "device": "cpu",
}  # fmt: skip
DIFFUSION = {
    "n_obs_steps": 2, "horizon": 8, "n_action_steps": 4, "down_dims": (16, 32), "n_groups": 4, "device": "cpu",
    "diffusion_step_embed_dim": 16, "spatial_softmax_num_keypoints": 8, "num_train_timesteps": 20,
    "num_inference_steps": 6, "pretrained_backbone_weights": None,
}  # fmt: skip
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "act": ("act", ACT),
    "act_other": ("act", ACT | {"pre_norm": True, "feedforward_activation": "gelu", "n_decoder_layers": 2}),
    "act_plain": ("act", ACT | {"use_vae": False}),
    "diffusion": ("diffusion", DIFFUSION | {"use_group_norm": False, "use_separate_rgb_encoder_per_camera": True}),
    "diffusion_other": (
        "diffusion",
        DIFFUSION
        | {
            "n_obs_steps": 3, "use_group_norm": True, "use_separate_rgb_encoder_per_camera": False,
            "resize_shape": (60, 50), "crop_ratio": 0.8, "noise_scheduler_type": "DDIM", "prediction_type": "sample",
            "beta_schedule": "linear", "use_film_scale_modulation": False, "clip_sample": False,
            "do_mask_loss_for_padding": True, "vision_backbone": "resnet34",
        },
    ),
    "diffusion_single": (
        "diffusion", DIFFUSION | {"n_obs_steps": 1, "use_group_norm": True, "prediction_type": "sample",
                                  "use_separate_rgb_encoder_per_camera": False, "crop_shape": (41, 70),
                                  "beta_schedule": "scaled_linear", "clip_sample_range": 0.5},
    ),
}  # fmt: skip
"""name → lerobot's policy, and keys of its config.json."""


def weight(name: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The recipe's weight of lerobot's name; None for tensors that a new network has already."""
    if name.endswith(("vae_encoder_pos_enc", "pos_grid", "num_batches_tracked")):
        return None
    value = recipe.weight(name, shape)
    norm = name.endswith(".weight") and len(shape) == 1
    return np.abs(value) + 0.5 if name.endswith("running_var") else value + 1 if norm else value


def observation(step: int) -> dict[str, NDArray[Any]]:
    """Images uint8 [rows, h, w, 3] and the state float32 of a control step."""
    images = {camera: recipe.picture(f"{camera}/{step}", ROWS, *SIZE) for camera in CAMERAS}
    return images | {"state": recipe.normal(f"state/{step}", (ROWS, STATE_DIM))}


def statistics(feature: str) -> dict[str, NDArray[np.float32]]:
    """The statistics of a feature, as a dataset has them."""
    shape = {"observation.state": (STATE_DIM,), "action": (ACTION_DIM,)}.get(feature, (3, 1, 1))
    center, spread = recipe.normal(f"{feature}/mean", shape), np.abs(recipe.normal(f"{feature}/std", shape)) + 0.5
    if len(shape) == 3:
        center, spread = np.abs(center) % 0.5 + 0.2, spread / 4
    return {"mean": center, "std": spread, "min": center - 2 * spread, "max": center + 2 * spread}


def chunk(length: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Demonstrated actions in the model's units [rows, length, A], and which of them only repeat one."""
    padding = np.zeros((ROWS, length), bool)
    padding[1, -2:] = True
    return recipe.normal("demonstrated", (ROWS, length, ACTION_DIM)), padding


STEPS = np.array([0, 7, 19])
"""Diffusion steps of the rows, in the loss."""
