"""What can be said of Isaac Lab on this machine without starting it."""

import shutil
from importlib.metadata import PackageNotFoundError, version

from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl_sims.isaac.app import EXPERIMENTAL, accepted

PINS = {"isaacsim": "5.1.0.0", "isaaclab": "2.3.2.post1"}
"""What the adapter was written against, and what `embodied-rl sim install isaaclab` installs."""


def diagnose() -> list[Diagnosis]:
    """Packages, licence and driver; raises nothing for what is missing."""
    return [
        Diagnosis("isaaclab adapter", "warn", "experimental", EXPERIMENTAL),
        *(_package(name, pinned) for name, pinned in PINS.items()),
        _licence(),
        _driver(),
    ]


def provenance() -> dict[str, str]:
    """Package → version, for those that are installed."""
    found = {name: _version(name) for name in PINS}
    return {name: number for name, number in found.items() if number}


def _package(name: str, pinned: str) -> Diagnosis:
    found, line = _version(name), f"package {name}"
    remedy = "embodied-rl sim install isaaclab"
    if found is None:
        return Diagnosis(line, "fail", "not installed", remedy)
    if found != pinned:
        return Diagnosis(line, "warn", f"{found}, written against {pinned}", remedy)
    return Diagnosis(line, "ok", found)


def _licence() -> Diagnosis:
    if accepted():
        return Diagnosis("Omniverse licence", "ok", "accepted")
    return Diagnosis("Omniverse licence", "fail", "not accepted", "read it, and set OMNI_KIT_ACCEPT_EULA=YES")


def _driver() -> Diagnosis:
    if shutil.which("nvidia-smi"):
        return Diagnosis("NVIDIA driver", "ok", "installed")
    return Diagnosis("NVIDIA driver", "fail", "not found", "Isaac Sim needs an RTX GPU and its driver")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
