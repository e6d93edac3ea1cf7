"""Baseline of `embodied-rl bench tabletop`: only the unavoidable MuJoCo calls."""

from collections.abc import Sequence

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array

View = tuple[Array, Array]
"""A picture's camera position [3], and its rays, flat [3 · pixels]."""


def bare_loop(
    model: mujoco.MjModel, scenes: Sequence[mujoco.MjData], views: Sequence[View], controls: Array, substeps: int
) -> None:
    """Step each scene through `controls` [chunks, H, n, 9], and cast one picture's rays after each chunk."""
    pixels = len(views[0][1]) // 3
    groups = np.array([1, 1, 1, 0, 1, 1], np.uint8)
    geometry, distance, normal = np.zeros(pixels, np.int32), np.zeros(pixels), np.zeros(3 * pixels)
    for chunk in controls:
        for row, (scene, (origin, rays)) in enumerate(zip(scenes, views, strict=True)):
            for control in chunk[:, row]:
                scene.ctrl[:] = control
                mujoco.mj_step(model, scene, substeps)
            mujoco.mj_multiRay(
                model, scene, origin, rays, groups, 1, -1, geometry, distance, normal, pixels, 10.0
            )  # fmt: skip
