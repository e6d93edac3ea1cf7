"""One tiny SmolVLA, in words that both projects understand, and what it is asked. NumPy alone, as in `recipe`.

It keeps what the full size has: heads that share keys and values, joint and cross layers, an expert that is narrower
than its attention, several image tokens a camera, prompts of different lengths, pictures that are not square.
"""

CAMERAS = ("front", "wrist")
PICTURES = {"front": (24, 40), "wrist": (36, 28)}
"""Height and width."""

ROWS = 3
TOKEN_LENGTH = 9
HORIZON = 6
ACTION_DIM = 8
STATE_DIM = 7
STEPS = 4
OTHER_STEPS = (6, 10)
"""Their flow times are no binary fractions; lerobot's own number is 10."""
TIMES = (1.0, 0.65, 0.05)
"""Of the rows; the golden velocities are taken at these times and at their rotations."""

WIDTH, LAYERS, HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, VOCABULARY = 48, 4, 80, 6, 2, 8, 64
EXPERT_WIDTH, EXPERT_HIDDEN = 36, 256
"""What lerobot makes of WIDTH: three quarters of it, and its rule for hidden units, which are multiples of 256."""

VISION_WIDTH, VISION_LAYERS, VISION_HIDDEN, VISION_HEADS, PATCH, RESOLUTION, PIXEL_SHUFFLE = 24, 2, 40, 3, 4, 32, 4
FAKE_IMAGE_TOKEN, GLOBAL_IMAGE_TOKEN = 61, 60
"""Prompts hold smaller ids."""

VARIANTS = {
    "base": (2, False),
    "framed": (2, True),
    "sparse": (3, False),
    "joint": (1, False),
    "cross": (0, False),
}
"""name → every how many layers the expert attends to the actions too (0: never), and whether images are framed."""
