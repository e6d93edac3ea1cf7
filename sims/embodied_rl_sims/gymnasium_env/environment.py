"""One Gymnasium environment with the interface that `embodied_rl_sims.rows` needs."""

from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec, Unavailable
from embodied_rl_sims.gymnasium_env.factory import OPENGL, make_environment
from embodied_rl_sims.gymnasium_env.observation_layout import make_observation_layout
from embodied_rl_sims.gymnasium_env.rendering import aim_camera, draw_picture
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig, read_success
from embodied_rl_sims.pictures import resize_picture
from embodied_rl_sims.rows import StepOutcome, View
from embodied_rl_sims.seeds import fold_seed

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
        return StepOutcome(self._reward(float(reward), success), success, over)

    def observe(self, pictures: bool) -> View:
        flat = self._layout.flat(self.observation)
        images = {}
        if pictures:
            camera = self._spec.cameras[0]
            images[camera.name] = self.render(camera.width, camera.height)
        return View(flat[self._layout.chosen], images, flat)

    def render(self, width: int, height: int) -> Array:
        """Draw a picture uint8 [height, width, 3].

        Raises:
            Unavailable: OpenGL is not available for drawing.
        """
        try:
            picture = draw_picture(self._environment)
        except Exception as error:
            if self._drawn or not _is_about_opengl(error):
                raise
            raise Unavailable(f"{self._config.id} cannot draw: {error}. {OPENGL}") from error
        self._drawn = True
        return resize_picture(picture, height, width)

    def close(self) -> None:
        self._environment.close()

    def _reward(self, own: float, success: bool) -> float:
        if self._config.reward == "environment":
            return own
        first, self._rewarded = success and not self._rewarded, self._rewarded or success
        return float(first)


def make_instruction(config: GymnasiumConfig) -> str:
    """Derive an instruction from the id: "FetchPickAndPlace-v4" becomes "fetch pick and place"."""
    if config.instruction is not None:
        return config.instruction
    name = config.id.rpartition("/")[2].rpartition("-v")
    letters = "".join(f" {letter}" if letter.isupper() else letter for letter in name[0] or name[2])
    return " ".join(letters.replace("_", " ").replace("-", " ").lower().split())


def _is_about_opengl(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(word in text for word in ("OpenGL", "EGL", "OSMesa", "GLFW", "glfw", "gladLoad", "MUJOCO_GL"))
