"""Build an environment by its registered id, and explain failures to the user."""

import difflib
import os
import sys
from importlib import import_module
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig

OPENGL = (
    "Install it (on Debian: apt-get install libegl1 libgl1-mesa-dri libgles2 libopengl0), and set MUJOCO_GL=egl; or "
    "libosmesa6, and set MUJOCO_GL=osmesa. Or use no pictures: sim.observations=state."
)
_BACKENDS = ("egl", "osmesa", "glfw")


def load_package(config: GymnasiumConfig) -> Any:
    """Import `gymnasium`, and register the environments of `sim.package`; return the module.

    MuJoCo reads MUJOCO_GL at import. If it is not set and no display exists, this function sets it to EGL.

    Raises:
        ModuleNotFoundError: Gymnasium or the package is not installed.
        Unavailable: MUJOCO_GL names a backend that is not installed.
    """
    if sys.platform == "linux" and not any(map(os.environ.get, ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"))):
        os.environ["MUJOCO_GL"] = "egl"
    gymnasium = import_module("gymnasium")
    try:
        if config.package:
            import_module(config.package)
    except ModuleNotFoundError:
        raise
    except (ImportError, AttributeError, RuntimeError) as error:
        if (backend := os.environ.get("MUJOCO_GL")) in _BACKENDS[2:] or backend is None:
            raise
        raise Unavailable(f"MUJOCO_GL={backend}: {error}. {OPENGL}") from error
    return gymnasium


def make_environment(config: GymnasiumConfig, render: bool) -> Any:
    """Build a `gymnasium.Env` without a time limit.

    Args:
        config: settings of the simulator.
        render: whether it can draw pictures. OpenGL is not loaded before the first picture.

    Raises:
        UserError: the id is not registered, or the environment rejects the options.
    """
    gymnasium = load_package(config)
    keys = {"max_episode_steps": -1, "disable_env_checker": True, **config.options}
    unregistered = gymnasium.error.UnregisteredEnv
    try:
        if not render:
            return gymnasium.make(config.id, **keys)
        try:
            return gymnasium.make(config.id, render_mode="rgb_array", **_size(config), **keys)
        except TypeError as error:
            if not any(f"unexpected keyword argument '{name}'" in str(error) for name in _size(config)):
                raise
            return gymnasium.make(config.id, render_mode="rgb_array", **keys)
    except unregistered:
        raise UserError(
            f"sim.id: unknown environment '{config.id}'.{_nearest(gymnasium, config)}", code="environment-unknown"
        ) from None
    except TypeError as error:
        raise UserError(f"sim.options={config.options}: {error}", code="option-invalid") from error


def _size(config: GymnasiumConfig) -> dict[str, int]:
    return {"width": config.image_size, "height": config.image_size}


def _nearest(gymnasium: Any, config: GymnasiumConfig) -> str:
    near = difflib.get_close_matches(config.id, list(gymnasium.registry), 3, 0.6)
    where = f"sim.package={config.package}" if config.package else "sim.package, the module that registers it"
    return f" Did you mean {', '.join(near)}?" if near else f" Is it one of {where}?"
