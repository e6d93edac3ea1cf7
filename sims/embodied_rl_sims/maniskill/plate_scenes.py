"""Numbered scenes of the put-on-plate tasks of RL4VLA (arXiv:2505.19789), on which RLinf-VLA and π_RL train.

A WidowX puts one of 25 objects on one of 17 plates, on one of 21 tables. Names, counts, positions, phrases and
numbering are those of RL4VLA's `put_on_in_scene_multi.py` and `model_db.json` (github.com/gen-robot/RL4VLA).
`plate_tasks.py` builds the scenes.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import Any, Literal

import numpy as np

OBJECTS = (
    "carrot", "kitchen shovel", "bread", "plastic bottle", "7up can", "zuchinni", "ketchup bottle", "watering can",
    "pipe", "toy bear", "fast food cup", "plant", "banana", "hamburger", "golf ball", "BBQ sauce",
    "travel cup", "pepper", "nonstop can", "potato", "baguette", "champagne glass", "kitchen spoon", "onion", "cup",
)  # fmt: skip
"""Their official names; training uses the first 16."""
PLATES = (
    "plate", "cloth", "carpet", "newspaper", "sheet metal", "drawing tablet", "tomato slice", "pizza",
    "flat bowl", "gramophone disk", "frying pan", "mouse pad", "cutting board", "chess board",
    "manhole cover", "envelope", "notepad",
)  # fmt: skip
"""Their official names; training uses the first."""
CENTRE, HALF = np.array([-0.16, 0.0]), 0.075
"""Centre of the square in which things lie, and half of its side, in metres of the scene."""
NEAR, FAR = 0.070, 0.15
"""Least distance of an object from its plate, and of two objects or two plates, in metres."""
ROBOTS = 14375
"""Initial joint positions other than that of training."""
HORIZON = 80
"""Control steps of an episode."""
PHRASES = (
    "put {} on {}",
    "Place the {} on the {}",
    "set {} on {}",
    "move the {} to the {}",
    "Take the {} and put it on the {}",
    "pick up {} and set it down on {}",
    "please put the {} on the {}",
    "Put {} onto {}.",
    "place the {} onto the {} surface",
    "Make sure {} is on {}.",
    "on the {1}, put the {0}",
    "put the {} where the {} is",
    "Move the {} from the table to the {}",
    "Move {} so it\u2019s on {}.",
    "Can you put {} on {}?",
    "{} on the {}, please.",
    "the {} should be placed on the {}.",
)
"""The instruction of training, then the official ones of the evaluation of instructions, in their order."""

Extra = Literal["texture", "instruction", "object", "plate", "robot"]


@dataclass(frozen=True)
class Split:
    """Scenes of one task: ranges of objects, plates and tables, by their official numbers.

    Attributes:
        extra: what a further number means: a texture that is mixed into the picture, one of the official instructions
            instead of "put … on …", a second object or plate, or an initial position of the robot. extras: its range.
        places: "square": a grid of 6 × 6; "border": the 28 points around it, with other rotations; "three": the square
            with a third place, of a second object or plate, or where the object is put at the fifth control step.
        extra_first: whether the further number changes more slowly than the plate's.
    """

    objects: range = range(16)
    plates: range = range(1)
    tables: range = range(16)
    extra: Extra | None = None
    extras: range = range(1)
    places: Literal["square", "border", "three"] = "square"
    extra_first: bool = True


SPLITS = {
    "PutOnPlateInScene25Main-v3": Split(),
    "PutOnPlateInScene25VisionImage-v1": Split(tables=range(16, 21)),
    "PutOnPlateInScene25VisionTexture03-v1": Split(extra="texture", extras=range(1, 17)),
    "PutOnPlateInScene25VisionTexture05-v1": Split(extra="texture", extras=range(1, 17)),
    "PutOnPlateInScene25VisionWhole03-v1": Split(extra="texture", extras=range(1, 17)),
    "PutOnPlateInScene25VisionWhole05-v1": Split(extra="texture", extras=range(1, 17)),
    "PutOnPlateInScene25Carrot-v1": Split(objects=range(16, 25)),
    "PutOnPlateInScene25Plate-v1": Split(plates=range(1, 17)),
    "PutOnPlateInScene25Instruct-v1": Split(extra="instruction", extras=range(1, 17)),
    "PutOnPlateInScene25MultiCarrot-v1": Split(range(16, 25), extra="object", extras=range(8), places="three"),
    "PutOnPlateInScene25MultiPlate-v1": Split(
        plates=range(1, 17), tables=range(21), extra="plate", extras=range(15), places="three", extra_first=False
    ),
    "PutOnPlateInScene25Position-v1": Split(places="border"),
    "PutOnPlateInScene25EEPose-v1": Split(extra="robot", extras=range(1, 1 + ROBOTS)),
    "PutOnPlateInScene25PositionChangeTo-v1": Split(places="three"),
}
"""Training, then the official evaluations: five of vision, five of semantics, three of execution; `obj_set=test`."""


@dataclass(frozen=True)
class Scene:
    """One scene: official numbers of its parts, positions in metres [2 or 3, 2], and the object's rotation in radians.

    `positions` are those of object, plate and third place; `extra` is None where the task has no such number; `phrase`
    is a position in `PHRASES`.
    """

    object: int
    plate: int
    table: int
    extra: int | None
    positions: np.ndarray
    rotation: float
    phrase: int = 0

    @property
    def instruction(self) -> str:
        return PHRASES[self.phrase].format(OBJECTS[self.object], PLATES[self.plate])


def count_scenes(split: Split) -> int:
    """Return the number of scenes of a task."""
    parts = split.objects, split.plates, split.tables, split.extras, list_places(split)
    return int(np.prod([len(part) for part in parts], dtype=np.int64)) * 4


def find_scene(split: Split, number: int) -> Scene:
    """Return the scene with an official number, `episode_id`; after the last number comes the first scene again."""
    places, rotations = list_places(split), list_rotations(split)
    middle = [split.extras, split.plates] if split.extra_first else [split.plates, split.extras]
    parts = [split.objects, *middle, split.tables, range(len(places)), range(4)]
    thing, first, second, table, place, rotation = np.unravel_index(
        number % count_scenes(split), [len(part) for part in parts]
    )
    extra, plate = (int(first), int(second)) if split.extra_first else (int(second), int(first))
    chosen = split.objects[thing]
    if split.extra == "object":  # the official numbering, by which the second object can be the first one
        extra = (chosen + extra + 1) % len(split.objects) + split.objects[0]
    elif split.extra == "plate":
        extra = (plate + extra + 1) % len(split.plates) + split.plates[0]
    else:
        extra = split.extras[extra]
    known, phrase = None if split.extra is None else extra, extra if split.extra == "instruction" else 0
    return Scene(chosen, split.plates[plate], split.tables[table], known, places[place], rotations[rotation], phrase)


@cache
def list_places(split: Split) -> np.ndarray:
    """Return the positions of object, plate and, with "three", of the third place, in metres [count, 2 or 3, 2]."""
    inner = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    points = list(product(inner, inner))
    if split.places == "border":
        wide = [-0.2, *inner, 1.2]
        points = [point for point in product(wide, wide) if not set(point) <= set(inner)]
    grid = (np.array(points) * 2 - 1) * HALF + CENTRE
    apart = np.linalg.norm(grid[:, None] - grid, axis=-1)
    if split.places != "three":
        return np.array([grid[list(pair)] for pair in permutations(range(len(grid)), 2) if apart[pair] > NEAR])
    between, beside = (FAR, NEAR) if split.extra == "plate" else (NEAR, FAR)  # of third and plate; of third and object
    chosen = [
        each for each in permutations(range(len(grid)), 3)
        if apart[each[0], each[1]] > NEAR and apart[each[2], each[1]] > between and apart[each[0], each[2]] > beside
    ]  # fmt: skip
    return grid[np.array(chosen)]


def list_rotations(split: Split) -> tuple[float, ...]:
    """Return the four rotations of the object about the vertical, in radians."""
    if split.places == "border":
        return tuple(-np.pi * eighths / 8 for eighths in (1, 3, 5, 7))
    return tuple(np.pi * quarters / 4 for quarters in range(4))


def find_heights(split: Split) -> tuple[float, float, float]:
    """Return from which heights object, plate and third thing fall on the table, in metres; its top is at 0.87."""
    if split.places != "three":
        return 0.95, 0.95, 0.95
    return (1.0, 0.92, 0.96) if split.extra == "plate" else (0.95, 0.92, 1.0)


def find_poses(split: Split, scene: Scene, third: bool = False) -> dict[tuple[str, int], tuple[float, ...]]:
    """Return the poses, place and quaternion, from which a scene's things fall: (kind, number) → pose.

    `third`: the object has been moved to the third place.
    """
    points = [(*point, height) for point, height in zip(scene.positions, find_heights(split), strict=False)]
    turned, straight = (np.cos(scene.rotation / 2), 0.0, 0.0, np.sin(scene.rotation / 2)), (1.0, 0.0, 0.0, 0.0)
    poses = {
        ("carrot", scene.object): (*points[2 if third else 0], *turned),
        ("plate", scene.plate): (*points[1], *straight),
    }
    if scene.extra is not None and split.extra == "object":
        poses["carrot", scene.extra] = (*points[2], *turned)
    if scene.extra is not None and split.extra == "plate":
        poses["plate", scene.extra] = (*points[2], *straight)
    return poses


@cache
def list_joints() -> np.ndarray:
    """Return by what the joints begin elsewhere than in training, in radians [1 + ROBOTS, 6]; the first: nowhere."""
    arm, wrist = (-0.15, -0.08, 0.0, 0.08, 0.15), (-0.6, -0.3, 0.0, 0.3, 0.6)
    others = [each for each in product(arm, arm, arm, arm, arm, wrist) if abs(each[1] + each[2]) <= 0.25]
    return np.array([(0.0,) * 6, *others])


def list_instructions(split: Split) -> list[str]:
    """Return all instructions of a task."""
    phrases = [PHRASES[each] for each in split.extras] if split.extra == "instruction" else PHRASES[:1]
    things = product([OBJECTS[each] for each in split.objects], [PLATES[each] for each in split.plates])
    return [phrase.format(*pair) for pair in things for phrase in phrases]


def is_on_plate(offset: Any, object_size: Any, plate_size: Any, force: Any) -> Any:
    """Return whether objects lie on their plates, bool [b].

    Args:
        offset: from plate to object [b, 3], in metres.
        object_size, plate_size: extents along the axes of the world at the episode's start [b, 3], in metres.
        force: between the two [b], in newtons.
    """
    near = offset[:, :2].norm(dim=1) <= plate_size.max(dim=1).values / 2 + 0.01
    gap = offset[:, 2] - (plate_size[:, 2] + object_size[:, 2]) / 2
    return near & (offset[:, 2] > 0) & (gap <= 0.05) & (force > 0.03)
