"""Name → class of simulators, policies, algorithms and curricula. The engine knows none of them: entry points do.

A distribution offers plug-ins with an entry point in one of `GROUPS` that names a table, such as
`builtin = "embodied_rl_sims:SIMS"`. The table maps a name to "module:Class" and imports nothing, so that names can be
listed, and misspelt ones answered, without loading any simulator or network.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from embodied_rl.config.freeze import DataclassInstance, did_you_mean, freeze, join, key_paths
from embodied_rl.interfaces.errors import UserError

GROUPS = {
    "sims": "embodied_rl.sims",
    "policies": "embodied_rl.policies",
    "algorithms": "embodied_rl.algorithms",
    "episodes": "embodied_rl.episodes",
}
_SINGULAR = {"sims": "simulator", "policies": "policy", "algorithms": "algorithm", "episodes": "curriculum"}


@cache
def table(kind: str) -> dict[str, str]:
    """All plug-ins of a kind, name → "module:Class", over every installed distribution.

    Raises:
        UserError: two distributions offer the same name.
    """
    result: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUPS[kind]), key=lambda entry: entry.value):
        offered: Mapping[str, str] = entry.load()
        for name, path in offered.items():
            if result.setdefault(name, path) != path:
                raise UserError(f"two packages offer a {_SINGULAR[kind]} '{name}': {result[name]} and {path}.")
    return result


def names(kind: str) -> list[str]:
    """Names of all plug-ins of a kind, sorted."""
    return sorted(table(kind))


def path(kind: str, name: str) -> str:
    """Where a plug-in lives, "module:Class", without importing it.

    Raises:
        UserError: there is no such plug-in.
    """
    known = table(kind)
    if name not in known:
        installed = did_you_mean(name, names(kind)) or " None is installed: is embodied-rl installed (pip install)?"
        raise UserError(f"unknown {_SINGULAR[kind]} '{name}'.{installed}")
    return known[name]


def find(kind: str, name: str) -> type[Any]:
    """Import a plug-in.

    Raises:
        UserError: there is no such plug-in, or a package that it needs is not installed.
    """
    module, _, attribute = path(kind, name).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise  # a slip of the plug-in's author, not of the user
        raise UserError(
            f"{_SINGULAR[kind]} '{name}' needs the package '{error.name}', which is not installed here."
        ) from error


def configure(kind: str, node: DataclassInstance, where: str) -> tuple[type[Any], Any]:
    """Find the plug-in that a configuration node names, and freeze the node's options into the plug-in's `Config`.

    Args:
        kind: one of `GROUPS`.
        node: a `SimNode`, `PolicyNode`, `AlgoNode` or `EpisodesNode`.
        where: the node's full name, for messages.

    Returns:
        The plug-in's class, and an instance of its `Config`.

    Raises:
        UserError: an unknown plug-in, or options that its `Config` does not take.
    """
    options: dict[str, Any] = getattr(node, "options")  # noqa: B009 - nodes share this field, not a base class
    found = find(kind, getattr(node, "name"))  # noqa: B009
    own = key_paths(found.Config)
    for key in options:
        if key not in own:
            known = [join(where, item) for item in (*own, *key_paths(type(node)))]
            raise UserError(f"unknown key '{join(where, key)}'.{did_you_mean(join(where, key), known)}")
    return found, freeze(found.Config, options, where)
