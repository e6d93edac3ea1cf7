"""The ray camera's pictures of all worlds at once, by `mujoco_warp`'s rays and a bounding volume hierarchy."""

from collections.abc import Sequence

import mujoco_warp as mjw
import numpy as np
import warp as wp

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.camera import GROUPS, CameraView, RayCamera
from embodied_rl_sims.tabletop_warp.bodies import WarpBodies
from embodied_rl_sims.tabletop_warp.devices import record_graph

_EVERY_GROUP = (-1,) * 6  # geometry groups in the tree


class WarpCamera:
    """One camera in each of n worlds.

    Args:
        bodies: the worlds. camera: the ray camera; its `CameraView`s of episodes are drawn here.
    """

    def __init__(self, bodies: WarpBodies, camera: RayCamera) -> None:
        n, pixels, geometries = len(bodies.qpos), camera.height * camera.width, bodies.model.ngeom
        self._bodies, self._device = bodies, bodies.device
        self._size = (n, camera.height, camera.width, 3)
        self._views: list[CameraView | None] = [None] * n
        with wp.ScopedDevice(bodies.device):
            self._tree = mjw.create_render_context(
                bodies.model, n, cam_res=(1, 1), cam_active=[], enabled_geom_groups=list(GROUPS)
            )
            self._lens = wp.array(camera.lens.astype(np.float32), dtype=wp.vec3)
            self._origin, self._frame = wp.zeros(n, dtype=wp.vec3), wp.zeros(n, dtype=wp.mat33)
            self._light, self._ambient = wp.zeros(n, dtype=wp.vec3), wp.zeros(n, dtype=float)
            self._colours = wp.zeros((n, geometries), dtype=wp.vec3)
            self._start, self._ray, self._normal = (wp.zeros((n, pixels), dtype=wp.vec3) for _ in range(3))
            self._distance, self._geometry = wp.zeros((n, pixels), dtype=float), wp.zeros((n, pixels), dtype=int)
            self._no_body = wp.full(pixels, -1, dtype=int)
            self._background, self._picture = (wp.zeros((n, pixels, 3), dtype=wp.uint8) for _ in range(2))
        self._aim_graph, self._draw_graph = (
            record_graph(self._device, self._aim_rays),
            record_graph(self._device, self._cast_and_shade),
        )

    def draw(self, views: Sequence[CameraView | None], colours: Array) -> Array:
        """Draw the worlds' present state, uint8 [n, h, w, 3]; worlds without a view keep their previous view.

        Args:
            views: views of the n worlds. colours: float32 [n, geometries, 3] in 0…255, read when a view is new.
        """
        self._upload_views(views, colours)
        return self.redraw()

    def redraw(self) -> Array:
        """Draw the worlds' present state with the views of the last picture, uint8 [n, h, w, 3]."""
        self._draw_graph()
        return self._picture.numpy().reshape(self._size)

    def _upload_views(self, views: Sequence[CameraView | None], colours: Array) -> None:
        """Copy views that are new since the last picture to the device."""
        fresh = [(row, view) for row, view in enumerate(views) if view is not None and view is not self._views[row]]
        if not fresh:
            return
        rows = [row for row, _ in fresh]
        for target, values in (
            (self._origin, [view.pose.origin for _, view in fresh]),
            (self._frame, [view.pose.frame for _, view in fresh]),
            (self._light, [view.light for _, view in fresh]),
            (self._ambient, [view.ambient for _, view in fresh]),
            (self._colours, colours[rows]),
        ):
            everything = target.numpy()
            everything[rows] = values
            target.assign(everything)
        for row, view in fresh:
            self._background[row].assign(view.background)
            self._views[row] = view
        self._aim_graph()

    def _aim_rays(self) -> None:
        wp.launch(
            _rotate_rays,
            dim=self._ray.shape,
            inputs=[self._lens, self._origin, self._frame],
            outputs=[self._start, self._ray],
        )

    def _cast_and_shade(self) -> None:
        model, worlds = self._bodies.simulated, self._bodies.worlds
        mjw.refit_bvh(model, worlds, self._tree)
        mjw.rays(
            model, worlds, self._start, self._ray, _EVERY_GROUP, True, self._no_body,
            self._distance, self._geometry, self._normal, self._tree,
        )  # fmt: skip
        seen = [self._geometry, self._normal, self._colours, self._light, self._ambient, self._background]
        wp.launch(_shade, dim=self._geometry.shape, inputs=seen, outputs=[self._picture])


@wp.kernel(enable_backward=False)
def _rotate_rays(
    lens: wp.array[wp.vec3],
    origin: wp.array[wp.vec3],
    frame: wp.array[wp.mat33],
    start: wp.array2d[wp.vec3],
    ray: wp.array2d[wp.vec3],
):
    world, pixel = wp.tid()
    start[world, pixel] = origin[world]
    ray[world, pixel] = frame[world] * lens[pixel]


@wp.kernel(enable_backward=False)
def _shade(
    geometry: wp.array2d[int],
    normal: wp.array2d[wp.vec3],
    colours: wp.array2d[wp.vec3],
    light: wp.array[wp.vec3],
    ambient: wp.array[float],
    background: wp.array3d[wp.uint8],
    picture: wp.array3d[wp.uint8],
):
    world, pixel = wp.tid()
    hit = geometry[world, pixel]
    if hit < 0:
        for channel in range(3):
            picture[world, pixel, channel] = background[world, pixel, channel]
    else:
        towards = wp.max(wp.dot(normal[world, pixel], light[world]), 0.0)
        shade = ambient[world] + (1.0 - ambient[world]) * towards
        for channel in range(3):
            picture[world, pixel, channel] = wp.uint8(colours[world, hit][channel] * shade)
