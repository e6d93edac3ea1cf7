"""One task of MetaWorld, built by its package; it runs one episode after another and draws on request."""

import sys
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims import light
from embodied_rl_sims.metaworld.settings import MetaWorldConfig
from embodied_rl_sims.opengl import explain_driver_errors, set_renderer

CLOSER = (0.75, 0.075, 0.7)
"""Position of the camera corner2 in arXiv:2206.14244, LeRobot (src/lerobot/envs/metaworld.py) and RLinf, in metres."""


def load_package(renderer: str) -> ModuleType:
    """Import `metaworld`, and set the renderer of its MuJoCo.

    Raises:
        ModuleNotFoundError: MetaWorld is not installed here.
        UserError: this process already renders with another OpenGL.
        Unavailable: the renderer's driver is not installed.
    """
    set_renderer(renderer, loaded="metaworld" in sys.modules)
    with explain_driver_errors(renderer, ImportError, AttributeError, RuntimeError):
        return import_module("metaworld")


@cache
def draw_suite(package: ModuleType, suite: str, seed: int, visible: bool) -> list[Any]:
    """Draw the numbered goals of all tasks of an ml suite; a task's depend on the tasks before it.

    They are `train_tasks` or `test_tasks` of ML10, ML25 or ML45, whose classes would draw both.
    """
    name, _, split = suite.upper().partition("_")
    classes = getattr(package.env_dict, f"{name}_V3")[split.lower()]
    arguments = getattr(package.env_dict, f"{name}_ARGS_KWARGS")[split.lower()]
    return package._make_tasks(classes, arguments, package._MT_OVERRIDE if visible else package._ML_OVERRIDE, seed)


class MetaWorldScene:
    """A task's environment.

    Args:
        task: its name, without -v3.
        config: settings of the simulator.
        renderers: those of all scenes that share them.

    Attributes:
        observation: the package's latest one, float64 [39].
    """

    def __init__(self, task: str, config: MetaWorldConfig, renderers: "Renderers") -> None:
        self._package, self._config = load_package(config.renderer), config
        self._name = f"{task}-v3"
        self._environment = self._package.env_dict.ALL_V3_ENVIRONMENTS[self._name]()
        self._renderers = renderers
        self.observation = np.zeros(0)
        model = self._environment.model
        if config.rendering == "light":
            light.simplify_model(model, arm=("",), colliding=True)
        if config.closer:
            model.camera("corner2").pos = CLOSER

    @cached_property
    def goals(self) -> list[Any]:
        """The package's numbered goals, with the goal's visibility; drawing them takes seconds."""
        config = self._config
        if not config.draws_suite:
            kind = self._package.MT1 if config.shows_goal else self._package.ML1
            return kind(self._name, seed=config.goals_seed).train_tasks
        drawn = draw_suite(self._package, config.suite, config.goals_seed, config.shows_goal)
        return [goal for goal in drawn if goal.env_name == self._name]

    def begin(self, seed: int, number: int | None) -> None:
        """Start an episode with the numbered goal, or with one that the package draws from `seed`, below 2³¹."""
        environment = self._environment
        if number is None:
            environment._set_task_called, environment._freeze_rand_vec, environment.seeded_rand_vec = True, False, True
            environment._partially_observable = not self._config.shows_goal
            environment.__dict__.pop("sawyer_observation_space", None)  # it was computed for the other visibility
            environment.seed(seed)
        else:
            environment.set_task(self.goals[number])
        self.observation, _ = environment.reset()
        for _ in range(self._config.settle):
            self.step(np.zeros(4, np.float32))

    def step(self, action: Array) -> tuple[float, bool]:
        """Run one control step; return the package's reward, and whether the goal holds."""
        self.observation, reward, _, _, info = self._environment.step(action)
        return float(reward), bool(info["success"])

    def seen_with_goal(self) -> Array:
        """Return the observation with the goal's position also where it is hidden, float64 [39], for the expert."""
        seen = self.observation.copy()
        if not self._config.shows_goal:
            seen[-3:] = self._environment._get_pos_goal()
        return seen

    def make_expert(self) -> Any:
        """Return the package's scripted policy of the task; `get_action` takes an observation with the goal."""
        return import_module("metaworld.policies").ENV_POLICY_MAP[self._name]()

    def draw(self, camera: str, width: int, height: int) -> Array:
        """Draw a picture uint8 [height, width, 3], top row first.

        Raises:
            Unavailable: the renderer's driver does not work.
        """
        renderer = self._renderers.find(self._name, self._environment.model, width, height)
        renderer.update_scene(self._environment.data, camera=camera)
        picture = renderer.render()
        return picture[::-1, ::-1] if self._config.closer and camera == "corner2" else picture

    def close(self) -> None:
        """Free the environment; the renderers stay with those who share them."""
        self._environment.close()


class Renderers:
    """The renderers of a simulator: one for each task and size draws all scenes of the task, whose models are equal.

    A renderer holds an OpenGL context with the task's meshes, some 0.05 GB.

    Args:
        backend: "egl" or "osmesa", for messages.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._made: dict[tuple[str, int, int], Any] = {}

    def find(self, task: str, model: Any, width: int, height: int) -> Any:
        """Return the `mujoco.Renderer` of a task and size; make it with the given `mujoco.MjModel` if there is none.

        Raises:
            Unavailable: the driver does not work.
        """
        key = (task, width, height)
        if key not in self._made:
            mujoco, size = import_module("mujoco"), model.vis.global_
            size.offwidth, size.offheight = max(size.offwidth, width), max(size.offheight, height)
            with explain_driver_errors(self._backend, ImportError, RuntimeError, mujoco.FatalError):
                self._made[key] = mujoco.Renderer(model, height, width)
        return self._made[key]

    def close(self) -> None:
        """Free the renderers."""
        while self._made:
            self._made.popitem()[1].close()
