"""What the small π0 and π0.5 of `pi_sizes` are given, as torch tensors: the same in lerobot, in openpi and here."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.support import pi_sizes as sizes
from tests.support import recipe

EMBEDDING = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"  # the embedding once more: all projects tie them at first


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """A whole network's weights, float32, by the names of lerobot's checkpoints (which begin with `model.`)."""
    arrays = recipe.weights(shapes)
    if HEAD in arrays and EMBEDDING in arrays:
        arrays[HEAD] = arrays[EMBEDDING]
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def network_inputs(family: str) -> dict[str, Any]:
    """What a network takes: a list of images and one of masks, by camera; token ids with their mask; the state."""
    words = recipe.words("prompt", sizes.ROWS, sizes.PROMPT_LENGTH[family], sizes.VOCABULARY)
    return {
        "images": [torch.from_numpy(sizes.prepared_images(camera)) for camera in sizes.CAMERAS],
        "masks": [torch.from_numpy(sizes.image_mask(camera)) for camera in sizes.CAMERAS],
        "tokens": torch.from_numpy(words),
        "token_mask": torch.from_numpy(words > 0),
        "state": torch.from_numpy(recipe.normal("prepared state", (sizes.ROWS, sizes.PADDED_DIM))),
    }


def chunk(name: str, dims: int = sizes.PADDED_DIM) -> Tensor:
    """Standard normal values, float32 [rows, chunk, dims]: "noise", "actions", "demonstrated" and "predicted"."""
    return torch.from_numpy(recipe.normal(name, (sizes.ROWS, sizes.CHUNK, dims)))


def loss_times() -> Tensor:
    """The time of each row in the training loss, float32 [rows]."""
    return torch.tensor(sizes.TIMES[: sizes.ROWS])


def observation() -> dict[str, Any]:
    """What lerobot's datasets and simulators hand over: images float32 [rows, 3, height, width] in [0, 1]."""
    batch: dict[str, Any] = {"observation.state": torch.from_numpy(sizes.state()), "task": list(sizes.TASKS)}
    for camera in sizes.CAMERAS:
        images = torch.from_numpy(sizes.taken_images(camera)).permute(0, 3, 1, 2)
        batch[f"observation.images.{camera}"] = images.float() / 255
    return batch
