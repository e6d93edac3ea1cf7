"""Find the classes of simulators, policies, algorithms, curricula, scorers and loggers by name, through entry points.

A distribution offers plug-ins with an entry point in one of `GROUPS` that names a table, such as
`builtin = "embodied_rl_sims:SIMS"`. The table maps a name to "module:Class" and imports nothing, so that names can be
listed, and suggested for misspelt ones, without loading any simulator or network.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from embodied_rl.config.freeze import (
    RENAMED,
    DataclassInstance,
    describe_renamed,
    freeze_config,
    join_key,
    list_key_paths,
    suggest_name,
)
from embodied_rl.interfaces.errors import UserError

GROUPS = {
    "sims": "embodied_rl.sims",
    "policies": "embodied_rl.policies",
    "algorithms": "embodied_rl.algorithms",
    "curricula": "embodied_rl.curricula",
    "scorers": "embodied_rl.scorers",
    "loggers": "embodied_rl.loggers",
}
_OLD_GROUPS = {"curricula": "embodied_rl.episodes"}
_SINGULAR = {
    "sims": "simulator",
    "policies": "policy",
    "algorithms": "algorithm",
    "curricula": "curriculum",
    "scorers": "scorer",
    "loggers": "logger",
}


@cache
def list_plugins(kind: str) -> dict[str, str]:
    """Return all plug-ins of a kind in all installed distributions, name → "module:Class".

    Raises:
        UserError: two distributions offer the same name, one uses the old name of a group, or the table of an entry
            point cannot be imported.
    """
    result: dict[str, str] = {}
    if kind in _OLD_GROUPS and (old := sorted(entry_points(group=_OLD_GROUPS[kind]), key=lambda entry: entry.value)):
        raise UserError(
            f"the entry point {old[0].value} is in the group '{_OLD_GROUPS[kind]}', which is called '{GROUPS[kind]}' "
            "now. Move it in the package's pyproject.toml, and install the package again.",
            code="plugin-group-renamed",
        )
    for entry in sorted(entry_points(group=GROUPS[kind]), key=lambda entry: entry.value):
        try:
            offered: Mapping[str, str] = entry.load()
        except ModuleNotFoundError as error:
            raise make_import_error(entry, error) from error
        for name, path in offered.items():
            if result.setdefault(name, path) != path:
                raise UserError(
                    f"two packages offer a {_SINGULAR[kind]} '{name}': {result[name]} and {path}.",
                    code="plugin-name-taken",
                )
    return result


def make_import_error(entry: EntryPoint, error: ModuleNotFoundError) -> UserError:
    """Return the error for an entry point that cannot be imported, such as of an editable install that was moved."""
    package = "a package" if entry.dist is None else f"the package '{entry.dist.name}'"
    remedy = "" if entry.dist is None else f", or remove it: pip uninstall {entry.dist.name}"
    return UserError(
        f"{package} is installed, but {entry.value}, which it offers as {entry.group}, cannot be imported: there is no "
        f"'{error.name}'. Install it again{remedy}.",
        code="plugin-not-importable",
    )


def list_names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind, sorted."""
    return sorted(list_plugins(kind))


def find_path(kind: str, name: str) -> str:
    """Return the path "module:Class" of a plug-in without importing it. Raises `UserError`: unknown plug-in."""
    known = list_plugins(kind)
    if name not in known:
        suggestion = suggest_name(name, sorted(known)) or " None is installed: is embodied-rl installed (pip install)?"
        raise UserError(f"unknown {_SINGULAR[kind]} '{name}'.{suggestion}", code="plugin-unknown")
    return known[name]


def find_plugin(kind: str, name: str) -> type[Any]:
    """Import a plug-in and return its class.

    Raises:
        UserError: unknown plug-in, or a package that it needs is not installed.
    """
    module, _, attribute = find_path(kind, name).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise  # a mistake of the plug-in's author, not of the user
        raise UserError(
            f"{_SINGULAR[kind]} '{name}' needs the package '{error.name}', which is not installed here.",
            code="package-missing",
        ) from error


def configure_plugin(kind: str, node: DataclassInstance, where: str) -> tuple[type[Any], Any]:
    """Find the plug-in that a configuration node names, and freeze the node's options into the plug-in's `Config`.

    Args:
        kind: one of `GROUPS`.
        node: a `SimNode`, `PolicyNode`, `AlgoNode`, `CurriculumNode`, `RewardNode` or `LoggerNode`.
        where: full name of the node, for messages.

    Returns:
        The plug-in's class, and an instance of its `Config`.

    Raises:
        UserError: an unknown plug-in, or options that its `Config` does not take.
    """
    found = find_plugin_with_keys(kind, node, where)
    return found, freeze_config(found.Config, getattr(node, "options"), where)  # noqa: B009 - as below


def find_plugin_with_keys(kind: str, node: DataclassInstance, where: str) -> type[Any]:
    """Return the class of a node's plug-in after checking the names of its options, but not their values.

    Raises:
        UserError: an unknown plug-in, or a key that its `Config` does not have.
    """
    options: dict[str, Any] = getattr(node, "options")  # noqa: B009 - nodes share this field, not a base class
    found = find_plugin(kind, getattr(node, "name"))  # noqa: B009
    own = list_key_paths(found.Config)
    for key in options:
        if key not in own:
            full = join_key(where, key)
            known = [join_key(where, item) for item in (*own, *list_key_paths(type(node)))]
            remedy = describe_renamed(full, RENAMED.values()) or suggest_name(full, known)
            raise UserError(f"unknown key '{full}'.{remedy}", code="key-unknown")
    return found
