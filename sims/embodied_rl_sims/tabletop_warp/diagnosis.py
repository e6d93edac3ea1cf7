"""Diagnosis of the tabletop on `mujoco_warp` on this machine, and provenance of its results."""

from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl_sims.packages import find_version
from embodied_rl_sims.tabletop_warp.settings import TabletopWarpConfig

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
