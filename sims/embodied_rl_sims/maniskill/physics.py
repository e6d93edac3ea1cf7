"""Make episodes independent of earlier ones without rebuilding the scene."""

from importlib import import_module
from typing import Any


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
