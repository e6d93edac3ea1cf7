"""The tabletop with its physics and its camera on `mujoco_warp`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl_sims.tabletop import Tabletop
from embodied_rl_sims.tabletop.settings import spec_of
from embodied_rl_sims.tabletop_warp.diagnosis import diagnose, provenance
from embodied_rl_sims.tabletop_warp.settings import TabletopWarpConfig

if TYPE_CHECKING:
    from embodied_rl_sims.tabletop_warp.bodies import WarpBodies


class TabletopWarp(Tabletop):
    """n tabletops that one device steps together; implements `embodied_rl.interfaces.sim.Simulator`.

    Tasks, scenes, actions, rewards and snapshots are those of `Tabletop`: an episode begun on either can continue on
    the other. The physics is `mujoco_warp`'s, in float32: from the same state, one control step ends within 5 µm of
    MuJoCo's for cubes, and within 0.1 mm for 95 of 100 cylinders; cylinders that do not stand quite upright can be off
    by millimetres, because the contact point with the table is lost in rounding errors. The pictures are cast by
    `mujoco_warp`'s rays: of 1000 pixels, 999 equal those of the ray camera to the bit.

    Raises:
        Unavailable: the requested device does not exist.
    """

    Config = TabletopWarpConfig
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)
    servo = None  # its worlds run whole control steps only

    def __init__(self, config: TabletopWarpConfig, num_envs: int) -> None:
        self._worlds = _build(config, num_envs)
        super().__init__(config, num_envs)
        from embodied_rl_sims.tabletop_warp.camera import WarpCamera

        self._pictures = WarpCamera(self._worlds, self._camera)

    @staticmethod
    def spec_of(config: TabletopWarpConfig) -> SimulatorSpec:
        """Return the tabletop's specification: observations are NumPy arrays on every device."""
        from embodied_rl_sims.tabletop_warp.devices import choose_device

        choose_device(config.device)
        return spec_of(config)

    def bare_loop(self, actions: Array) -> Callable[[], None]:
        """Return a function that runs only the device's work for `actions` [chunks, n, H, A], always from this state.

        The simulator's state does not change. MuJoCo's own loop on the same tasks is that of `Tabletop`.
        """
        return self._worlds.recorded_loop(self._controls_of(actions), self._pictures.redraw)

    def _build_bodies(self) -> "WarpBodies":
        return self._worlds

    def _draw(self, rows: Array, pictures: Array) -> None:
        if len(rows):
            pictures[rows] = self._pictures.draw(self._view, self._colours)[rows]


def _build(config: TabletopWarpConfig, num_envs: int) -> "WarpBodies":
    from embodied_rl_sims.tabletop_warp.bodies import WarpBodies
    from embodied_rl_sims.tabletop_warp.devices import choose_device

    return WarpBodies(num_envs, choose_device(config.device), config.deterministic)
