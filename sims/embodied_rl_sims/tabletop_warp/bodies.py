"""The tabletop's physics as n worlds of `mujoco_warp` on one device.

Scenes are set up and inspected in one MuJoCo simulation on the host, which represents one world at a time.
"""

from collections.abc import Callable, Iterable
from copy import copy

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.bodies import STATE, Bodies
from embodied_rl_sims.tabletop.layout import Layout
from embodied_rl_sims.tabletop.settings import SUBSTEPS
from embodied_rl_sims.tabletop_warp.devices import record_graph

_CONTACTS, _ROWS = 64, 256  # capacity of a world: contacts (on average), and rows of constraints
_TOO_MANY = (
    mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ | mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE
    | mjw.OverflowType.CCD | mjw.OverflowType.EPA_HORIZON
)  # fmt: skip


class WarpBodies(Bodies):
    """n worlds that step together; the state of rows that do not take part in a step is restored.

    Args:
        device: Warp device. deterministic: whether a CUDA device sums in a fixed order.

    Attributes:
        device: Warp device. simulated: the model. worlds: the changing data, on the device.
    """

    def __init__(self, num_envs: int, device: str, deterministic: bool = True) -> None:
        super().__init__(num_envs)
        self.device = device
        with wp.ScopedDevice(device):
            self.simulated = mjw.put_model(_adapt_model(self.model))
            self.worlds = mjw.make_data(self.model, num_envs, nconmax=_CONTACTS, njmax=_ROWS)
            size = mujoco.mj_stateSize(self.model, STATE)
            self._moved, self._held = (wp.zeros((num_envs, size), dtype=float) for _ in range(2))
            self._chosen, self._all = wp.zeros(num_envs, dtype=bool), wp.ones(num_envs, dtype=bool)
        options = self.simulated.opt
        options.warn_overflow = 0  # `gather` raises instead
        if deterministic and device != "cpu":
            options.deterministic = mjw.DeterminismType.ALL
        self._read, self._write = record_graph(device, self._read_state), record_graph(device, self._write_state)
        self._save, self._substep = record_graph(device, self._save_held), record_graph(device, self._step)
        self._put_back = record_graph(device, self._restore_held)
        self._site = self.model.site("tool").id
        self._states = np.zeros((num_envs, size), np.float32)  # valid if `_known`; `_placed` rows: newer than worlds
        self._known, self._placed = False, np.zeros(num_envs, bool)

    def _build_data(self, num_envs: int) -> list[mujoco.MjData]:
        return [mujoco.MjData(self.model)] * num_envs

    # -- recorded work --------------------------------------------------------------------------------------------

    def _read_state(self) -> None:
        mjw.get_state(self.simulated, self.worlds, self._moved, STATE, self._all)

    def _write_state(self) -> None:
        mjw.set_state(self.simulated, self.worlds, self._moved, STATE, self._chosen)
        mjw.kinematics(self.simulated, self.worlds)

    def _save_held(self) -> None:
        mjw.get_state(self.simulated, self.worlds, self._held, STATE, self._chosen)

    def _step(self) -> None:
        mjw.step(self.simulated, self.worlds)

    def _restore_held(self) -> None:
        mjw.set_state(self.simulated, self.worlds, self._held, STATE, self._chosen)
        mjw.kinematics(self.simulated, self.worlds)

    # -- reading --------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Update `qpos` and `tool` from the worlds.

        Raises:
            RuntimeError: a world has more contacts than its capacity.
        """
        self._copy_to_device()
        self.qpos[:] = self.worlds.qpos.numpy()
        self.tool[:] = self.worlds.site_xpos.numpy()[:, self._site]
        full = np.flatnonzero(self.worlds.overflow.numpy() & int(_TOO_MANY))
        if len(full):
            raise RuntimeError(f"environment {full[0]}: more contacts than the capacity of mujoco_warp ({_CONTACTS})")

    @property
    def control(self) -> Array:
        self._copy_to_device()
        return self.worlds.ctrl.numpy().astype(np.float64)

    def fixtures(self, row: int) -> Array:
        self._set_host_world(row)
        return super().fixtures(row)

    def scene(self, row: int) -> mujoco.MjData:
        self._set_host_world(row)
        return super().scene(row)

    # -- moving ---------------------------------------------------------------------------------------------------

    def advance(self, rows: Iterable[int], control: Array | None = None) -> None:
        self._copy_to_device()
        moving = np.isin(np.arange(len(self.qpos)), list(rows))
        if control is not None:
            told = self.worlds.ctrl.numpy()
            self.worlds.ctrl.assign(np.where(moving[:, None], control, told).astype(np.float32))
        self._chosen.assign(~moving)
        self._control_step()
        self._known = False

    def _control_step(self) -> None:
        """Run a control step of all worlds, then restore the worlds in `_chosen`."""
        self._save()
        for _ in range(SUBSTEPS):
            self._substep()
        self._put_back()

    def settle(self, rows: Iterable[int]) -> None:
        self._copy_to_device()

    def place(self, row: int, layout: Layout) -> None:
        super().place(row, layout)
        self._read_host_world(row)

    def shift_object(self, row: int, number: int, shift: Array) -> None:
        self._set_host_world(row)
        super().shift_object(row, number, shift)
        self._read_host_world(row)

    def shift_fixture(self, row: int, number: int, shift: Array) -> None:
        self._set_host_world(row)
        super().shift_fixture(row, number, shift)
        self._read_host_world(row)

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> Array:
        self._copy_to_host()
        return self._states.astype(np.float64)

    def load(self, states: Array) -> None:
        self._states[:] = states
        self._known, self._placed[:] = True, True

    def recorded_loop(self, controls: Array, draw: Callable[[], object]) -> Callable[[], None]:
        """Return a function that runs only the device's work for `controls` [chunks, H, n, 9], a picture per chunk.

        Each run starts from the worlds' state at the time of this call, and restores that state afterwards.
        """
        states, told = self.save(), wp.array(controls.astype(np.float32), device=self.device)

        def run() -> None:
            self.load(states)
            self._copy_to_device()
            self._chosen.zero_()
            for chunk in range(told.shape[0]):
                for step in range(told.shape[1]):
                    wp.copy(self.worlds.ctrl, told[chunk, step])
                    self._control_step()
                draw()
            self.load(states)

        return run

    # -- between host and device ----------------------------------------------------------------------------------

    def _copy_to_host(self) -> None:
        """Copy the worlds' states to the host, unless the host's copy is current."""
        if not self._known:
            self._read()
            self._states[:] = self._moved.numpy()
            self._known = True

    def _copy_to_device(self) -> None:
        """Copy states that were changed on the host to the worlds."""
        if self._placed.any():
            self._moved.assign(self._states)
            self._chosen.assign(self._placed)
            self._write()
            self._placed[:] = False

    def _set_host_world(self, row: int) -> None:
        """Set the simulation on the host to one world's state."""
        self._copy_to_host()
        mujoco.mj_setState(self.model, self.data[row], self._states[row].astype(np.float64), STATE)

    def _read_host_world(self, row: int) -> None:
        """Read one world's state from the simulation on the host."""
        self._copy_to_host()
        state = np.zeros(self._states.shape[1])
        mujoco.mj_getState(self.model, self.data[row], state, STATE)
        self._states[row], self._placed[row] = state, True


def _adapt_model(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return a copy of the model with flags for which `mujoco_warp` behaves as MuJoCo does with the original.

    `mujoco_warp` never resets automatically and does not support the flag for this. It computes box contacts like
    MuJoCo's box-box function only if general convex collision detection is off, which changes nothing else there.
    """
    model, flags = copy(model), mujoco.mjtDisableBit
    model.opt.disableflags &= ~int(flags.mjDSBL_AUTORESET)
    model.opt.disableflags |= int(flags.mjDSBL_NATIVECCD)
    return model
