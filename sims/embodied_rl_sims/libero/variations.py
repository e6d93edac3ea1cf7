"""Variations of an episode along the axes of LIBERO-Plus (arXiv:2510.13626), drawn from the episode's seed.

They are held-out splits of LIBERO's simulator: camera, light, texture, layout, language and noise. LIBERO-Plus's own
files, objects and magnitudes are not used; magnitudes are given here. NumPy only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array

AXES = ("camera", "light", "texture", "layout", "language", "noise")
_STREAM = 2

ORBIT = (np.deg2rad(15), np.deg2rad(10))
"""Largest turns of the camera about what it looks at, around the vertical and around its horizontal axis."""
SHIFT = 0.04
"""Largest shift of an object along x and along y, in metres."""

WORDS = {
    "pick": ("grab", "take", "lift"),
    "place": ("put", "set"),
    "put": ("place", "set"),
    "open": ("pull open",),
    "close": ("shut",),
    "turn": ("switch",),
    "push": ("slide",),
}
"""Replacements of a verb in an instruction."""
FRAMES = ("{}", "please {}", "now {}", "could you {}", "your task is to {}", "{} please")
"""Sentences around an instruction."""
LONGER = 5
"""Most words by which a rephrasing is longer: four of a frame, one of "pull open"."""


def make_generator(split: str, seed: int, *more: int) -> np.random.Generator:
    """Return the generator of an episode's variation along an axis; `more` distinguishes its pictures."""
    return np.random.default_rng([seed, _STREAM, AXES.index(split), *more])


def list_words(instructions: Iterable[str]) -> set[str]:
    """List the words of instructions and of all their rephrasings."""
    plain = {word for text in instructions for word in text.split()}
    others = {word for key, choices in WORDS.items() if key in plain for text in choices for word in text.split()}
    return plain | others | {word for frame in FRAMES for word in frame.replace("{}", "").split()}


def rephrase(instruction: str, generator: np.random.Generator) -> str:
    """Return another sentence of the same meaning: other verbs, another frame; never the instruction itself."""
    words = [generator.choice([word, *WORDS.get(word, ())]) for word in instruction.split()]
    text = " ".join(str(word) for word in words).replace("grab up", "grab").replace("take up", "take")
    frames = FRAMES if text != instruction else FRAMES[1:]
    return frames[generator.integers(len(frames))].format(text)


def vary_model(split: str, model: Any, generator: np.random.Generator, camera: int, arena: Sequence[int]) -> None:
    """Change the model that pictures are drawn from; physics do not depend on what is changed.

    Args:
        split: the axis; nothing is changed for those that are not of the model.
        model: MuJoCo's.
        camera: number of the fixed camera.
        arena: numbers of the materials of floor, walls and table.
    """
    if split == "camera":
        _move_camera(model, camera, generator)
    elif split == "light":
        brightness, tint = generator.uniform(0.3, 1.6), generator.uniform(0.7, 1.0, 3)
        model.light_diffuse[:] *= brightness * tint
        model.vis.headlight.diffuse[:] *= generator.uniform(0.4, 1.4) * tint
        model.light_pos[:, :2] += generator.uniform(-2, 2, (model.nlight, 2))
        turned = model.light_dir + generator.uniform(-0.5, 0.5, (model.nlight, 3)) * (1, 1, 0)
        model.light_dir[:] = turned / np.linalg.norm(turned, axis=1, keepdims=True)
    elif split == "texture":
        materials = np.array(arena)
        model.mat_rgba[materials, :3] *= generator.uniform(0.3, 1.0, (len(materials), 3))
        kinds = np.array([model.tex_type[model.mat_texid[each].max()] for each in materials])
        for kind in set(kinds.tolist()):  # a cube's picture does not fit a plane
            alike = materials[kinds == kind]
            model.mat_texid[alike] = model.mat_texid[generator.permutation(alike)]


def _move_camera(model: Any, camera: int, generator: np.random.Generator) -> None:
    """Move a camera on a sphere around the point a metre before it."""
    turn = _matrix(model.cam_quat[camera])
    forward, right = -turn[:, 2], turn[:, 0]
    pivot = model.cam_pos[camera] + forward
    yaw, pitch = generator.uniform(-1, 1, 2) * ORBIT
    moved = _rotation(np.array([0.0, 0.0, 1.0]), yaw) @ _rotation(right, pitch)
    model.cam_pos[camera] = pivot - moved @ forward * generator.uniform(0.9, 1.15)
    model.cam_quat[camera] = _quaternion(moved @ turn)
    model.cam_fovy[camera] *= generator.uniform(0.92, 1.08)


def shift_objects(state: Array, places: Sequence[int], generator: np.random.Generator, share: float) -> Array:
    """Return an initial state with objects shifted along x and y.

    Args:
        state: float64, time and MuJoCo's positions and velocities.
        places: where the x of each object's free joint is in `state`.
        share: part of `SHIFT` that is the largest shift.
    """
    shifted = state.copy()
    for place in places:
        shifted[place : place + 2] += generator.uniform(-1, 1, 2) * SHIFT * share
    return shifted


def distort(picture: Array, kind: int, strength: float, generator: np.random.Generator) -> Array:
    """Return a picture, uint8 [h, w, 3], as a poor sensor gives it.

    Args:
        kind: 0: Gaussian noise; 1: dead pixels; 2: blur by motion; 3: fog; 4: low contrast.
        strength: 0 to 1.
        generator: of the noise in this picture.
    """
    image = picture.astype(np.float32)
    if kind == 0:
        image += generator.normal(0, 8 + 32 * strength, image.shape)
    elif kind == 1:
        dead = generator.random(image.shape[:2]) < 0.01 + 0.09 * strength
        image[dead] = 255.0 * (generator.random(int(dead.sum()))[:, None] < 0.5)
    elif kind == 2:
        length = 2 + round(strength * image.shape[1] / 24)
        padded = np.pad(image, ((0, 0), (length, length), (0, 0)), mode="edge")
        image = np.mean([padded[:, step : step + image.shape[1]] for step in range(2 * length + 1)], axis=0)
    elif kind == 3:
        image += (220 - image) * (0.2 + 0.5 * strength)
    else:
        image = 127 + (image - 127) * (0.7 - 0.5 * strength)
    return np.rint(np.clip(image, 0, 255)).astype(np.uint8)


KINDS = 5
"""Kinds of `distort`."""


def _rotation(axis: Array, angle: float) -> Array:
    """Return the matrix of a rotation about a unit vector (Rodrigues)."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def _matrix(quaternion: Array) -> Array:
    """Return the rotation matrix of a unit quaternion wxyz."""
    w, *v = quaternion
    x, y, z = v
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def _quaternion(matrix: Array) -> Array:
    """Return the unit quaternion wxyz of a rotation matrix: an eigenvector (Bar-Itzhack 2000)."""
    m = matrix
    k = np.array(
        [
            [np.trace(m), m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [0, m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]],
            [0, 0, m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1]],
            [0, 0, 0, m[2, 2] - m[0, 0] - m[1, 1]],
        ]
    )
    return np.linalg.eigh(k, UPLO="U")[1][:, -1]
