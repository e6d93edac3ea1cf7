"""Which versions of packages are installed, beside those that an adapter was tested with."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from embodied_rl.interfaces.sim import Diagnosis


def find_version(name: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution → version, for those that are installed."""
    return {name: found for name in names if (found := find_version(name)) is not None}


def diagnose_package(name: str, pinned: str, remedy: str, relation: str = "tested with") -> Diagnosis:
    """A line of `doctor`: whether a distribution is installed, in the version that the adapter has this relation to."""
    found = find_version(name)
    if found is None:
        return Diagnosis(f"package {name}", "fail", "not installed", remedy)
    if found != pinned:
        return Diagnosis(f"package {name}", "warn", f"{found}, {relation} {pinned}", remedy)
    return Diagnosis(f"package {name}", "ok", found)
