"""One environment of LIBERO."""

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.libero import package, variations
from embodied_rl_sims.libero.operator import Operator
from embodied_rl_sims.libero.scene import LiberoScene
from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.rows import ScenePool, StepOutcome, View

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
"""Names of the privileged state's entries of an object: position relative to the gripper (metres), quaternion."""

_STATE_STREAM = 1


class LiberoEnvironment:
    """One environment; implements `rows.Environment`.

    Args:
        scenes: scenes shared by the environments of a simulator.
        problems: the suite's tasks.
        config: settings of the simulator.
        slots: number of objects of interest that fit in the privileged state.
    """

    def __init__(
        self, scenes: ScenePool[LiberoScene], problems: tuple[package.Problem, ...], config: LiberoConfig, slots: int
    ) -> None:
        self._scenes, self._problems, self._config, self._slots = scenes, problems, config, slots
        self._task, self._scene = -1, None
        self._clock = 0
        self.instruction = ""

    def begin(self, episode: Episode) -> None:
        if self._scene is None or episode.task != self._task:
            if self._scene is not None:
                self._scenes.give_back(self._task, self._scene)
            self._task, self._scene = episode.task, self._scenes.take(episode.task)
        scene = self._scene
        problem = self._problems[episode.task]
        self.instruction, self._clock, self._episode = problem.instruction, 0, episode
        if episode.split == "language":
            self.instruction = variations.rephrase(
                self.instruction, variations.make_generator("language", episode.seed)
            )
        self._operator = Operator()
        self._interest = package.read_objects_of_interest(problem.bddl)
        states = package.read_initial_states(problem.states)
        number = episode.initial_state
        if number is None:
            number = int(np.random.default_rng([episode.seed, _STATE_STREAM]).integers(len(states)))
        if not 0 <= number < len(states):
            raise UserError(
                f"'{problem.name}' has initial states 0 to {len(states) - 1}, and no {number}.",
                code="initial-state-unknown",
            )
        scene.begin(episode.seed, states[number], episode.split)

    def step(self, action: Array) -> StepOutcome:
        assert self._scene is not None
        self._clock += 1
        reward, success = self._scene.step(action)
        return StepOutcome(reward, success, success and self._config.terminate_on_success)

    def observe(self, pictures: bool) -> View:
        scene = self._scene
        assert scene is not None
        size = self._config.image_size
        images = {name: scene.draw(name, size, size) for name in self._config.cameras} if pictures else {}
        if self._episode.split == "noise":
            images = {name: self._distort(image, number) for number, (name, image) in enumerate(images.items())}
        poses = np.zeros((self._slots, len(POSE)), np.float32)
        for slot, (place, quaternion) in enumerate(scene.objects(self._interest)):
            poses[slot] = [*place, *quaternion]
        clock = self._clock / self._config.episode_steps
        return View(scene.state(), images, np.array([*poses.reshape(-1), scene.goal(), clock], np.float32))

    def _distort(self, image: Array, camera: int) -> Array:
        """Distort a picture as the episode's sensor does, with noise of this control step."""
        seed = self._episode.seed
        sensor = variations.make_generator("noise", seed)
        kind, strength = int(sensor.integers(variations.KINDS)), float(sensor.random())
        generator = variations.make_generator("noise", seed, 1 + camera, self._clock)
        return variations.distort(image, kind, strength, generator)

    def operate(self) -> Array:
        """Return the scripted operator's next action, float32 [7]."""
        assert self._scene is not None
        (thing, _), (basket, _) = self._scene.objects(self._interest)
        gripper = self._scene.gripper()
        return self._operator.act(thing + gripper, basket + gripper, gripper)

    def render(self, width: int, height: int) -> Array:
        assert self._scene is not None
        return self._scene.draw((*self._config.cameras, "agentview")[0], width, height)

    def close(self) -> None:
        if self._scene is not None:
            self._scene.close()
        self._task, self._scene = -1, None
