"""The tabletop with its physics and its camera on `mujoco_warp`. This module imports neither `mujoco_warp` nor Warp."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Diagnosis, SimulatorSpec, Unavailable
from embodied_rl.interfaces.trust import Text
from embodied_rl_sims.common import find_version
from embodied_rl_sims.tabletop import Tabletop
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of


@dataclass(frozen=True)
class TabletopWarpConfig(TabletopConfig):
    """Settings of the tabletop, and its device."""

    device: Text = "auto"
    """"auto" (the first CUDA device if one exists, else the processor), "cpu", or a CUDA device such as "cuda" or
    "cuda:1"."""
    deterministic: bool = True
    """on a CUDA device, sum in a fixed order, so that equal seeds give equal bits; False is faster. On the processor
    they always do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UserError(f"sim.device={self.device}: it is auto, cpu, cuda or cuda:<number>.", code="device-unknown")


_PACKAGES = ("mujoco", "mujoco-warp", "warp-lang")
_REMAKE = "embodied-rl sim install tabletop_warp replace=true"


def diagnose(config: TabletopWarpConfig) -> list[Diagnosis]:
    """Check that the package versions match, and which device is used."""
    return [check_packages(), check_device(config)]


def provenance(config: TabletopWarpConfig) -> dict[str, str]:
    """Return the versions of the packages, and the device."""
    return {**{name: find_version(name) or "missing" for name in _PACKAGES}, "device": check_device(config).found}


def check_packages() -> Diagnosis:
    """Check that MuJoCo and MuJoCo Warp, which are released together, have matching version numbers."""
    found = {name: find_version(name) or "missing" for name in _PACKAGES}
    shown = ", ".join(f"{name} {number}" for name, number in found.items())
    if "missing" in found.values():
        return Diagnosis("MuJoCo Warp", "fail", shown, _REMAKE)
    releases = {tuple(found[name].split(".")[:2]) for name in ("mujoco", "mujoco-warp")}
    return (
        Diagnosis("MuJoCo Warp", "ok", shown)
        if len(releases) == 1
        else Diagnosis("MuJoCo Warp", "warn", shown, _REMAKE)
    )


def check_device(config: TabletopWarpConfig) -> Diagnosis:
    """Check which device `sim.device` selects here."""
    try:
        from embodied_rl_sims.tabletop_warp.devices import choose_device, describe_device

        chosen = choose_device(config.device)
    except (ImportError, Unavailable) as error:
        said, _, remedy = str(error).partition(". ")
        return Diagnosis("device", "fail", said, remedy or _REMAKE)
    slow = "it works, but sim=tabletop is faster without a GPU" if chosen == "cpu" else ""
    return Diagnosis("device", "warn" if slow else "ok", describe_device(chosen), slow)


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
        return replace(spec_of(config), can_replay=False)

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
