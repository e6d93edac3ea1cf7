"""Physics: n MuJoCo simulations of one scene; their changing quantities are gathered into arrays.

Shapes: n environments. Positions are in metres in the frame of the arm's base, which stands on the table's edge.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array, NotFinite
from embodied_rl_sims.tabletop import arm
from embodied_rl_sims.tabletop.layout import KINDS, REST_HEIGHT, Layout
from embodied_rl_sims.tabletop.settings import SUBSTEPS

OBJECTS = tuple(f"object{i}" for i in range(len(KINDS)))
FIXTURES = ("zone0", "zone1", "plate", "bowl", "button0", "button1")
_OBJECT_START = np.array([9, 16, 23])  # where the objects' free joints begin in qpos, after the arm and two fingers
_CAPS = slice(30, 32)
STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_FINGER_OPEN = 0.04

View = tuple[Array, Array]
"""A picture's camera position [3], and its rays, flat [3 · pixels]."""


class Bodies:
    """n simulations that share one model.

    Attributes:
        model: model of the scene. data: the n simulations.
        qpos: float64 [n, 32], joint positions at the last `gather`.
        tool: float64 [n, 3], point between the finger tips, at the last `gather`.
    """

    def __init__(self, num_envs: int) -> None:
        self.model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("scene.xml")))
        self.data = self._build_data(num_envs)
        site = self.model.site("tool").id
        self._mocap = [int(self.model.body(name).mocapid[0]) for name in FIXTURES]
        self._qpos, self._ctrl = [data.qpos for data in self.data], [data.ctrl for data in self.data]
        self._tool = [data.site_xpos[site] for data in self.data]
        self.qpos, self.tool = np.zeros((num_envs, self.model.nq)), np.zeros((num_envs, 3))

    def _build_data(self, num_envs: int) -> list[mujoco.MjData]:
        return [mujoco.MjData(self.model) for _ in range(num_envs)]

    # -- reading --------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Update `qpos` and `tool` from the simulations."""
        np.concatenate(self._qpos, out=self.qpos.reshape(-1))
        np.concatenate(self._tool, out=self.tool.reshape(-1))

    def check_finite(self, rows: Array, clock: Array) -> None:
        """Check that the last `gather` of rows (bool [n]) is finite; `steps` (int64 [n]) is for the message.

        Raises:
            NotFinite: the physics of a row is broken.
        """
        broken = rows & ~np.isfinite(self.qpos).all(axis=1)
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            raise NotFinite(f"the tabletop's physics is no longer finite after control step {clock[row]}", row)

    @property
    def control(self) -> Array:
        """Return the joint commands of arm and fingers, [n, 9]."""
        return np.array(self._ctrl)

    @property
    def objects(self) -> Array:
        """Return the centres of the objects, [n, 3, 3]."""
        return self.qpos[:, _OBJECT_START[:, None] + np.arange(3)]

    @property
    def caps(self) -> Array:
        """Return the travel of the buttons' caps, [n, 2], negative when pressed."""
        return self.qpos[:, _CAPS]

    @property
    def width(self) -> Array:
        """Return the opening of the gripper, [n]."""
        return self.qpos[:, 7] + self.qpos[:, 8]

    def fixtures(self, row: int) -> Array:
        """Return the positions of the fixtures of one environment, [6, 2]."""
        return self.data[row].mocap_pos[self._mocap][:, :2]

    def scene(self, row: int) -> mujoco.MjData:
        """Update the positions of all bodies of one simulation, and return it for rendering."""
        mujoco.mj_kinematics(self.model, self.data[row])
        return self.data[row]

    # -- moving ---------------------------------------------------------------------------------------------------

    def advance(self, rows: Iterable[int], control: Array | None = None) -> None:
        """Run one control step of some environments, with `control` [n, 9] or with their previous commands.

        Body positions are updated at the end, so that the next step does not depend on rendering in between.
        """
        for row in rows:
            if control is not None:
                self._ctrl[row][:] = control[row]
            mujoco.mj_step(self.model, self.data[row], SUBSTEPS)
            mujoco.mj_kinematics(self.model, self.data[row])

    def servo(self, row: int, control: Array) -> None:
        """Run one physics step of one environment with `control` [9], and update the positions of its bodies."""
        self._ctrl[row][:] = control
        mujoco.mj_step(self.model, self.data[row])
        mujoco.mj_kinematics(self.model, self.data[row])

    def settle(self, rows: Iterable[int]) -> None:
        """Update the positions of all bodies from the joints; a step leaves them one substep behind."""
        for row in rows:
            mujoco.mj_kinematics(self.model, self.data[row])

    def place(self, row: int, layout: Layout) -> None:
        """Set up an episode's scene at rest."""
        data, qpos = self.data[row], self._qpos[row]
        mujoco.mj_resetData(self.model, data)
        for i, start in enumerate(_OBJECT_START):
            half = layout.object_turns[i] / 2
            qpos[start : start + 7] = [*layout.objects[i], REST_HEIGHT, np.cos(half), 0, 0, np.sin(half)]
        for fixture, mocap in enumerate(self._mocap):
            if np.isfinite(layout.fixtures[fixture, 0]):
                data.mocap_pos[mocap] = [*layout.fixtures[fixture], 0.0]
        qpos[:7] = arm.solve_inverse(layout.start[None])[0]
        qpos[7:9] = _FINGER_OPEN
        data.ctrl[:] = qpos[:9]
        mujoco.mj_kinematics(self.model, data)

    def shift_object(self, row: int, number: int, shift: Array) -> None:
        """Move one object over the table by [2] metres, unless it is in the air."""
        start = _OBJECT_START[number]
        if self._qpos[row][start + 2] < REST_HEIGHT + 0.005:
            self._qpos[row][start : start + 2] += shift

    def shift_fixture(self, row: int, number: int, shift: Array) -> None:
        """Move one fixture over the table by [2] metres."""
        self.data[row].mocap_pos[self._mocap[number]][:2] += shift

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> Array:
        """Return float64 [n, ...], the complete state from which `load` continues bit for bit."""
        states = np.zeros((len(self.data), mujoco.mj_stateSize(self.model, STATE)))
        for data, state in zip(self.data, states, strict=True):
            mujoco.mj_getState(self.model, data, state, STATE)
        return states

    def load(self, states: Array) -> None:
        """Restore a state that `save` returned."""
        for data, state in zip(self.data, states, strict=True):
            mujoco.mj_setState(self.model, data, state, STATE)

    def bare_loop(self, views: Sequence[View], controls: Array) -> Callable[[], None]:
        """Return a function that runs `bare_loop` on copies of the simulations, each time from this state."""
        states, scenes = self.save(), [copy(data) for data in self.data]

        def run() -> None:
            for scene, state in zip(scenes, states, strict=True):
                mujoco.mj_setState(self.model, scene, state, STATE)
            bare_loop(self.model, scenes, views, controls, SUBSTEPS)

        return run


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
