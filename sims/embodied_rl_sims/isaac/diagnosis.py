"""Diagnosis of Isaac Lab on this machine without starting it."""

import shutil

from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl_sims.isaac.app import EXPERIMENTAL, is_licence_accepted
from embodied_rl_sims.packages import diagnose_package, find_versions

PINS = {"isaacsim": "5.1.0.0", "isaaclab": "2.3.2.post1"}
"""Versions that the adapter was written for and that `embodied-rl sim install isaaclab` installs."""

_REMEDY = "embodied-rl sim install isaaclab"


def diagnose() -> list[Diagnosis]:
    """Check packages, licence and driver; report missing parts without raising."""
    return [
        Diagnosis("isaaclab adapter", "warn", "experimental", EXPERIMENTAL),
        *(diagnose_package(name, pinned, _REMEDY, "written against") for name, pinned in PINS.items()),
        _licence(),
        _driver(),
    ]


def provenance() -> dict[str, str]:
    """Return package → version of the installed packages."""
    return find_versions(PINS)


def _licence() -> Diagnosis:
    if is_licence_accepted():
        return Diagnosis("Omniverse licence", "ok", "accepted")
    return Diagnosis("Omniverse licence", "fail", "not accepted", "read it, and set OMNI_KIT_ACCEPT_EULA=YES")


def _driver() -> Diagnosis:
    if shutil.which("nvidia-smi"):
        return Diagnosis("NVIDIA driver", "ok", "installed")
    return Diagnosis("NVIDIA driver", "fail", "not found", "Isaac Sim needs an RTX GPU and its driver")
