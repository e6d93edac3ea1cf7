"""The colours of a scene's objects and fixtures."""

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.bodies import FIXTURES, OBJECTS
from embodied_rl_sims.tabletop.layout import Layout


def paint_scene(model: mujoco.MjModel, colours: Array, layout: Layout) -> None:
    """Write the colours of a layout into `colours` [geometries, 3], 0…255; others keep the model's colour."""
    names = (*layout.object_colours, *layout.fixture_colours)
    for geometry, name in zip((*OBJECTS, *FIXTURES), names, strict=True):
        if name:
            colours[model.geom(geometry).id] = np.array(layout.look.colours[name]) * 255
