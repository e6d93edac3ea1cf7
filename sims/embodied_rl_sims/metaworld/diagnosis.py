"""Diagnosis of MetaWorld on this machine, and provenance of its results."""

from collections.abc import Sequence

from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl_sims.common import diagnose_package, find_version, measure_rate
from embodied_rl_sims.metaworld.scene import MetaWorldScene, Renderers
from embodied_rl_sims.metaworld.settings import MetaWorldConfig
from embodied_rl_sims.opengl import DRIVERS, choose_other_renderer

PINS = {"metaworld": "3.1.1", "mujoco": "3.3.0", "gymnasium": "1.4.0"}
"""Versions that the adapter is tested with and that `embodied-rl sim install metaworld` installs."""

_INSTALL = "embodied-rl sim install metaworld"


def diagnose(config: MetaWorldConfig) -> Sequence[Diagnosis]:
    """Check packages against pins, and the renderer; report its pictures per second in the first task."""
    found = [diagnose_package(name, pinned, _INSTALL) for name, pinned in PINS.items()]
    if any(line.status == "fail" for line in found) or config.observations == "state":
        return found
    name = f"renderer {config.renderer}"
    try:
        renderers = Renderers(config.renderer)
        scene = MetaWorldScene(config.chosen[0], config, renderers)
        scene.begin(0, None)
        camera, size = (*config.cameras, "corner2")[0], config.image_size
        rate = measure_rate(lambda: scene.draw(camera, size, size), 5)
        scene.close()
        renderers.close()
    except Exception as error:  # noqa: BLE001  a driver can fail in any way, and the failure is the result
        remedy = f"install {DRIVERS[config.renderer]}, or sim.renderer={choose_other_renderer(config.renderer)}"
        return [*found, Diagnosis(name, "fail", f"{type(error).__name__}: {error}", remedy)]
    return [*found, Diagnosis(name, "ok", f"{rate:.1f} pictures/s at {size} px, {config.rendering}")]


def provenance(config: MetaWorldConfig) -> dict[str, str]:
    """Return versions of packages, and how pictures were drawn."""
    versions = {name: find_version(name) or "unknown" for name in (*PINS, "numpy")}
    return {**versions, "rendering": f"{config.rendering}, {config.renderer}"}
