"""The MetaWorld simulator: suites of tasks, numbered goals, official success and time limit."""

from collections.abc import Callable
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Episode, SimulatorSpec, Task
from embodied_rl_sims.common import fold_seed
from embodied_rl_sims.metaworld import diagnosis
from embodied_rl_sims.metaworld.scene import MetaWorldScene, Renderers, load_package
from embodied_rl_sims.metaworld.settings import GOALS, MetaWorldConfig
from embodied_rl_sims.metaworld.tasks import TASKS
from embodied_rl_sims.rows import Rows, ScenePool, StepOutcome, View

MOST_REWARD = 10.0
"""Largest reward of a control step in the package."""
HAND = ("hand_x", "hand_y", "hand_z", "opening")
_OBJECTS = tuple(f"object{number}_{axis}" for number in (0, 1) for axis in ("x", "y", "z", "qx", "qy", "qz", "qw"))
OBSERVED = (
    *HAND, *_OBJECTS, *(f"before_{name}" for name in (*HAND, *_OBJECTS)), "goal_x", "goal_y", "goal_z",
)  # fmt: skip
"""Names of the package's observation: hand and opening, two objects, the same one step before, the goal."""


def spec_of(config: MetaWorldConfig) -> SimulatorSpec:
    """Return the specification; the package is not needed for it.

    An action moves the target of the hand by up to 1 cm along each axis; its last entry closes (+1) or opens (−1) the
    fingers, as a force. The state is what LeRobot's and RLinf's policies read: the hand's position in metres, and the
    fingers' distance as a share of 10 cm.
    """
    rgb = config.observations == "rgb"
    instructions = [TASKS[name][1] for name in config.chosen]
    return SimulatorSpec(
        cameras=tuple(Camera(name, config.image_size, config.image_size) for name in config.cameras) if rgb else (),
        state_names=HAND if rgb else OBSERVED,
        action_names=("move_x", "move_y", "move_z", "close_gripper"),
        action_low=(-1.0,) * 4,
        action_high=(1.0,) * 4,
        control_hz=80.0,
        horizon=config.horizon,
        tasks=tuple(Task(name, name if config.tasks else TASKS[name][0], GOALS) for name in config.chosen),
        words=tuple(sorted({word for instruction in instructions for word in instruction.split()})),
        instruction_length=max(len(instruction.split()) for instruction in instructions),
        privileged_names=(*OBSERVED, "clock") if rgb else (),
        hold=(0.0, 0.0, 0.0, -1.0),
        kept_while_holding=("close_gripper",),
    )


class MetaWorldEnvironment:
    """One environment; implements `rows.Environment`.

    Args:
        scenes: built tasks, shared by the environments of a simulator.
        config: settings of the simulator.
    """

    def __init__(self, scenes: ScenePool[MetaWorldScene], config: MetaWorldConfig) -> None:
        self._scenes, self._config = scenes, config
        self._task, self._scene = -1, None
        self._clock = 0
        self._expert: Any = None
        self._own: float | None = None
        self.instruction = ""

    @property
    def scene(self) -> MetaWorldScene:
        """Return the scene of the present episode."""
        assert self._scene is not None
        return self._scene

    def begin(self, episode: Episode) -> None:
        """Start an episode.

        Raises:
            UserError: the task has no such numbered goal.
        """
        if self._scene is None or episode.task != self._task:
            if self._scene is not None:
                self._scenes.give_back(self._task, self._scene)
            self._task, self._scene = episode.task, self._scenes.take(episode.task)
        name, number = self._config.chosen[episode.task], episode.initial_state
        if number is not None and not 0 <= number < GOALS:
            raise UserError(
                f"'{name}' has initial states 0 to {GOALS - 1}, and no {number}.", code="initial-state-unknown"
            )
        self._clock, self._expert, self._own, self.instruction = 0, None, None, TASKS[name][1]
        self._scene.begin(fold_seed(episode.seed, 31), number)

    def step(self, action: Array) -> StepOutcome:
        self._clock += 1
        own, success = self.scene.step(action)
        progress, self._own = 0.0 if self._own is None else (own - self._own) / MOST_REWARD, own
        rewards = {"environment": own, "success": float(success), "progress": float(success) + progress}
        return StepOutcome(rewards[self._config.reward], success, success and self._config.terminate_on_success)

    def observe(self, pictures: bool) -> View:
        config, seen = self._config, self.scene.observation.astype(np.float32)
        if config.observations == "state":
            return View(seen)
        size = config.image_size
        images = {name: self.scene.draw(name, size, size) for name in config.cameras} if pictures else {}
        return View(seen[: len(HAND)], images, np.append(seen, np.float32(self._clock / config.horizon)))

    def operate(self) -> Array:
        """Return the action of the package's scripted policy, float32 [4]."""
        self._expert = self._expert or self.scene.make_expert()
        return np.clip(self._expert.get_action(self.scene.seen_with_goal()), -1, 1).astype(np.float32)

    def render(self, width: int, height: int) -> Array:
        return self.scene.draw((*self._config.cameras, "corner2")[0], width, height)

    def close(self) -> None:
        if self._scene is not None:
            self._scene.close()
        self._task, self._scene = -1, None


class MetaWorld(Rows):
    """n environments of MetaWorld's tasks; implements `embodied_rl.interfaces.sim.Simulator`.

    Observations, rewards and success are the package's. A task is built when it is first run, and reused.

    Raises:
        ModuleNotFoundError: MetaWorld is not installed here.
    """

    Config = MetaWorldConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnosis.diagnose)
    provenance = staticmethod(diagnosis.provenance)

    def __init__(self, config: MetaWorldConfig, num_envs: int) -> None:
        load_package(config.renderer)
        self.config = config
        self._renderers = Renderers(config.renderer)
        self._scenes = ScenePool(lambda task: MetaWorldScene(config.chosen[task], config, self._renderers), config.keep)
        super().__init__(spec_of(config), num_envs, lambda row: MetaWorldEnvironment(self._scenes, config))

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return the package's scripted policies; each call gives one control step's actions, float32 [n, 4].

        Raises:
            UserError: a faulty operator is requested.
        """
        if faulty:
            raise UserError("MetaWorld has no faulty operator: use operator=careful.", code="operator-missing")

        def act(row: int, _: Episode) -> Array:
            environment = self.environment(row)
            assert isinstance(environment, MetaWorldEnvironment)
            return environment.operate()

        return self.make_operator(act)

    def close(self) -> None:
        super().close()
        self._scenes.close()
        self._renderers.close()
