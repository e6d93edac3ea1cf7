"""Isaac Sim's application, one per process, and the environments that run in it."""

import atexit
import difflib
import importlib.util
import os
import sys
from importlib import import_module
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.isaac.settings import IsaacLabConfig

EXPERIMENTAL = "sim=isaaclab is experimental: not yet run on Isaac Sim"
_EULA = "OMNI_KIT_ACCEPT_EULA"

_apps: list[Any] = []
"""The running application of this process: Isaac Sim cannot start a second one."""


def launch_app(config: IsaacLabConfig) -> None:
    """Start the application before any other Isaac import. It runs until the process ends.

    It is closed last, because closing it can end the process before a pending reply is sent.

    Raises:
        ModuleNotFoundError: Isaac Lab is not installed.
        Unavailable: NVIDIA's licence was not accepted; Isaac Sim would wait for an answer on the terminal.
    """
    if _apps:
        return
    if importlib.util.find_spec("isaaclab") is None:
        raise ModuleNotFoundError("No module named 'isaaclab'", name="isaaclab")
    if not is_licence_accepted():
        raise Unavailable(
            "Isaac Sim asks you to accept NVIDIA's Omniverse licence agreement. Read it, and set "
            f"{_EULA}=YES if you do."
        )
    print(EXPERIMENTAL, file=sys.stderr, flush=True)
    launcher = import_launcher()(headless=True, enable_cameras=bool(config.cameras), device=config.device)
    _apps.append(launcher.app)
    atexit.register(launcher.app.close)


def import_launcher() -> Any:
    """Return Isaac Lab's class that starts the application.

    It is imported by name, as Isaac Lab documents. In its pip package the module `isaaclab.app` has no such attribute;
    the class is only in `sys.modules`, as "isaaclab.app.AppLauncher", which an import statement searches too.
    """
    from isaaclab.app import AppLauncher  # pyright: ignore[reportMissingImports]

    return AppLauncher


def is_licence_accepted() -> bool:
    """Return whether the user has accepted NVIDIA's licence."""
    return os.environ.get(_EULA, "").lower() in ("yes", "y", "1")


def make_environment(config: IsaacLabConfig, num_envs: int) -> Any:
    """Build an environment; the application must be running.

    Raises:
        UserError: the environment, a camera or an option does not exist.
    """
    gymnasium = import_module("gymnasium")
    import_module(config.package)
    if config.id not in gymnasium.registry:
        near = difflib.get_close_matches(config.id, list(gymnasium.registry), 3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Is it one of sim.package={config.package}?"
        raise UserError(f"sim.id: unknown environment '{config.id}'. {hint}", code="environment-unknown")
    own = import_module("isaaclab_tasks.utils").parse_env_cfg(config.id, device=config.device, num_envs=num_envs)
    adapt_config(config, own)
    return gymnasium.make(config.id, cfg=own).unwrapped


def adapt_config(config: IsaacLabConfig, own: Any) -> None:
    """Write our settings into the environment's configuration.

    Rendering is set to once per control step, and once after a reset, which otherwise would show the previous episode.

    Raises:
        UserError: a camera or an option does not exist.
    """
    for path, value in config.options.items():
        *parents, last = path.split(".")
        holder = own
        for parent in parents:
            holder = getattr(holder, parent, None)
        if not hasattr(holder, last):
            raise UserError(f"sim.options: the environment's configuration has no '{path}'.", code="option-unknown")
        setattr(holder, last, value)
    own.sim.render_interval = own.decimation
    if config.horizon is not None:  # half a step less, because it is divided by the step and rounded up
        own.episode_length_s = (config.horizon - 0.5) * own.sim.dt * own.decimation
    for name in config.cameras:
        camera = _camera(own, name)
        camera.height = camera.width = config.image_size
        if not {"rgb", "rgba"} & set(camera.data_types):
            camera.data_types = [*camera.data_types, "rgb"]
    if config.cameras:
        own.num_rerenders_on_reset = max(1, own.num_rerenders_on_reset)


def _camera(own: Any, name: str) -> Any:
    """Return a camera's configuration: it is in the scene if manager-based, in the environment itself if direct."""
    places = [own.scene, own]
    for place in places:
        if hasattr(getattr(place, name, None), "data_types"):
            return getattr(place, name)
    known = [each for place in places for each in vars(place) if hasattr(getattr(place, each), "data_types")]
    raise UserError(
        f"sim.cameras: the environment has no camera '{name}'; it has {', '.join(known) or 'none'}.",
        code="camera-unknown",
    )
