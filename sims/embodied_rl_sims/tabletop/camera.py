"""Cameras that use MuJoCo's own ray caster: no OpenGL, no driver, the same bits everywhere.

One `mj_multiRay` call per picture finds the visible geometry. It casts only the pixels that some geometry's bounding
sphere can cover. The table is not cast: it is computed in closed form, and shaded once per episode.
"""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied_rl_sims.tabletop.layout import Look

Array = NDArray[np.float64]

_SKY = np.array([0.30, 0.32, 0.36])
_REACH = 10.0  # metres
GROUPS = (0, 1, 2, 4, 5)  # of geometry that is cast; the table is in group 3
_CAST = np.isin(np.arange(6), GROUPS).astype(np.uint8)
_WIDEST = 1.55  # radians off the axis, just below a right angle; no picture reaches farther


@dataclass(frozen=True)
class Pose:
    """The pose of a camera, and quantities that depend on it only.

    Attributes:
        origin: [3] metres. frame: [3, 3], its axes as columns; the camera looks along -z.
        rays: [pixels, 3] unit vectors. table: [pixels, 2] metres, hits on z = 0; on_table: [pixels], on the table.
    """

    origin: Array
    frame: Array
    rays: Array
    table: Array
    on_table: NDArray[np.bool_]

    @staticmethod
    def from_rays(origin: Array, frame: Array, lens: Array) -> "Pose":
        """Build a pose from a camera's rays in its own frame, `lens` [pixels, 3]."""
        rays = np.ascontiguousarray(lens @ frame.T)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = -origin[2] / rays[:, 2]
        point = origin[:2] + np.where(distance > 0, distance, 0.0)[:, None] * rays[:, :2]
        on_table = (distance > 0) & (np.abs(point[:, 1]) < 0.45) & (point[:, 0] > -0.2) & (point[:, 0] < 0.8)
        return Pose(origin, frame, rays, point, on_table)


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
        self.lens = grid / np.linalg.norm(grid, axis=1, keepdims=True)
        self._home = Pose.from_rays(self._origin, self._frame, self.lens)
        self._size, self._half = np.array([width, height]), np.array([half * width / height, half])
        self._cast = np.flatnonzero(_CAST[model.geom_group])
        self._radius = model.geom_rbound[self._cast][:, None]
        pixels = height * width
        self._geometry, self._distance = np.zeros(pixels, np.int32), np.zeros(pixels)
        self._normal = np.zeros(3 * pixels)

    def view(self, look: Look) -> "CameraView":
        """Build the camera's view of an episode, with the table already shaded."""
        if not (look.camera_shift.any() or look.camera_turn.any()):
            return CameraView(self, self._home, look)
        turn, quaternion = np.zeros(9), np.array([1.0, *(look.camera_turn / 2)])  # of a small rotation
        mujoco.mju_quat2Mat(turn, quaternion / np.linalg.norm(quaternion))
        frame = self._frame @ turn.reshape(3, 3)
        return CameraView(self, Pose.from_rays(self._origin + look.camera_shift, frame, self.lens), look)

    def cast(self, data: mujoco.MjData, pose: Pose) -> tuple[NDArray[np.int64], NDArray[np.int32], Array]:
        """Cast rays: return pixels [k] that show a geometry, the geometry [k], and its normal there [k, 3]."""
        pixels = self._occupied(data, pose)
        count = len(pixels)
        geometry, normal = self._geometry[:count], self._normal[: 3 * count]
        mujoco.mj_multiRay(
            self.model, data, pose.origin, pose.rays[pixels].reshape(-1), _CAST, 1, -1, geometry,
            self._distance[:count], normal, count, _REACH,
        )  # fmt: skip
        hit = np.flatnonzero(geometry >= 0)
        return pixels[hit], geometry[hit], normal.reshape(-1, 3)[hit]

    def _occupied(self, data: mujoco.MjData, pose: Pose) -> NDArray[np.int64]:
        """Return the pixels in the rectangles around the geometries' bounding spheres; others show no geometry.

        Along each axis of the picture a sphere spans the angles arctan(offset / depth) ± arcsin(radius / distance).
        """
        centre = (data.geom_xpos[self._cast] - pose.origin) @ pose.frame
        offset, depth = centre[:, :2] * (1.0, -1.0), -centre[:, 2:]
        distance = np.hypot(offset, depth)
        angle, half = np.arctan2(offset, depth), np.arcsin(np.minimum(self._radius / distance, 1.0))
        low, high = np.where(distance > self._radius, (angle - half, angle + half), [[[-np.pi]], [[np.pi]]])
        edges = np.tan(np.clip((low, high), -_WIDEST, _WIDEST)) / self._half
        first, last = (edges + 1) / 2 * self._size - 0.5
        first = np.clip(np.floor(first), 0, self._size).astype(np.int64)
        last = np.clip(np.ceil(last) + 1, 0, self._size).astype(np.int64)
        seen = (first < last).all(axis=1) & (depth > -self._radius)[:, 0]
        occupied = np.zeros((self.height, self.width), bool)
        for (left, top), (right, bottom) in zip(first[seen].tolist(), last[seen].tolist(), strict=True):
            occupied[top:bottom, left:right] = True
        return np.flatnonzero(occupied)


class CameraView:
    """A camera of one environment with pose, light and table of the present episode.

    Attributes:
        pose: pose of the camera. light: [3] unit vector towards the light. ambient: share of ambient light.
        background: uint8 [pixels, 3], picture of the empty table.
    """

    def __init__(self, camera: RayCamera, pose: Pose, look: Look) -> None:
        self.pose = pose
        self.light, self.ambient = look.light, look.ambient
        self._camera = camera
        shade = look.ambient + (1 - look.ambient) * max(look.light[2], 0.0)
        tone = 1 + look.strength * _pattern(pose.table / look.scale, look.pattern)
        colour = np.where(pose.on_table[:, None], look.table * tone[:, None] * shade, _SKY)
        self.background = (np.clip(colour, 0, 1) * 255).astype(np.uint8)

    def render(self, data: mujoco.MjData, colours: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Draw a picture uint8 [h, w, 3] with Lambertian shading; `colours` [geometries, 3] in 0…255."""
        camera = self._camera
        pixels, geometry, normal = camera.cast(data, self.pose)
        shade = self.ambient + (1 - self.ambient) * np.maximum(normal @ self.light, 0)
        picture = self.background.copy()
        picture[pixels] = colours[geometry] * shade[:, None]
        return picture.reshape(camera.height, camera.width, 3)


def _pattern(point: Array, name: str) -> Array:
    """Compute a procedural pattern in [-1, 1] at table coordinates [pixels, 2], in units of its scale."""
    x, y = point.T
    if name == "grain":
        return np.sin(2 * np.pi * x + np.sin(3 * y))
    if name == "checker":
        return np.where((np.floor(x) + np.floor(y)) % 2 == 0, 1.0, -1.0)
    if name == "dots":
        return np.where(np.hypot(x % 1 - 0.5, y % 1 - 0.5) < 0.3, 1.0, -1.0)
    return np.zeros_like(x)
