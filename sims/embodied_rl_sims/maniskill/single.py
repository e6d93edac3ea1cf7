"""One ManiSkill environment on the processor; implements `embodied_rl_sims.rows.Environment`."""

import dataclasses
from importlib import import_module
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.common import fold_seed
from embodied_rl_sims.maniskill.observation_reader import ObservationReader, join_columns
from embodied_rl_sims.maniskill.settings import ManiSkillConfig, make_instruction
from embodied_rl_sims.rows import StepOutcome, View

_SEED_BITS = 32  # range of the package's seeds


def find_seed(episode: Episode) -> int:
    """Return the package's seed of an episode; seeds below 2^30 are those of the package, see `seeds.fold_seed`.

    A numbered initial state is directly the package's seed, because its benchmarks number their episodes this way. In
    put-on-plate tasks it is the scene's official number instead, and the seed determines nothing else.
    """
    if episode.initial_state is not None:
        return episode.initial_state % 2**_SEED_BITS
    return fold_seed(episode.seed, _SEED_BITS)


def choose_scene(env: Any, row: int, episode: Episode) -> None:
    """Set the official number of the next scene in a row of a put-on-plate task: a numbered initial state is one."""
    if hasattr(env, "numbers"):
        env.numbers[row] = episode.initial_state


def read_instructions(env: Any, task: str) -> list[str]:
    """Return the instruction of each row."""
    return getattr(env, "instructions", None) or [make_instruction(task)] * env.num_envs


class SingleEnvironment:
    """One environment; implements `embodied_rl_sims.rows.Environment`.

    Args:
        config: settings of the simulator.
        env: a `BaseEnv` of one environment with observation mode "none".
    """

    def __init__(self, config: ManiSkillConfig, env: Any) -> None:
        self.config, self.env = config, env
        self.instruction = read_instructions(env, config.task)[0]
        self._reader = ObservationReader(env, config.observations)
        self._info: dict[str, Any] = {}
        self._settles = hasattr(env, "numbers")  # things fall when an episode begins
        self._has_stepped = self._settles
        self._film: tuple[Any, dict[tuple[int, int], Any]] = (None, {})

    def begin(self, episode: Episode) -> None:
        if self._has_stepped and not self.env.reconfiguration_freq:
            renew_scene(self.env)
        choose_scene(self.env, 0, episode)
        _, self._info = self.env.reset(seed=find_seed(episode))
        self.instruction = read_instructions(self.env, self.config.task)[0]
        self._has_stepped = self._settles

    def step(self, action: Array) -> StepOutcome:
        _, reward, _, _, self._info = self.env.step(action)
        self._has_stepped = True
        success, fail = (bool(self._info.get(key, False)) for key in ("success", "fail"))
        return StepOutcome(float(reward), success, fail or (success and self.config.terminate_on_success))

    def observe(self, pictures: bool) -> View:
        known, hidden = self._reader.state(self._info)
        images = self._reader.pictures() if pictures else {}
        return View(
            state=join_columns(known, 1)[0].numpy(),
            images={name: image[0].numpy() for name, image in images.items()},
            privileged=join_columns(hidden, 1)[0].numpy() if hidden else None,
        )

    def render(self, width: int, height: int) -> Array:
        if self._film[0] is not self.env.scene:
            self._film = (self.env.scene, {})
        cameras = self._film[1]
        if (width, height) not in cameras:
            configs = self.env._human_render_camera_configs or self.env._sensor_configs
            config = dataclasses.replace(next(iter(configs.values())), width=width, height=height)
            cameras[width, height] = import_module("mani_skill.sensors.camera").Camera(config, self.env.scene)
        camera = cameras[width, height]
        for body in self.env._hidden_objects:
            body.show_visual()
        self.env.scene.update_render(update_sensors=False, update_human_render_cameras=True)
        camera.capture()
        picture = camera.get_obs(rgb=True, depth=False, position=False, segmentation=False)["rgb"]
        return np.array(picture[0].numpy())

    def close(self) -> None:
        self._film = (None, {})
        self.env.close()


def renew_scene(env: Any) -> None:
    """Move all bodies of a single environment into a new, empty PhysX scene.

    The package's reset sets poses and velocities, but PhysX keeps cached contacts: the order in which it solves them,
    and the contacts in the next observation (an episode that begins after one that ended in a grasp observes a grasp).
    A body also keeps its rest time until it is woken. A complete rebuild (`reconfigure`) clears this too, but takes
    about fifty times as long, because it reads the meshes again.

    Args:
        env: a `BaseEnv` with one environment on the processor.
    """
    sapien = import_module("sapien")
    scene = env.scene
    before = scene.sub_scenes[0]
    bodies = list(before.entities)
    for body in bodies:
        before.remove_entity(body)
    env._set_scene_config()
    physics = sapien.physx.PhysxCpuSystem()
    physics.timestep = scene.px.timestep
    after = sapien.Scene([physics, before.render_system] if before.render_system else [physics])
    for body in bodies:
        after.add_entity(body)
    for moved in physics.rigid_dynamic_components:
        if not moved.kinematic:
            moved.wake_up()
    scene.px, scene.sub_scenes[0] = physics, after
