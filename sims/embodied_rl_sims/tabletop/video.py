"""Pictures of any size for videos, by rays or by OpenGL."""

from typing import Any

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.camera import RayCamera
from embodied_rl_sims.tabletop.layout import Look

_TABLE_GROUP = 3


class OpenGL:
    """An off-screen EGL renderer of one size; it ignores MUJOCO_GL.

    Raises:
        RuntimeError: this machine has no EGL.
    """

    def __init__(self, model: mujoco.MjModel, camera: str, height: int, width: int) -> None:
        try:
            self._gl = make_egl_context(width, height)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            raise RuntimeError(
                f"sim.renderer=egl: no OpenGL by EGL here ({error}). Install libegl1, or set sim.renderer=raycast."
            ) from error
        self._gl.make_current()
        self._model, self._rectangle = model, mujoco.MjrRect(0, 0, width, height)
        self._scene, self._option = mujoco.MjvScene(model, maxgeom=1000), mujoco.MjvOption()
        self._option.geomgroup[_TABLE_GROUP] = 1
        self._option.sitegroup[:] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(camera).id
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def render(self, data: mujoco.MjData) -> Array:
        """Draw a simulation with updated bodies, uint8 [height, width, 3]; its motion is not affected."""
        self._gl.make_current()
        mujoco.mj_camlight(self._model, data)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        picture = np.zeros((self._rectangle.height, self._rectangle.width, 3), np.uint8)
        mujoco.mjr_readPixels(picture, None, self._rectangle, self._context)
        return picture[::-1]

    def close(self) -> None:
        """Free the graphics memory."""
        self._context.free()
        self._gl.free()


def make_egl_context(width: int, height: int) -> Any:
    """Create an EGL context for drawing without a screen. Without EGL, the error type depends on the missing part."""
    from mujoco.egl import GLContext

    return GLContext(width, height)


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
