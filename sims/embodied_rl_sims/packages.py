"""Compare installed package versions with the versions that an adapter was tested with."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from embodied_rl.interfaces.sim import Diagnosis


def find_version(name: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Return distribution → version of the installed ones."""
    return {name: found for name in names if (found := find_version(name)) is not None}


def diagnose_package(name: str, pinned: str, remedy: str, relation: str = "tested with") -> Diagnosis:
    """Build the line of `doctor` for a distribution: not installed, pinned version, or another version."""
    found = find_version(name)
    if found is None:
        return Diagnosis(f"package {name}", "fail", "not installed", remedy)
    if found != pinned:
        return Diagnosis(f"package {name}", "warn", f"{found}, {relation} {pinned}", remedy)
    return Diagnosis(f"package {name}", "ok", found)
