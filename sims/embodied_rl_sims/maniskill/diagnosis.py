"""Diagnosis of ManiSkill on this machine for `embodied-rl doctor`, and provenance of its results."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl_sims.common import diagnose_package, find_version, find_versions, measure_rate
from embodied_rl_sims.maniskill.observation_reader import ObservationReader
from embodied_rl_sims.maniskill.package import check_assets, check_device, make_environment
from embodied_rl_sims.maniskill.settings import ManiSkillConfig

TRIED = {"mani_skill": "3.0.1", "sapien": "3.0.3", "gymnasium": "1.4.0", "torch": "2.13.0", "numpy": "1.26.4"}
"""Versions that the adapter is tested with."""

_INSTALL = "embodied-rl sim install maniskill"


def diagnose(config: ManiSkillConfig) -> list[Diagnosis]:
    """Check versions, assets, the Vulkan driver, the renderer's frame rate, and the motion planner. Never raises.

    With `sim.backend=gpu`, also check the CUDA device and PhysX's library for it.
    """
    checks: list[tuple[str, Callable[[ManiSkillConfig], Diagnosis]]] = [
        ("assets", _assets),
        ("renderer", _renderer),
        ("motion planner", _planner),
    ]
    if config.backend == "gpu":
        checks += [("CUDA device", _device), ("PhysX on CUDA", _physx)]
    lines = [diagnose_package(name, tried, _INSTALL) for name, tried in TRIED.items()]
    for name, check in checks:
        try:
            lines.append(check(config))
        except ModuleNotFoundError as error:
            lines.append(Diagnosis(name, "fail", str(error), _INSTALL))
        except (ValueError, RuntimeError) as error:  # a fault of the configuration or the machine
            lines.append(Diagnosis(name, "fail", "not usable", str(error)))
    return lines


def provenance(config: ManiSkillConfig) -> dict[str, str]:
    """Return package versions, the sha256 of the package's files of robots and tasks, and the renderer."""
    found = find_versions((*TRIED, "mplib"))
    env = make_environment(replace(config, backend="cpu"))
    device = env._render_device
    env.close()
    files: list[Any] = sorted(metadata.files("mani_skill") or (), key=str)
    hashes = [f"{file}={file.hash.value}" for file in files if file.hash is not None]
    if not hashes:
        raise Unavailable("mani_skill has no record of its files: install it with pip.")
    shapes = {"scene": "shapes in place of RL4VLA's meshes, pictures and robot"} if config.shapes else {}
    return {
        **found,
        **shapes,
        "mani_skill files sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        "render device": str(device and device.name),
    }


def _assets(config: ManiSkillConfig) -> Diagnosis:
    try:
        check_assets(config)
    except Unavailable as error:
        return Diagnosis("assets", "fail", f"incomplete for {config.task}", str(error))
    return Diagnosis("assets", "ok", "shapes of this package" if config.shapes else f"all that {config.task} needs")


def _renderer(config: ManiSkillConfig) -> Diagnosis:
    """Draw some frames; this takes seconds, because the driver first compiles its shaders."""
    env = make_environment(replace(config, backend="cpu"))
    try:
        reader = ObservationReader(env, "rgb")
        rate = measure_rate(reader.pictures, 20)
        device = env._render_device
        cameras = len(env._sensor_configs)
    finally:
        env.close()
    found = f"'{device.name}': {rate:.0f} frames/s of {config.image_size}² × {cameras} cameras, shader {config.shader}"
    if device.is_cpu():
        return Diagnosis("renderer", "warn", found, "drawn on the processor; an NVIDIA GPU is far faster")
    return Diagnosis("renderer", "ok", found)


def _planner(_: ManiSkillConfig) -> Diagnosis:
    version = find_version("mplib")
    if version is None:
        return Diagnosis("motion planner", "warn", "mplib is not installed", "pip install mplib==0.1.1")
    if int(np.__version__.partition(".")[0]) > 1:
        found = f"mplib {version} with NumPy {np.__version__}, which ends the process"
        return Diagnosis("motion planner", "warn", found, "pip install 'numpy<2'")
    return Diagnosis("motion planner", "ok", f"mplib {version}")


def _device(config: ManiSkillConfig) -> Diagnosis:
    check_device(config)
    import torch

    return Diagnosis("CUDA device", "ok", torch.cuda.get_device_name())


def _physx(_: ManiSkillConfig) -> Diagnosis:
    """Look for the library that SAPIEN downloads when it first simulates on a GPU."""
    folder = Path.home() / ".sapien" / "physx" / import_module("sapien.physx").version()
    if any(folder.glob("*PhysXGpu_64.*")):
        return Diagnosis("PhysX on CUDA", "ok", str(folder))
    command = f"{sys.executable} -c 'import sapien.physx; sapien.physx.enable_gpu()'"
    advice = f"the first episode downloads it from GitHub, which takes minutes; to do it now: {command}"
    return Diagnosis("PhysX on CUDA", "warn", f"no library in {folder}", advice)
