"""Cameras by MuJoCo's own ray caster: no OpenGL, no driver, the same bits everywhere.

One `mj_multiRay` call a picture finds the geometry under every pixel; the table is not cast but known in closed form,
and its shading is computed once an episode.
"""

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied_rl_sims.tabletop.layout import Look

_SKY = np.array([0.30, 0.32, 0.36])
_REACH = 10.0
_CAST = np.array([1, 1, 1, 0, 1, 1], np.uint8)  # geometry groups; the table is in group 3


class RayCamera:
    """A pinhole camera of the scene, shared by all environments of a model."""

    def __init__(self, model: mujoco.MjModel, name: str, height: int, width: int) -> None:
        self.model, self.height, self.width = model, height, width
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        camera = model.camera(name)
        self._origin = data.cam_xpos[camera.id].copy()
        self._frame = data.cam_xmat[camera.id].reshape(3, 3).copy()
        half = np.tan(np.deg2rad(camera.fovy[0]) / 2)
        x = ((np.arange(width) + 0.5) / width * 2 - 1) * half * width / height
        y = -((np.arange(height) + 0.5) / height * 2 - 1) * half
        grid = np.stack(np.broadcast_arrays(x[None, :], y[:, None], -1.0), axis=-1).reshape(-1, 3)
        self._rays = grid / np.linalg.norm(grid, axis=1, keepdims=True)
        pixels = height * width
        self._geometry = np.zeros(pixels, np.int32)
        self._distance = np.zeros(pixels)
        self._normal = np.zeros(3 * pixels)

    def view(self, look: Look) -> "View":
        """The camera as it stands in an episode, with the table already shaded."""
        return View(self, look)

    def cast(self, data: mujoco.MjData, origin: NDArray[np.float64], rays: NDArray[np.float64]) -> NDArray[np.int32]:
        """The geometry each ray meets first, -1 for none; leaves the normals in `self._normal`."""
        mujoco.mj_multiRay(
            self.model, data, origin, rays, _CAST, 1, -1, self._geometry, self._distance, self._normal,
            len(self._geometry), _REACH,
        )  # fmt: skip
        return self._geometry


class View:
    """One environment's picture: rays, light and table of the present episode."""

    def __init__(self, camera: RayCamera, look: Look) -> None:
        self._camera = camera
        self.origin = camera._origin + look.camera_shift
        rays = camera._rays @ (camera._frame @ _small_rotation(look.camera_turn)).T
        self.rays = np.ascontiguousarray(rays).reshape(-1)
        self._light, self._ambient = look.light, look.ambient
        self._background = _table(self.origin, rays, look)

    def render(self, data: mujoco.MjData, colours: NDArray[np.float32]) -> NDArray[np.uint8]:
        """uint8 [h, w, 3] with Lambertian shading; `colours` [geometries, 3] in 0…255."""
        camera = self._camera
        geometry = camera.cast(data, self.origin, self.rays)
        hit = np.flatnonzero(geometry >= 0)
        normal = camera._normal.reshape(-1, 3)[hit]
        shade = self._ambient + (1 - self._ambient) * np.maximum(normal @ self._light, 0)
        picture = self._background.copy()
        picture[hit] = colours[geometry[hit]] * shade[:, None]
        return picture.reshape(camera.height, camera.width, 3)


def _small_rotation(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    matrix = np.zeros(9)
    quaternion = np.array([1.0, *(turn / 2)])
    mujoco.mju_quat2Mat(matrix, quaternion / np.linalg.norm(quaternion))
    return matrix.reshape(3, 3)


def _table(origin: NDArray[np.float64], rays: NDArray[np.float64], look: Look) -> NDArray[np.uint8]:
    """The picture of the empty table, [pixels, 3]: where each ray meets z = 0, with the episode's pattern."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = -origin[2] / rays[:, 2]
    point = origin[:2] + np.where(distance > 0, distance, 0.0)[:, None] * rays[:, :2]
    on_table = (distance > 0) & (np.abs(point[:, 1]) < 0.45) & (point[:, 0] > -0.2) & (point[:, 0] < 0.8)
    shade = look.ambient + (1 - look.ambient) * max(look.light[2], 0.0)
    tone = 1 + look.strength * _pattern(point / look.scale, look.pattern)
    colour = np.where(on_table[:, None], look.table * tone[:, None] * shade, _SKY)
    return (np.clip(colour, 0, 1) * 255).astype(np.uint8)


def _pattern(point: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """A procedural pattern in [-1, 1] over table coordinates [pixels, 2], in units of its scale."""
    x, y = point.T
    if name == "grain":
        return np.sin(2 * np.pi * x + np.sin(3 * y))
    if name == "checker":
        return np.where((np.floor(x) + np.floor(y)) % 2 == 0, 1.0, -1.0)
    if name == "dots":
        return np.where(np.hypot(x % 1 - 0.5, y % 1 - 0.5) < 0.3, 1.0, -1.0)
    return np.zeros_like(x)
