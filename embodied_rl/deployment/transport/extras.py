"""Checks for optional packages. Imports the standard library only."""

from importlib import metadata

from embodied_rl.interfaces.sim import Unavailable

REMEDY = "pip install embodied-rl-robot"


def require(package: str, purpose: str) -> str:
    """Return the version of an installed package; raises `Unavailable` with the command that installs it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise Unavailable(f"{purpose} needs {package}, which is not installed here: {REMEDY}") from None
