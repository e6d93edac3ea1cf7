"""Things, tables and robot of the put-on-plate tasks: RL4VLA's files, or shapes that stand for them.

The layout of the files, friction and poses are those of RL4VLA's `put_on_in_scene_multi.py`, sizes those of its
`model_db.json`.
"""

import colorsys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Unavailable
from embodied_rl.system.untrusted_files import check_name, read_json
from embodied_rl_sims.maniskill.plate_scenes import OBJECTS, PLATES, Split

Kind = Literal["carrot", "plate"]
"""What RL4VLA's folders call objects and plates."""
COUNTS = {"carrot": len(OBJECTS), "plate": len(PLATES), "table": 21}
"""How many things RL4VLA lists."""
PACKAGE_ASSETS = ("bridge_v2_real2sim", "widowx250s")
"""What ManiSkill downloads: the table, and the robot."""
OBJECT_SIZES = (
    (118, 32, 41), (57, 149, 21), (45, 45, 29), (36, 122, 39), (33, 61, 33), (110, 31, 26), (21, 81, 21),
    (112, 41, 49), (35, 74, 35), (43, 39, 56), (25, 25, 54), (41, 42, 73), (108, 40, 18), (49, 51, 41), (31, 31, 31),
    (53, 33, 77), (52, 86, 34), (44, 45, 46), (35, 35, 85), (49, 74, 45), (38, 139, 26), (28, 28, 86), (50, 126, 17),
    (51, 62, 51), (59, 44, 37),
)  # fmt: skip
PLATE_SIZES = (
    (110, 110, 6), (110, 110, 9), (110, 94, 4), (81, 116, 4), (111, 94, 3), (113, 84, 4), (110, 110, 4), (110, 110, 7),
    (110, 110, 12), (110, 110, 3), (110, 110, 9), (110, 110, 6), (126, 110, 3), (110, 110, 6), (110, 110, 5),
    (110, 80, 3), (110, 80, 4),
)  # fmt: skip
"""Extents in millimetres, by official number."""
GRIP = 0.042
"""Most that boxes measure across, in metres: the fingers open 52 mm."""
TABLE_TOP = 0.87
"""Height of the table of shapes, in metres."""


def list_things(split: Split) -> dict[Kind, range]:
    """Return the official numbers of the things that a task's scene holds: all objects, and all plates or the first."""
    return {"carrot": range(len(OBJECTS)), "plate": range(1 if len(split.plates) == 1 else len(PLATES))}


class Parts(Protocol):
    """What a scene is made of; `number` is a thing's official number."""

    def make_thing(self, scene: Any, kind: Kind, number: int, pose: Any) -> Any:
        """Build a body."""
        ...

    def make_table(self, scene: Any) -> None: ...

    def find_size(self, kind: Kind, number: int) -> Array:
        """Return a thing's extents along its axes, in metres [3]."""
        ...

    def draw_table(self, number: int, width: int, height: int) -> Array:
        """Return the picture behind robot and things, uint8 [height, width, 3]."""
        ...

    def draw_texture(self, number: int, width: int, height: int) -> tuple[Array, float]:
        """Return a texture to mix into pictures, uint8 [height, width, 3], and how much of it to take, 0 to 1."""
        ...

    def find_robot(self) -> type[Any]:
        """Return the class of the robot."""
        ...


class Files:
    """RL4VLA's meshes and pictures in `folder`, with ManiSkill's table and robot."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "carrot"
        self.listed = {kind: self._list(kind) for kind in COUNTS}

    def make_thing(self, scene: Any, kind: Kind, number: int, pose: Any) -> Any:
        name, facts = self.listed[kind][number]
        folder, scale = self._folder_of(kind, name), [_scale(facts)] * 3
        builder = scene.create_actor_builder()
        builder.add_multiple_convex_collisions_from_file(
            str(folder / "collision.obj"), scale=scale, material=make_material(), density=facts.get("density", 1000)
        )
        builder.add_visual_from_file(str(_find_visual(folder)), scale=scale)
        builder.initial_pose = pose
        return builder.build(name=name)

    def make_table(self, scene: Any) -> None:
        sapien, dataset = import_module("sapien"), import_module(f"{_BRIDGE}.base_env").BRIDGE_DATASET_ASSET_PATH
        file, upright = str(dataset / "stages" / "bridge_table_1_v1.glb"), sapien.Pose(q=[0.707, 0.707, 0, 0])
        builder = scene.create_actor_builder()
        builder.add_nonconvex_collision_from_file(file, pose=upright)
        builder.add_visual_from_file(file, pose=upright)
        builder.initial_pose = sapien.Pose([2.0634, 2.8313, 0.0])
        builder.build_static(name="arena")

    def find_size(self, kind: Kind, number: int) -> Array:
        return _find_size(self.listed[kind][number][1])

    def draw_table(self, number: int, width: int, height: int) -> Array:
        return _read_picture(self._folder_of("table", "imgs") / self.listed["table"][number][0], width, height)

    def draw_texture(self, number: int, width: int, height: int) -> tuple[Array, float]:
        facts = self.listed["table"][number][1]
        return _read_picture(self._folder_of("table", "textures") / facts["texture"], width, height), facts["mix"]

    def find_robot(self) -> type[Any]:
        return import_module(f"{_BRIDGE}.base_env").WidowX250SBridgeDatasetFlatTable

    def check(self, split: Split) -> None:
        """Check that the files of a task exist. Raises `Unavailable`: one does not; `UserError`: one lacks an entry."""
        tables = {*split.tables, *(split.extras if split.extra == "texture" else ())}
        needed = [self._folder_of("table", "imgs") / self.listed["table"][each][0] for each in tables]
        for kind, numbers in list_things(split).items():
            for number in numbers:
                folder = self._folder_of(kind, self.listed[kind][number][0])
                needed += [folder / "collision.obj", _find_visual(folder)]
        if split.extra == "texture":
            folder, tables = self._folder_of("table", "textures"), [self.listed["table"][each] for each in split.extras]
            if without := [name for name, facts in tables if "texture" not in facts]:
                file = self._folder_of("table", "model_db.json")
                raise UserError(f"{file} has no texture of {without[0]}. Fetch it again.", code="file-damaged")
            needed += [folder / facts["texture"] for _, facts in tables]
        for file in needed:
            if not file.exists():
                raise self._refuse(file)

    def _list(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Return names and facts of a folder's things, by official number.

        Raises:
            Unavailable: the file is missing. UserError: it is damaged, or names files outside of its folder.
        """
        file = self.folder / f"more_{kind}" / "model_db.json"
        if not file.exists():
            raise self._refuse(file)
        listed = read_json(file)
        try:
            for name, facts in listed.items():
                check_name(name, file)
                if kind != "table":
                    _check_facts(name, facts)
                if "texture" in facts:
                    check_name(facts["texture"], file)
                    if not 0 <= float(facts["mix"]) <= 1:
                        raise ValueError(f"mix of {name}")
        except UserError:
            raise
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            message = (
                f"{file} is not RL4VLA's list of names and sizes ({type(error).__name__}: {error}). Fetch it again."
            )
            raise UserError(message, code="file-damaged") from error
        if len(listed) < COUNTS[kind]:
            message = f"{file} lists {len(listed)} things, and RL4VLA {COUNTS[kind]}. Fetch it again."
            raise UserError(message, code="file-damaged")
        return list(listed.items())

    def _folder_of(self, kind: str, name: str) -> Path:
        return self.folder / f"more_{kind}" / name

    def _refuse(self, file: Path) -> Unavailable:
        return Unavailable(
            f"The put-on-plate tasks need {file}, of RL4VLA's meshes and pictures; this fetches them: hf download "
            f"--repo-type dataset RLinf/maniskill_assets --local-dir {self.folder.parent}. sim.assets names it. "
            "With sim.shapes=true shapes take their place."
        )


class Shapes:
    """Boxes of the things' sizes on a plain table, one colour for each thing and table, and a WidowX of boxes."""

    def make_thing(self, scene: Any, kind: Kind, number: int, pose: Any) -> Any:
        half, colour = self.find_size(kind, number) / 2, [*_colour(number + (kind == "plate") * len(OBJECTS)), 1.0]
        builder = scene.create_actor_builder()
        builder.add_box_collision(half_size=half, material=make_material(), density=1000)
        builder.add_box_visual(
            half_size=half, material=import_module("sapien").render.RenderMaterial(base_color=colour)
        )
        builder.initial_pose = pose
        return builder.build(name=f"{kind} {number}: {(OBJECTS if kind == 'carrot' else PLATES)[number]}")

    def make_table(self, scene: Any) -> None:
        """Build a slab that also carries the things which wait beside the scene."""
        builder, half = scene.create_actor_builder(), [2.5, 6.0, 0.05]
        builder.add_box_collision(half_size=half)
        builder.add_box_visual(half_size=half)
        builder.initial_pose = import_module("sapien").Pose([1.0, 4.0, TABLE_TOP - 0.05])
        builder.build_static(name="arena")

    def find_size(self, kind: Kind, number: int) -> Array:
        size = np.array((OBJECT_SIZES if kind == "carrot" else PLATE_SIZES)[number]) / 1000
        if kind == "carrot":  # a mesh is narrower than its box somewhere
            size[size[:2].argmin()] = min(*size[:2], GRIP)
        return size

    def draw_table(self, number: int, width: int, height: int) -> Array:
        return np.full((height, width, 3), np.array(_colour(number, 0.4)) * 255, np.uint8)

    def draw_texture(self, number: int, width: int, height: int) -> tuple[Array, float]:
        """Draw stripes, one more for each number."""
        light = np.arange(width) * 2 * (number + 1) // width % 2
        return np.broadcast_to(light[:, None] * np.uint8(255), (height, width, 3)).astype(np.uint8), 1.0

    def find_robot(self) -> type[Any]:
        real = import_module(f"{_BRIDGE}.base_env").WidowX250SBridgeDatasetFlatTable
        file = str(Path(__file__).with_name("shapes") / "wx250s.urdf")
        keys = {"uid": "widowx250s_of_boxes", "urdf_path": file, "disable_self_collisions": True}
        return type("WidowXOfBoxes", (real,), keys)


_BRIDGE = "mani_skill.envs.tasks.digital_twins.bridge_dataset_eval"


def make_material() -> Any:
    """Return the friction of things."""
    material = import_module("sapien.physx").PhysxMaterial
    return material(static_friction=1.0, dynamic_friction=1.0, restitution=0.0)


def _find_size(facts: dict[str, Any]) -> Array:
    return (np.array(facts["bbox"]["max"], float) - np.array(facts["bbox"]["min"], float)) * _scale(facts)


def _check_facts(name: str, facts: dict[str, Any]) -> None:
    """Raise `ValueError` unless a thing has a size and a density."""
    size, density = _find_size(facts), float(facts.get("density", 1000))
    if size.shape != (3,) or not (np.isfinite(size) & (size > 0)).all():
        raise ValueError(f"the size of {name}")
    if not 0 < density < np.inf:
        raise ValueError(f"the density of {name}")


def _scale(facts: dict[str, Any]) -> float:
    return float(facts.get("scales", [1.0])[0])


def _find_visual(folder: Path) -> Path:
    files = [folder / f"textured.{ending}" for ending in ("obj", "dae", "glb")]
    return next((file for file in files if file.exists()), files[-1])


def _read_picture(file: Path, width: int, height: int) -> Array:
    cv2 = import_module("cv2")
    read = cv2.imread(str(file))
    if read is None:
        raise UserError(f"{file} is no picture that can be read. Fetch it again.", code="file-damaged")
    return cv2.resize(cv2.cvtColor(read, cv2.COLOR_BGR2RGB), (width, height))


def _colour(number: int, saturation: float = 0.8) -> tuple[float, float, float]:
    """Return one of many colours that differ."""
    return colorsys.hsv_to_rgb(number * 0.618 % 1, saturation, 0.9 - 0.1 * (number % 3))
