"""Choice of the OpenGL that MuJoCo draws with, and messages for missing drivers.

The standard library only, Python 3.10 or newer.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable

DRIVERS = {"egl": "libegl1 and libgl1-mesa-dri, or the graphics card's own", "osmesa": "libosmesa6"}
"""Renderer → Debian and Ubuntu packages of its driver."""


@contextmanager
def explain_driver_errors(renderer: str, *failures: type[Exception]) -> Iterator[None]:
    """Convert the errors of a missing driver in the `with` block to `Unavailable`.

    Raises:
        Unavailable: one of `failures` was raised.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except failures as error:
        raise Unavailable(
            f"no rendering with sim.renderer={renderer} here: {error}. "
            f"Install its driver ({DRIVERS[renderer]}), or choose another: "
            f"sim.renderer={choose_other_renderer(renderer)}."
        ) from error


def choose_other_renderer(renderer: str) -> str:
    """Return the other renderer."""
    return next(name for name in DRIVERS if name != renderer)


def set_renderer(renderer: str, loaded: bool) -> None:
    """Set the renderer of this process, which MuJoCo reads when it is imported.

    Args:
        renderer: "egl" or "osmesa".
        loaded: whether the package that draws is imported already.

    Raises:
        UserError: this process already renders with another OpenGL.
    """
    if not loaded:
        os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = renderer
    elif os.environ.get("MUJOCO_GL") != renderer:
        raise UserError(
            f"sim.renderer={renderer}: this process renders with {os.environ.get('MUJOCO_GL')} already.",
            code="renderer-already-chosen",
        )
