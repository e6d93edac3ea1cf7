"""π0 and π0.5 so small that a whole checkpoint is half a megabyte, and what they are asked: NumPy and `recipe` alone.

Everything that Gemma's variants in openpi have is kept: eight query heads over one key-value head, heads that do not
add up to the width, an action expert narrower than the vision-language model.
"""

import numpy as np
from numpy.typing import NDArray

from tests.support import recipe

VOCABULARY = 300
IMAGE_SIZE = 56
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": IMAGE_SIZE, "patch_size": 14}
LANGUAGE = {"width": 40, "depth": 3, "mlp_dim": 72, "num_heads": 8, "num_kv_heads": 1, "head_dim": 6}
EXPERT = {"width": 24, "depth": 3, "mlp_dim": 48, "num_heads": 8, "num_kv_heads": 1, "head_dim": 6}

CAMERAS = {"base_0_rgb": (48, 64), "left_wrist_0_rgb": (90, 60), "right_wrist_0_rgb": (56, 56)}  # height, width taken
TASKS = ["pick up the red_cube", "  open the\ndrawer ", "stack"]
ROWS = len(TASKS)
PROMPT_LENGTH = {"pi0": 24, "pi05": 80}

CHUNK = 6
STATE_DIM, ACTION_DIM = 6, 5  # a robot's; the network pads both
ACTION_NAMES = ["x", "y", "z", "yaw", "gripper.pos"]
PADDED_DIM = 8

TIMES = (1.0, 0.55, 0.1)
STEPS = 4
OTHER_STEPS = (6, 10)
"""Their flow times are no binary fractions; lerobot's own number is 10."""


def prepared_images(camera: str) -> NDArray[np.float32]:
    """What the network sees, float32 [rows, 3, height, width] in [-1, 1]; -1 where `image_mask` says there is none."""
    pixels = recipe.picture(f"prepared {camera}", ROWS, IMAGE_SIZE, IMAGE_SIZE).astype(np.float32)
    images = (pixels / 127.5 - 1).transpose(0, 3, 1, 2)
    images[~image_mask(camera)] = -1
    return np.ascontiguousarray(images)


def image_mask(camera: str) -> NDArray[np.bool_]:
    """Which rows have this camera, bool [rows]: a gap at the end in the second row, amid the prefix in the third."""
    missing = {"right_wrist_0_rgb": 1, "left_wrist_0_rgb": 2}
    return np.arange(ROWS) != missing.get(camera, -1)


def taken_images(camera: str) -> NDArray[np.uint8]:
    """What a camera delivers, uint8 [rows, height, width, 3]: wide, tall and already square."""
    return recipe.picture(f"taken {camera}", ROWS, *CAMERAS[camera])


def statistics(name: str, dims: int) -> dict[str, NDArray[np.float32]]:
    """A dataset's statistics of one quantity, float32 [dims] each. The last dimension never moved."""
    mean, spread = recipe.normal(f"{name} mean", (dims,)), np.abs(recipe.normal(f"{name} spread", (dims,))) + 0.5
    spread[-1] = 0
    skewed = {"min": -3, "max": 4, "q01": -2, "q10": -1.2, "q90": 1.4, "q99": 2.5}
    return {"mean": mean, "std": spread} | {key: (mean + factor * spread) for key, factor in skewed.items()}


def state() -> NDArray[np.float32]:
    """A robot's state in its own units, float32 [rows, dims]: some values beyond their 1st and 99th percentile."""
    known = statistics("state", STATE_DIM)
    values = known["mean"] + known["std"] * recipe.normal("state", (ROWS, STATE_DIM))
    values[0, 0] = known["min"][0]
    values[1, 1] = known["max"][1]
    return values.astype(np.float32)
