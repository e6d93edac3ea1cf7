"""One Gymnasium environment: build it by its id, step it, and draw it; failures are explained to the user."""

import copy
import ctypes
import difflib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec, Unavailable
from embodied_rl_sims.common import fold_seed, resize_picture
from embodied_rl_sims.gymnasium_env.observation_layout import make_observation_layout
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig, read_success
from embodied_rl_sims.rows import StepOutcome, View

OPENGL = (
    "Install it (on Debian: apt-get install libegl1 libgl1-mesa-dri libgles2 libopengl0), and set MUJOCO_GL=egl; or "
    "libosmesa6, and set MUJOCO_GL=osmesa. Or use no pictures: sim.observations=state."
)
_OPENGL_WORDS = ("OpenGL", "EGL", "OSMesa", "GLFW", "glfw", "gladLoad", "MUJOCO_GL")  # in errors of drawing


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
        if (backend := os.environ.get("MUJOCO_GL")) in ("glfw", None):
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
        Unavailable: a package that the environment needs is not installed.
    """
    gymnasium = load_package(config)
    keys = {"max_episode_steps": -1, "disable_env_checker": True, **config.options}
    size = {"width": config.image_size, "height": config.image_size}
    errors = gymnasium.error
    try:
        if not render:
            return gymnasium.make(config.id, **keys)
        try:
            return gymnasium.make(config.id, render_mode="rgb_array", **size, **keys)
        except TypeError as error:
            if not any(f"unexpected keyword argument '{name}'" in str(error) for name in size):
                raise
            return gymnasium.make(config.id, render_mode="rgb_array", **keys)
    except errors.UnregisteredEnv:
        near = difflib.get_close_matches(config.id, list(gymnasium.registry), 3, 0.6)
        where = f"sim.package={config.package}" if config.package else "sim.package, the module that registers it"
        hint = f"Did you mean {', '.join(near)}?" if near else f"Is it one of {where}?"
        raise UserError(f"sim.id: unknown environment '{config.id}'. {hint}", code="environment-unknown") from None
    except errors.DependencyNotInstalled as error:
        raise Unavailable(f"{config.id}: {error}") from error
    except errors.Error as error:
        raise UserError(f"sim.id={config.id}: {error}", code="environment-unknown") from error
    except TypeError as error:
        raise UserError(f"sim.options={config.options}: {error}", code="option-invalid") from error


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


_SEED_BITS = 31  # which all environments accept


class GymnasiumEnvironment:
    """One environment; implements `embodied_rl_sims.rows.Environment`.

    Args:
        config: settings of the simulator.
        spec: specification of the simulator.

    Attributes:
        observation: latest observation of the environment.
    """

    def __init__(self, config: GymnasiumConfig, spec: SimulatorSpec) -> None:
        self._config, self._spec = config, spec
        self._environment = make_environment(config, render=bool(spec.cameras))
        self._draws = "rgb_array" in self._environment.metadata.get("render_modes", ())
        if self._draws and not spec.cameras:  # for videos
            self._environment.close()
            self._environment = make_environment(config, render=True)
        self._layout = make_observation_layout(config, self._environment.observation_space)
        self._space = self._environment.action_space
        self.instruction = make_instruction(config)
        self.observation: Any = None
        self._steps, self._rewarded, self._drawn = 0, False, False

    def begin(self, episode: Episode) -> None:
        """Reset with the episode's seed. The numbered initial state k is the state after `reset(seed=k)`."""
        seed = fold_seed(episode.seed, _SEED_BITS) if episode.initial_state is None else episode.initial_state
        self.observation, _ = self._environment.reset(seed=seed)
        aim_camera(self._environment)
        self._steps, self._rewarded = 0, False

    def step(self, action: Array) -> StepOutcome:
        """Run one control step.

        Raises:
            UserError: the environment's own time limit ended the episode before `sim.horizon`; or its `info` lacks the
                entry that states success.
        """
        given = action.astype(self._space.dtype).reshape(self._space.shape)
        given = np.clip(given, self._space.low, self._space.high)  # float32 limits may lie beyond those of float64
        self.observation, reward, terminated, truncated, info = self._environment.step(given)
        self._steps += 1
        if truncated and not terminated and self._steps < self._spec.horizon:
            raise UserError(
                f"{self._config.id} reached its own time limit after {self._steps} control steps. Set "
                f"sim.horizon={self._steps} or less, or raise that limit in sim.options.",
                code="environment-time-limit",
            )
        success = read_success(self._config, info)
        over = bool(terminated) or (success and self._config.terminate_on_success)
        if self._config.reward != "environment":
            reward = success and not self._rewarded
            self._rewarded |= success
        return StepOutcome(float(reward), success, over)

    def observe(self, pictures: bool) -> View:
        flat = self._layout.flat(self.observation)
        images = {}
        if pictures:
            camera = self._spec.cameras[0]
            images[camera.name] = self.render(camera.width, camera.height)
        return View(flat[self._layout.chosen], images, flat)

    def render(self, width: int, height: int) -> Array:
        """Draw a picture uint8 [height, width, 3]; black if the environment draws none.

        Raises:
            Unavailable: OpenGL, or a package that the environment draws with, is not installed.
        """
        if not self._draws:
            return np.zeros((height, width, 3), np.uint8)
        try:
            picture = draw_picture(self._environment)
        except Exception as error:
            text = f"{type(error).__name__} {error}"
            if text.startswith("DependencyNotInstalled"):
                raise Unavailable(f"{self._config.id} cannot draw: {error}") from error
            if self._drawn or not any(word in text for word in _OPENGL_WORDS):
                raise
            raise Unavailable(f"{self._config.id} cannot draw: {error}. {OPENGL}") from error
        self._drawn = True
        return resize_picture(picture, height, width)

    def close(self) -> None:
        self._environment.close()


def make_instruction(config: GymnasiumConfig) -> str:
    """Derive an instruction from the id: "FetchPickAndPlace-v4" becomes "fetch pick and place"."""
    if config.instruction is not None:
        return config.instruction
    name = config.id.rpartition("/")[2].rpartition("-v")
    letters = "".join(f" {letter}" if letter.isupper() else letter for letter in name[0] or name[2])
    return " ".join(letters.replace("_", " ").replace("-", " ").lower().split())
