"""Building an environment by its registered id, and saying what is in the way where that fails."""

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
    "libosmesa6, and set MUJOCO_GL=osmesa. Or do without pictures: sim.observations=state."
)
_BACKENDS = ("egl", "osmesa", "glfw")


def load_package(config: GymnasiumConfig) -> Any:
    """The module `gymnasium`, with the environments of `sim.package` registered.

    MuJoCo reads MUJOCO_GL when it is imported. Where it is not set and there is no screen, EGL is chosen here.

    Raises:
        ModuleNotFoundError: Gymnasium or the package is not installed.
        Unavailable: MUJOCO_GL names what is not on this machine.
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
    """A new environment without time limit; `gymnasium.Env`.

    Args:
        config: of the simulator.
        render: whether it can draw pictures. Nothing is drawn, and no OpenGL looked for, until it does.

    Raises:
        UserError: there is no such id, or it does not take the options.
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
        raise UserError(f"sim.id: unknown environment '{config.id}'.{_nearest(gymnasium, config)}") from None
    except TypeError as error:
        raise UserError(f"sim.options={config.options}: {error}") from error


def _size(config: GymnasiumConfig) -> dict[str, int]:
    return {"width": config.image_size, "height": config.image_size}


def _nearest(gymnasium: Any, config: GymnasiumConfig) -> str:
    near = difflib.get_close_matches(config.id, list(gymnasium.registry), 3, 0.6)
    where = f"sim.package={config.package}" if config.package else "sim.package, the module that registers it"
    return f" Did you mean {', '.join(near)}?" if near else f" Is it one of {where}?"
