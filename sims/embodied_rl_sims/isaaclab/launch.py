"""What Isaac Lab needs before an environment: its configuration, assets, and for some presets Isaac Sim."""

import atexit
import difflib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.isaaclab.settings import IsaacLabConfig

EULA = "OMNI_KIT_ACCEPT_EULA"
SCENE_SEED = 0
"""Seeds what a task draws once, while its scene is built."""

SHAPES = {file.with_suffix(".usd").name: file for file in Path(__file__).with_name("shapes").glob("*.usda")}
"""Robots of boxes that this package holds, by the name of the file on NVIDIA's server for which each can stand."""
_runtime = ExitStack()
"""Isaac Sim's application, where a task needs it: one per process, which cannot be started again."""
atexit.register(_runtime.close)


def make_environment(config: IsaacLabConfig, num_envs: int) -> Any:
    """Build an environment, and start Isaac Sim before it where its presets need that.

    Raises:
        ModuleNotFoundError: Isaac Lab is not installed.
        UserError: the environment, a preset, a camera or an option does not exist, the environment refuses its
            configuration, or this process has one already.
        Unavailable: an asset, Isaac Sim, or the user's consent to its licence is missing.
    """
    own = make_config(config, num_envs)
    start_runtime(own)
    check_assets(own.scene)
    if import_module("isaaclab.sim").SimulationContext.instance() is not None:
        message = "Isaac Lab simulates one scene in each process, and this one has it: close that simulator first."
        raise UserError(message, code="simulator-already-open")
    try:
        return import_module("gymnasium").make(config.id, cfg=own).unwrapped
    except FileNotFoundError as error:
        raise Unavailable(f"{config.id}: an asset cannot be loaded. {error}") from error
    except ValueError as error:
        raise UserError(f"{config.id}: {' '.join(str(error).split())}", code="environment-refused") from error


def make_config(config: IsaacLabConfig, num_envs: int) -> Any:
    """Build Isaac Lab's configuration of an environment; start nothing.

    Raises:
        ModuleNotFoundError: Isaac Lab is not installed.
        UserError: the environment, a preset, a camera or an option does not exist.
    """
    if importlib.util.find_spec("isaaclab") is None:
        raise ModuleNotFoundError("No module named 'isaaclab'", name="isaaclab")
    gymnasium = import_module("gymnasium")
    import_module(config.package)
    if config.id not in gymnasium.registry:
        near = difflib.get_close_matches(config.id, list(gymnasium.registry), 3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Is it one of sim.package={config.package}?"
        raise UserError(f"sim.id: unknown environment '{config.id}'. {hint}", code="environment-unknown")
    presets = {"physics": config.physics, "renderer": config.renderer if config.cameras else None}
    chosen = [f"{name}={value}" for name, value in presets.items() if value is not None]
    parse = import_module("isaaclab_tasks.utils").parse_env_cfg
    try:
        own = parse(config.id, device=choose_device(config.device), num_envs=num_envs, overrides=chosen)
    except ValueError as error:
        message = f"{config.id}: sim.{' sim.'.join(chosen)}: {' '.join(str(error).split())}"
        raise UserError(message, code="preset-unknown") from error
    adapt_config(config, own)
    return own


def choose_device(device: str) -> str:
    """Return the device that "auto" stands for; others as they are."""
    if device != "auto":
        return device
    return "cuda:0" if import_module("torch").cuda.is_available() else "cpu"


def adapt_config(config: IsaacLabConfig, own: Any) -> None:
    """Write our settings into the environment's configuration.

    Rendering is set to once per control step, and once after a reset, which otherwise would show the previous episode.

    Raises:
        UserError: a camera or an option does not exist.
    """
    if config.seeded and type(own.sim.physics).__name__ == "NewtonCfg":
        own.scene.env_spacing = 0.0  # Newton's worlds never meet; elsewhere in the world numbers are rounded otherwise
    shapes = list_shapes(config.id, own.scene) if config.shapes else {}
    for path, value in {**shapes, **config.options}.items():
        *parents, last = path.split(".")
        holder = own
        for parent in parents:
            holder = getattr(holder, parent, None)
        if not hasattr(holder, last):
            raise UserError(f"sim.options: the environment's configuration has no '{path}'.", code="option-unknown")
        setattr(holder, last, value)
    own.seed = SCENE_SEED
    own.sim.render_interval = own.decimation
    if config.horizon is not None:  # half a step less, because it is divided by the step and rounded up
        own.episode_length_s = (config.horizon - 0.5) * own.sim.dt * own.decimation
    for name in config.cameras:
        camera: Any = getattr(own.scene, name, None)
        if not hasattr(camera, "data_types"):
            known = [each for each in vars(own.scene) if hasattr(getattr(own.scene, each), "data_types")]
            message = f"sim.cameras: the environment has no camera '{name}'; it has {', '.join(known) or 'none'}."
            raise UserError(message, code="camera-unknown")
        camera.height = camera.width = config.image_size
        if not {"rgb", "rgba"} & set(camera.data_types):
            camera.data_types = [*camera.data_types, "rgb"]
    if config.cameras:
        own.num_rerenders_on_reset = max(1, own.num_rerenders_on_reset)


def list_shapes(name: str, scene: Any) -> dict[str, Any]:
    """Return the options that put our robot of shapes in place of a scene's own, and remove a ground that is a file.

    Raises:
        UserError: there are no shapes for this scene.
    """
    assets = dict(list_assets(scene, "scene"))
    robots = {path: str(SHAPES[own]) for path, file in assets.items() if (own := Path(file).name) in SHAPES}
    if not robots:
        message = f"sim.shapes=true: there are no shapes for {name}, only for {', '.join(SHAPES)}."
        raise UserError(message, code="shapes-missing")
    return robots | ({"scene.ground": None} if any(path.startswith("scene.ground.") for path in assets) else {})


def start_runtime(own: Any) -> None:
    """Start Isaac Sim if a configuration needs it, and resolve its automatic presets.

    Raises:
        UserError: its presets exclude each other.
        Unavailable: Isaac Sim is needed and absent, or its licence was not accepted: it would wait for an answer.
    """
    app, arguments = import_module("isaaclab.app"), {"headless": True, "device": own.sim.device}
    try:
        _, needs = app.validate_launch(own, arguments)
    except ValueError as error:
        raise UserError(f"sim.physics, sim.renderer: {error}", code="preset-not-supported") from error
    if needs and importlib.util.find_spec("isaacsim") is None:
        raise Unavailable(
            f"Isaac Sim is not installed, and needed for {', '.join(needs)}. Install it as NVIDIA's guide for Isaac "
            "Lab says, or choose presets without it: sim.physics=newton_mjwarp sim.renderer=newton_renderer."
        )
    if needs and not is_licence_accepted():
        raise Unavailable(
            f"Isaac Sim asks you to accept NVIDIA's Omniverse licence agreement. Read it, and set {EULA}=YES if you do."
        )
    _runtime.enter_context(app.launch_simulation(own, arguments))


def is_licence_accepted() -> bool:
    """Return whether the user has accepted NVIDIA's licence of Isaac Sim."""
    return os.environ.get(EULA, "").lower() in ("yes", "y", "1")


def check_assets(scene: Any) -> None:
    """Check that the files of a scene's assets exist, here or on their server.

    Raises:
        Unavailable: one does not; the message names its setting.
    """
    exists = import_module("isaaclab.utils.assets").check_file_path
    for path, file in list_assets(scene, "scene"):
        if not exists(file):
            shapes = " A robot of shapes is at hand: sim.shapes=true." if Path(file).name in SHAPES else ""
            raise Unavailable(
                f"{path}={file} cannot be read: NVIDIA's server of assets does not answer, or the file does not exist. "
                f"Give a copy by sim.options={{{path}: <file>}}.{shapes}"
            )


def list_assets(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """List the assets of a configuration: dotted path of a file's setting, file."""
    for name, value in vars(node).items():
        if name == "usd_path" and isinstance(value, str):
            yield f"{path}.{name}", value
        elif hasattr(value, "__dataclass_fields__"):
            yield from list_assets(value, f"{path}.{name}")
