"""Draw pictures of an environment without changing its simulation."""

import copy
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array


def draw_picture(environment: Any) -> Array:
    """Draw a `gymnasium.Env` in its own picture size; return uint8 [h, w, 3].

    Raises:
        TypeError: `render` does not return an RGB picture.
    """
    with restore_after_drawing(environment.unwrapped):
        picture = environment.render()
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise TypeError(f"render() gave {found}; a picture is uint8 [height, width, 3]")
    return picture


@contextmanager
def restore_after_drawing(environment: Any) -> Iterator[None]:
    """Undo, after the `with` block, every change that drawing makes to a MuJoCo simulation.

    Environments of gymnasium-robotics run `mj_forward` and place their target in `render`. The next step would then
    start from other derived quantities, so that drawing would change the episode.
    """
    model: Any = getattr(environment, "model", None)
    data: Any = getattr(environment, "data", None)
    if type(model).__name__ != "MjModel" or type(data).__name__ != "MjData":
        yield
        return
    viewer = getattr(getattr(environment, "mujoco_renderer", None), "viewer", None)
    if viewer is not None:
        viewer.make_context_current()  # another environment's context may be current
    before, sites = copy.copy(data), model.site_pos.copy()
    try:
        yield
    finally:
        _copy_data(data, model, before)
        model.site_pos[:] = sites


def _copy_data(target: Any, model: Any, source: Any) -> None:
    """Copy a simulation's data; MuJoCo before 3.4, which MetaWorld pins, has this function only in C."""
    mujoco = import_module("mujoco")
    if hasattr(mujoco, "mj_copyData"):
        mujoco.mj_copyData(target, model, source)
        return
    (library,) = Path(mujoco.__path__[0]).glob("libmujoco*")
    ctypes.CDLL(str(library)).mj_copyData(*(ctypes.c_void_p(each._address) for each in (target, model, source)))


def aim_camera(environment: Any) -> None:
    """Reset the camera of a MuJoCo environment to the aim that it has before the first picture.

    Gymnasium aims a free camera at the centre of the bodies only once, at the first picture; without this reset all
    pictures would depend on the first episode.
    """
    renderer: Any = getattr(environment.unwrapped, "mujoco_renderer", None)
    viewer = getattr(renderer, "viewer", None)
    if viewer is not None and hasattr(viewer, "_init_camera") and hasattr(renderer, "_set_cam_config"):
        viewer._init_camera()
        renderer._set_cam_config()
