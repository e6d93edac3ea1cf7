"""Pictures of any size for videos, by rays or by OpenGL."""

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.camera import RayCamera
from embodied_rl_sims.tabletop.layout import Look
from embodied_rl_sims.tabletop.opengl import OpenGL


class VideoRenderer:
    """Video renderers, one for each requested size.

    Args:
        model: model of the scene. camera: name of the camera. renderer: "raycast" or "egl".
    """

    def __init__(self, model: mujoco.MjModel, camera: str, renderer: str) -> None:
        self._model, self._camera, self._by_opengl = model, camera, renderer == "egl"
        self._ray_cameras: dict[tuple[int, int], RayCamera] = {}
        self._opengl: dict[tuple[int, int], OpenGL] = {}

    def draw(self, data: mujoco.MjData, look: Look | None, colours: Array, size: tuple[int, int]) -> Array:
        """Return a picture uint8 [height, width, 3]; black if `look` is None.

        Args:
            data: simulation with updated body positions. look: the scene's appearance. colours: [geometries, 3], 0…255.
            size: (height, width).

        Raises:
            RuntimeError: the renderer is "egl", and EGL is not available.
        """
        if look is None:
            return np.zeros((*size, 3), np.uint8)
        if self._by_opengl:
            if size not in self._opengl:
                self._opengl[size] = OpenGL(self._model, self._camera, *size)
            self._model.geom_rgba[:, :3] = colours / 255
            return self._opengl[size].render(data)
        if size not in self._ray_cameras:
            self._ray_cameras[size] = RayCamera(self._model, self._camera, *size)
        return self._ray_cameras[size].view(look).render(data, colours)

    def close(self) -> None:
        """Close the OpenGL contexts."""
        for renderer in self._opengl.values():
            renderer.close()
        self._opengl.clear()
