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

    Tasks, scenes, actions and rewards are those of `Tabletop`, and so are snapshots: an episode begun on the one goes
    on on the other. The physics is `mujoco_warp`'s, in float32: from the same state, one control step ends within 5 µm
    of MuJoCo's for cubes, and within 0.1 mm for 95 cylinders of a hundred; those that stand not quite upright can be
    off by millimetres, because the point in which such a cylinder touches the table drowns in rounding errors. The
    pictures are cast by `mujoco_warp`'s rays: of a thousand pixels, 999 are those of the ray camera to the bit.

    Raises:
        Unavailable: the device asked for is not there.
    """

    Config = TabletopWarpConfig
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: TabletopWarpConfig, num_envs: int) -> None:
        self._worlds = _build(config, num_envs)
        super().__init__(config, num_envs)
        from embodied_rl_sims.tabletop_warp.camera import WarpCamera

        self._pictures = WarpCamera(self._worlds, self._camera)

    @staticmethod
    def spec_of(config: TabletopWarpConfig) -> SimulatorSpec:
        """The tabletop's specification: observations are in NumPy arrays, wherever the physics runs."""
        from embodied_rl_sims.tabletop_warp.devices import choose_device

        choose_device(config.device)
        return spec_of(config)

    def bare_loop(self, actions: Array) -> Callable[[], None]:
        """What the device does for `actions` [chunks, n, H, A] from here on, as often as it is called.

        The simulator stays where it is. MuJoCo's own loop on the same tasks is that of `Tabletop`.
        """
        return self._worlds.recorded_loop(self._controls_of(actions), self._pictures.shoot)

    def _build_bodies(self) -> "WarpBodies":
        return self._worlds

    def _draw(self, rows: Array, pictures: Array) -> None:
        if len(rows):
            pictures[rows] = self._pictures.draw(self._view, self._colours)[rows]


def _build(config: TabletopWarpConfig, num_envs: int) -> "WarpBodies":
    from embodied_rl_sims.tabletop_warp.bodies import WarpBodies
    from embodied_rl_sims.tabletop_warp.devices import choose_device

    return WarpBodies(num_envs, choose_device(config.device), config.deterministic)
