"""Diagnosis of LIBERO on this machine, and provenance of its results."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl_sims.common import diagnose_package, find_version, measure_rate
from embodied_rl_sims.libero import loading, package
from embodied_rl_sims.libero.scene import LiberoScene
from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.opengl import DRIVERS, choose_other_renderer

PINS = {"hf-libero": "0.1.4", "robosuite": "1.4.0", "bddl": "1.0.1", "mujoco": "3.8.1"}
"""Versions that the adapter was tested with. LIBERO needs robosuite 1.4.0, which fails on MuJoCo 3.9 and newer."""

_INSTALL = "embodied-rl sim install libero"


def diagnose(config: LiberoConfig) -> Sequence[Diagnosis]:
    """Check packages against pins, the assets, and the renderer; report its pictures per second."""
    found = [diagnose_package(name, pinned, _INSTALL) for name, pinned in PINS.items()]
    mujoco = found[-1].found
    if tuple(int(part) for part in re.findall(r"\d+", mujoco)[:2]) >= (3, 9):
        found[-1] = Diagnosis("mujoco", "fail", f"{mujoco}; robosuite 1.4.0 needs one older than 3.9", _INSTALL)
    if any(line.status == "fail" for line in found):
        return found
    place = package.find_assets_folder(config.assets)
    if lacking := package.list_missing(config.suite, place):
        lack = f"{len(lacking)} files of {config.suite} are missing in {place}: {', '.join(lacking[:3])}"
        return [*found, Diagnosis("assets", "fail", lack, package.REMEDY)]
    files = _files(place)
    have = f"{place}: {len(files)} files, sha256 {package.hash_files(files, place)[:16]}"
    return [*found, Diagnosis("assets", "ok", have), _renderer(config, place)]


def provenance(config: LiberoConfig) -> dict[str, str]:
    """Return versions of packages; sha256 of the assets, of the suite's bddl files and of its initial states."""
    place, root = package.find_assets_folder(config.assets), package.find_benchmark_folder()
    problems = package.list_problems(config.suite)
    return {
        **{name: find_version(name) or "unknown" for name in (*PINS, "numpy")},
        "rendering": f"{config.rendering}, {config.renderer}",
        "assets sha256": package.hash_files(_files(place), place),
        "bddl sha256": package.hash_files([problem.bddl for problem in problems], root),
        "initial states sha256": package.hash_files([problem.states for problem in problems], root),
    }


def _renderer(config: LiberoConfig, place: Path) -> Diagnosis:
    """Draw the first task's scene as it is before an episode."""
    name = f"renderer {config.renderer}"
    try:
        environments = loading.load_package(config.renderer, place)
        scene = LiberoScene(environments, package.list_problems(config.suite)[0], config)
        camera, size = (*config.cameras, "agentview")[0], config.image_size
        rate = measure_rate(lambda: scene.draw(camera, size, size), 5)
        from OpenGL import GL  # with the chosen renderer

        driver = GL.glGetString(GL.GL_RENDERER)
        scene.close()
    except Exception as error:  # noqa: BLE001  a driver can fail in any way, and the failure is the result
        remedy = f"install {DRIVERS[config.renderer]}, or sim.renderer={choose_other_renderer(config.renderer)}"
        return Diagnosis(name, "fail", f"{type(error).__name__}: {error}", remedy)
    shown = driver.decode() if isinstance(driver, bytes) else "an unnamed driver"
    return Diagnosis(name, "ok", f"{shown}, {rate:.1f} pictures/s at {config.image_size} px, {config.rendering}")


def _files(place: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(place) for name in names]
