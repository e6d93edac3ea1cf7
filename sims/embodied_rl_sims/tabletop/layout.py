"""Layout of an episode, drawn from its seed: objects, fixtures, colours, light and the goal."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array, Episode, Task

KINDS = ("cube", "cube", "cylinder")  # of the three objects, in the scene's order
FIXTURES = ("zone", "zone", "plate", "bowl", "button", "button")  # in the scene's order
COLOURS = {
    "red": (0.85, 0.10, 0.08), "green": (0.10, 0.62, 0.14), "blue": (0.10, 0.18, 0.85),
    "yellow": (0.90, 0.80, 0.10), "purple": (0.55, 0.12, 0.65), "cyan": (0.15, 0.75, 0.80),
}  # fmt: skip
TASKS = (
    Task("push_cube", "push"), Task("push_cylinder", "push"),
    Task("pick_cube", "pick"), Task("pick_cylinder", "pick"),
    Task("put_on_plate", "put"), Task("put_in_bowl", "put"),
    Task("press_button", "press"),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(task.family for task in TASKS))
WORDS = (
    "push", "pick", "up", "put", "press", "the", "to", "on", "in",
    "cube", "cylinder", "zone", "plate", "bowl", "button", *COLOURS,
)  # fmt: skip
SPLITS = ("vision", "semantic", "execution")

AREA_X, AREA_Y = (0.37, 0.59), (-0.19, 0.19)
REST_HEIGHT = 0.019  # of an object's centre on the table
START = np.array([0.46, 0.0, 0.16])
_TRIES = 32  # layouts drawn at once
_CLEARANCE = {("object", "object"): 0.080, ("object", "fixture"): 0.100, ("fixture", "fixture"): 0.120}


@dataclass(frozen=True)
class Look:
    """The appearance of a scene; it does not change the task.

    Attributes:
        table: [3] colour. pattern: "plain", "grain", "checker" or "dots"; its strength and scale in metres.
        light: [3] unit vector towards the light. ambient: share of ambient light.
        camera_shift: [3] metres. camera_turn: [3] radians, small.
        colours: shade of each named colour in this episode.
    """

    table: NDArray[np.float64]
    pattern: str
    strength: float
    scale: float
    light: NDArray[np.float64]
    ambient: float
    camera_shift: NDArray[np.float64]
    camera_turn: NDArray[np.float64]
    colours: dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Layout:
    """One episode's scene and goal.

    Attributes:
        family: family of the task. target: index of the object, or of the button for "press".
        goal: index of the fixture that is the goal, or -1 for "pick".
        objects: [3, 2] metres, and object_turns [3] radians. fixtures: [6, 2] metres, NaN if not on the table.
        colours: colour name of each object [3] and fixture [6]; "" if it has none.
        start: [3] metres, initial position of the tool.
        instruction: goal in natural language.
        displacement: (control step, [2] metres) by which the target jumps, or None.
    """

    family: str
    target: int
    goal: int
    objects: NDArray[np.float64]
    object_turns: NDArray[np.float64]
    fixtures: NDArray[np.float64]
    object_colours: tuple[str, ...]
    fixture_colours: tuple[str, ...]
    start: NDArray[np.float64]
    instruction: str
    look: Look
    displacement: tuple[int, NDArray[np.float64]] | None


def is_held_out(family: str, kind: str, colour: str) -> bool:
    """Return whether a combination is reserved for the "semantic" split: one colour of six per family and kind."""
    kinds = ("cube", "cylinder", "button")
    return list(COLOURS).index(colour) == (2 * FAMILIES.index(family) + 3 * kinds.index(kind)) % len(COLOURS)


def draw_layout(episode: Episode, randomise: bool = True, attempt: int = 0) -> Layout:
    """Draw the scene of an episode; the result depends on the episode, `randomise` and `attempt` only.

    Args:
        episode: its task, seed and split.
        randomise: whether colours and light vary within the training range.
        attempt: number of the attempt; each draws another scene of the same episode.
    """
    rng = np.random.default_rng([episode.seed, episode.task, *([attempt] if attempt else [])])
    task = TASKS[episode.task]
    target, goal, present = _choose(rng, task)
    kind = "button" if task.family == "press" else KINDS[target]
    semantic = episode.split == "semantic"
    named = str(rng.choice([colour for colour in COLOURS if is_held_out(task.family, kind, colour) == semantic]))
    others = [colour for colour in COLOURS if colour != named]
    rng.shuffle(others)
    object_colours = [others.pop() for _ in KINDS]
    coloured = [f in present and name in ("zone", "button") for f, name in enumerate(FIXTURES)]
    fixture_colours = [others.pop() if wanted else "" for wanted in coloured]
    if task.family == "press":
        fixture_colours[goal] = named
    else:
        object_colours[target] = named
    objects, fixtures = _place(rng, task.family, target, goal, present)
    start = START + rng.uniform([-0.03, -0.05, -0.02], [0.03, 0.05, 0.02])
    displacement = None
    if episode.split == "execution":
        start = START + rng.uniform([-0.08, -0.14, -0.04], [0.08, 0.14, 0.06])
        angle = rng.uniform(0, 2 * np.pi)
        displacement = (int(rng.integers(5, 15)), rng.uniform(0.02, 0.04) * np.array([np.cos(angle), np.sin(angle)]))
    return Layout(
        family=task.family,
        target=target,
        goal=goal,
        objects=objects,
        object_turns=rng.uniform(-0.25, 0.25, len(KINDS)),
        fixtures=fixtures,
        object_colours=tuple(object_colours),
        fixture_colours=tuple(fixture_colours),
        start=start,
        instruction=_instruction(task.family, target, goal, object_colours, fixture_colours),
        look=_look(rng, episode.split == "vision", randomise),
        displacement=displacement,
    )


def list_goals(layout: Layout) -> list[Layout]:
    """Return the scene with each of the goals that it allows, its own first.

    Combinations reserved for the "semantic" split are excluded, so that they stay held out.
    """
    present = np.flatnonzero(np.isfinite(layout.fixtures[:, 0])).tolist()
    goals = [("pick", target, -1) for target in range(len(KINDS))]
    for fixture in present:
        if FIXTURES[fixture] == "button":
            goals.append(("press", fixture - FIXTURES.index("button"), fixture))
        else:
            family = "push" if FIXTURES[fixture] == "zone" else "put"
            goals += [(family, target, fixture) for target in range(len(KINDS))]
    colours, found = (layout.object_colours, layout.fixture_colours), [layout]
    for family, target, goal in goals:
        press = family == "press"
        colour = layout.fixture_colours[goal] if press else layout.object_colours[target]
        is_own = (family, target, goal) == (layout.family, layout.target, layout.goal)
        if not is_own and not is_held_out(family, "button" if press else KINDS[target], colour):
            instruction = _instruction(family, target, goal, *colours)
            found.append(replace(layout, family=family, target=target, goal=goal, instruction=instruction))
    return found


def is_push_clear(layout: Layout) -> bool:
    """Return whether the straight path of a "push" is short, reachable and unobstructed in the scene as it begins."""
    present = np.flatnonzero(np.isfinite(layout.fixtures[:, 0])).tolist()
    points = np.concatenate([layout.objects, layout.fixtures[present]])
    return _push_is_clear(points, layout.target, len(KINDS) + present.index(layout.goal))


def _choose(rng: np.random.Generator, task: Task) -> tuple[int, int, list[int]]:
    """Choose the target, the goal's fixture and the two fixtures on the table."""
    wanted = {"push": "zone", "press": "button", "put_on_plate": "plate", "put_in_bowl": "bowl"}
    kind = wanted.get(task.name, wanted.get(task.family))
    goal = int(rng.choice([f for f, name in enumerate(FIXTURES) if name == kind])) if kind else -1
    rest = [f for f in range(len(FIXTURES)) if f != goal]
    present = [goal, int(rng.choice(rest))] if kind else [int(f) for f in rng.choice(rest, 2, replace=False)]
    if task.family == "press":
        return goal - FIXTURES.index("button"), goal, present
    shape = task.name.rsplit("_", 1)[-1]
    candidates = [i for i, name in enumerate(KINDS) if name == shape] or list(range(len(KINDS)))
    return int(rng.choice(candidates)), goal, present


def _place(
    rng: np.random.Generator, family: str, target: int, goal: int, present: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw positions of the objects [3, 2] and fixtures [6, 2] by rejection sampling.

    Many candidates are tested at once; the generator's state afterwards equals that after drawing them one by one.
    """
    names = ["object"] * len(KINDS) + ["fixture"] * len(present)
    gap = np.array([[(_CLEARANCE.get((a, b)) or _CLEARANCE[b, a]) for b in names] for a in names])
    np.fill_diagonal(gap, 0.0)
    low, high = np.array([AREA_X, AREA_Y]).T
    while True:
        before = rng.bit_generator.state
        tries = low + (high - low) * rng.random((_TRIES, 2, len(names))).swapaxes(1, 2)
        distance = np.linalg.norm(tries[:, :, None] - tries[:, None], axis=-1)
        for number in np.flatnonzero((distance >= gap).all(axis=(1, 2))):
            points = tries[number]
            if family == "push" and not _push_is_clear(points, target, len(KINDS) + present.index(goal)):
                continue
            rng.bit_generator.state = before
            rng.random((number + 1, 2, len(names)))
            fixtures = np.full((len(FIXTURES), 2), np.nan)
            fixtures[present] = points[len(KINDS) :]
            return points[: len(KINDS)], fixtures


def _push_is_clear(points: NDArray[np.float64], target: int, zone: int) -> bool:
    """Return whether the straight path from behind the target to the zone is short, reachable and unobstructed."""
    way = points[zone] - points[target]
    length = float(np.linalg.norm(way))
    if not 0.10 < length < 0.20:
        return False
    direction = way / length
    behind = points[target] - 0.07 * direction
    if not (AREA_X[0] - 0.06 < behind[0] < AREA_X[1] + 0.06 and abs(behind[1]) < AREA_Y[1] + 0.05):
        return False
    for other in range(len(points)):
        if other in (target, zone):
            continue
        along = np.clip((points[other] - behind) @ direction, 0, length + 0.09)
        if np.linalg.norm(points[other] - behind - along * direction) < 0.07:
            return False
    return True


def _instruction(family: str, target: int, goal: int, objects: Sequence[str], fixtures: Sequence[str]) -> str:
    if family == "press":
        return f"press the {fixtures[goal]} button"
    thing = f"the {objects[target]} {KINDS[target]}"
    if family == "push":
        return f"push {thing} to the {fixtures[goal]} zone"
    if family == "pick":
        return f"pick up {thing}"
    return f"put {thing} {'on' if FIXTURES[goal] == 'plate' else 'in'} the {FIXTURES[goal]}"


def _look(rng: np.random.Generator, vision: bool, randomise: bool) -> Look:
    """Draw the appearance. Training varies table, light and colours a little; "vision" more, and the camera."""
    wide = 1.0 if vision else 0.5 if randomise else 0.0
    table = (
        np.array([0.62, 0.55, 0.47]) * (1 + 0.25 * wide * rng.uniform(-1, 1)) * (1 + 0.1 * wide * rng.uniform(-1, 1, 3))
    )
    patterns = ("checker", "dots") if vision else ("plain", "grain")
    light = np.array([0.5, -0.35, 0.8]) + wide * rng.uniform([-0.5, -0.5, -0.2], [0.5, 0.5, 0.2])
    return Look(
        table=table,
        pattern=str(rng.choice(patterns)) if wide else "plain",
        strength=float(rng.uniform(0.1, 0.3) if vision else rng.uniform(0.0, 0.12)),
        scale=float(rng.uniform(0.05, 0.12)),
        light=light / np.linalg.norm(light),
        ambient=float(0.45 + 0.15 * wide * rng.uniform(-1, 1)),
        camera_shift=rng.uniform(-1, 1, 3) * (0.02 if vision else 0.0),
        camera_turn=rng.uniform(-1, 1, 3) * (0.02 if vision else 0.0),
        colours={name: _vary(rng, rgb, wide) for name, rgb in COLOURS.items()},
    )


def _vary(rng: np.random.Generator, rgb: tuple[float, float, float], wide: float) -> tuple[float, float, float]:
    hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
    hue += 0.03 * wide * rng.uniform(-1, 1)
    value *= 1 + 0.25 * wide * rng.uniform(-1, 1)
    return colorsys.hsv_to_rgb(hue % 1.0, saturation, min(value, 1.0))


_FIELDS = ("index", "task", "seed", "initial_state", "group", "split", "final_picture")


def pack_episode(episode: Episode | None) -> list[int]:
    """Return the fields of an episode; -1 everywhere for a parked environment."""
    if episode is None:
        return [-1] * len(_FIELDS)
    state = -1 if episode.initial_state is None else episode.initial_state
    split = ("train", *SPLITS).index(episode.split)
    return [episode.index, episode.task, episode.seed, state, episode.group, split, int(episode.final_picture)]


def unpack_episode(packed: Array) -> Episode | None:
    """Return the episode that `pack_episode` packed."""
    index, task, seed, state, group, split, *pictured = (int(value) for value in packed)
    if seed < 0:
        return None
    shown = pictured == [1]  # snapshots of earlier versions lack this field
    return Episode(index, task, seed, None if state < 0 else state, group, ("train", *SPLITS)[split], shown)
