"""Check the settings in policy files, run folders and benchmarks, which may come from untrusted sources.

`embodied_rl.interfaces.trust` declares for each key what its value is. Addresses, names of secrets and code are
accepted if they are typed or in the user's own configuration; in a file they are refused unless they are the default.
Paths are accepted within the file's own folder, and as names of assets.
"""

import json
import shlex
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from embodied_rl.config import assets, hub, plugins
from embodied_rl.config.freeze import DataclassInstance, find_rest_field, freeze_config, join_key, thaw_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Trust
from embodied_rl.schema import SimChange, SimNode

Config = TypeVar("Config", bound=DataclassInstance)
Hint = Any
"""A type as an annotation gives it."""
_NAMES = {
    Trust.PATH: "a path outside of its folder",
    Trust.ADDRESS: "an address",
    Trust.SECRET_NAME: "an environment variable",
    Trust.CODE: "code",
}
LONGEST_VALUE = 200
"""Characters of a key and its value in a file that a message repeats at most."""


@dataclass(frozen=True)
class Setting:
    """A key of a configuration.

    Attributes:
        key: its full name.
        trust: as declared, or plain by its type; None for free text without a declaration.
        names: values that are names, although other values are paths or addresses.
        default: of the dataclass, as a plain value; None without one.
        value: in the file; the default if the file does not set it.
    """

    key: str
    trust: Trust | None
    names: frozenset[str]
    default: Any
    value: Any


def find_trust(hint: Hint) -> Trust | None:
    """Return the trust that a type declares or implies, the most restrictive of its parts; None for plain `str` or
    `Any`."""
    origin = get_origin(hint)
    if origin is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Trust)), find_trust(hint.__origin__))
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, bool | int | float | Enum | types.NoneType)):
        return Trust.PLAIN
    if origin in (Union, types.UnionType, tuple, list, dict, Mapping):
        parts = [find_trust(part) for part in get_args(hint) if part is not Ellipsis]
        declared = [part for part in parts if part is not None]
        return max(declared) if len(declared) == len(parts) > 0 else None
    return None


def list_settings(
    kind: type[DataclassInstance], stored: Mapping[str, Any] | None = None, where: str = ""
) -> list[Setting]:
    """Return the settings of a configuration's dataclass, of nested ones, and of the plug-ins that the values name.

    The keys of a `SimChange` are not among them, because its simulator may be named in other files.

    Args:
        kind: the dataclass.
        stored: its values in a file.
        where: full name of the node.

    Raises:
        UserError: `stored` names a plug-in that is not installed.
    """
    stored, hints, rest = stored or {}, get_type_hints(kind, include_extras=True), find_rest_field(kind)
    found: list[Setting] = []
    for item in fields(kind):
        if item.name == rest or not item.init:
            continue
        key, hint = join_key(where, item.name), hints[item.name]
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType, tuple) else (hint,)
        nested = next((each for each in options if isinstance(each, type) and is_dataclass(each)), None)
        if nested is not None:
            inner = stored.get(item.name)
            listed = (
                {f"{key}[{index}]": each for index, each in enumerate(inner)}
                if isinstance(inner, list)
                else {key: inner}
            )
            for name, each in listed.items():
                found += list_settings(nested, each if isinstance(each, Mapping) else None, name)
            continue
        default = item.default if item.default_factory is MISSING else item.default_factory()
        default = None if default is MISSING else list(default) if isinstance(default, tuple) else default
        found.append(Setting(key, find_trust(hint), _find_names(hint), default, stored.get(item.name, default)))
    name, group = stored.get("name"), getattr(kind, "kind", None)
    if rest is not None and group is not None and isinstance(name, str):
        found += list_settings(plugins.find_plugin(group, name).Config, stored, where)
    return found


def list_refused(settings: Sequence[Setting], folder: Path | None) -> list[Setting]:
    """Return the settings that a file with these values may not decide.

    Args:
        settings: of the file.
        folder: the file's own, in which its paths may lie; None if it has none.
    """
    refused: list[Setting] = []
    for setting in settings:
        leaves = list(_list_leaves(setting.value))
        is_container = isinstance(setting.value, Mapping)
        if setting.trust is Trust.PLAIN or setting.value is None or setting.value == setting.default:
            continue
        if is_container and all(each is None or isinstance(each, bool | int | float) for each in leaves):
            continue  # numbers cannot name anything
        paths_allowed = setting.trust is Trust.PATH and folder is not None
        if not all(
            isinstance(text, str) and (text in setting.names or (paths_allowed and _is_inside(text, folder)))
            for text in leaves
        ):
            refused.append(setting)
    return refused


def check_file(
    kind: type[DataclassInstance],
    stored: Mapping[str, Any],
    source: object,
    *,
    folder: Path | None = None,
    typed: Collection[str] = (),
    where: str = "",
    before: str = "",
) -> None:
    """Check that the values in a file may come from a file.

    Args:
        kind: the dataclass that the values belong to.
        stored: the values.
        source: the file, for messages.
        folder: the file's own, in which its paths may lie.
        typed: full names of keys that the user gave; they replace those of the file.
        where: full name of the node.
        before: text that is typed before the values, for messages.

    Raises:
        UserError: a value may not, and the message gives the text to type instead; or an unknown plug-in.
    """
    try:
        settings = list_settings(kind, stored, where)
    except UserError as error:
        raise UserError(f"{source}: {error}", code=error.code) from None
    _refuse(list_refused([each for each in settings if each.key not in typed], folder), source, before)


def freeze_file(kind: type[Config], stored: Mapping[str, Any], file: Path, where: str) -> Config:
    """Build a `kind` from values in a file."""
    check_file(kind, stored, file, folder=file.parent, where=where)
    return freeze_config(kind, stored, where)


def merge_typed_settings(
    stored: Config,
    typed: Config,
    overrides: Sequence[str],
    file: Path,
    *,
    folder: Path,
    free: Collection[str],
    unused: Collection[str],
    remedy: str,
) -> Config:
    """Return a stored configuration to continue, with the settings that only the command line may decide.

    Args:
        stored: configuration in the file.
        typed: configuration composed from the command line that continues it, and the user's own files.
        overrides: as typed.
        file: path of `stored`, for messages.
        folder: in which its paths may lie.
        free: keys and nodes that may be typed, and that the caller handles.
        unused: keys of `stored` that are not read; they get their defaults.
        remedy: for a typed key that cannot be changed.

    Raises:
        UserError: the file decides what only the command line may, or other keys were typed.
    """
    values, given = thaw_config(stored), thaw_config(typed)
    restricted = {each.key: each for each in list_settings(type(stored), values) if each.trust is not Trust.PLAIN}
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        key = next((each for each in restricted if f"{name}.".startswith(f"{each}.")), None)
        if name in free or name.partition(".")[0] in free:
            continue
        if key is None or key in unused:
            raise UserError(f"{override}: {name} cannot be changed. {remedy}", code="key-fixed-on-resume")
        _put(values, key, _get(given, key, restricted[key].value))
    for key in unused:
        _put(values, key, restricted[key].default)
    refused = list_refused(list_settings(type(stored), values), folder)
    differing = [
        each for each in refused if _get(given, each.key, None) != each.value
    ]  # others are in user's own files
    _refuse(differing, file, _format_typed(file.parent, overrides))
    return freeze_config(type(stored), values)


def merge_typed_sim_change(
    stored: SimChange,
    typed: SimChange,
    overrides: Sequence[str],
    simulators: Collection[str],
    file: Path,
    folder: Path,
) -> SimChange:
    """Return the changed settings of a continued evaluation; see `merge_typed_settings`.

    Args:
        stored: the change in the evaluation's folder.
        typed: the change on the command line that continues the evaluation.
        overrides: all that was typed.
        simulators: names of the simulators that it is applied to.
        file, folder: of `stored`.

    Raises:
        UserError: see `merge_typed_settings`.
    """
    keys, before = {f"sim.{key}" for key in typed.options}, _format_typed(file.parent, overrides)
    for name in simulators:
        settings = list_settings(SimNode, {"name": name}, "sim")
        plain = sorted(keys - {each.key for each in settings if each.trust is not Trust.PLAIN})
        if typed.name is not None or plain:
            key = "sim.name" if typed.name is not None else plain[0]
            raise UserError(
                f"{key} cannot be changed where an evaluation is continued. Evaluate again, without resume.",
                code="key-fixed-on-resume",
            )
        values = {"name": name, **stored.options}
        check_file(SimNode, values, file, folder=folder, typed=keys, where="sim", before=before)
    return SimChange(stored.name, {**stored.options, **typed.options})


def format_override(key: str, value: Any) -> str:
    """Return the shell text that sets a key; control characters are escaped, not sent to the terminal.

    A value that is long, or that Hydra would resolve, such as `${oc.env:HOME}`, is left for the user to type.
    """
    text = _assign(key, value)
    return text if len(text) <= LONGEST_VALUE and "${" not in text else f"'{key}=<value>'"


def format_resume(command: str, folder: Path, again: Sequence[Setting]) -> str:
    """Return the command that continues what a folder holds, with settings that are typed again."""
    words = (format_override(each.key, each.value) for each in again)
    return " ".join([f"embodied-rl {command} {_assign('resume', str(folder))}", *words])


def _format_typed(folder: Path, overrides: Sequence[str]) -> str:
    """Return the shell text of what was typed to continue a folder, so that a message gives the whole command."""
    rest = [each for each in overrides if each.lstrip("+").partition("=")[0] != "resume"]
    return " ".join([_assign("resume", str(folder)), *map(shlex.quote, rest), ""])


def _refuse(refused: Sequence[Setting], source: object, before: str = "") -> None:
    if refused:
        listed = ", ".join(f"{each.key} ({_NAMES[each.trust or Trust.CODE]})" for each in refused)
        remedy = " ".join(format_override(each.key, each.value) for each in refused)
        raise UserError(
            f"{source} sets {listed}, which is never taken from a file. If you trust the value, type it yourself: "
            f"{before}{remedy}",
            code="setting-not-trusted",
        )


def _is_inside(text: str, folder: Path | None) -> bool:
    """Return whether a path is an asset or ends within a folder, after resolving links."""
    if text.startswith(assets.PREFIX):
        return True  # `find_asset` does not leave the folder of assets
    if "://" in text or text.startswith(("~", hub.PREFIX)):
        return False
    try:
        return folder is not None and Path(text).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, too long, or a null character
        return False


def _list_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _list_leaves(each)
    else:
        yield value


def _find_names(hint: Hint) -> frozenset[str]:
    if get_origin(hint) is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, frozenset)), frozenset())
    return frozenset[str]().union(*(_find_names(part) for part in get_args(hint)))


def _get(values: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return the value of a full key such as "policy.lora.rank"."""
    found: Any = values
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return default
        found = found[name]
    return found


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for name in above:
        values = values[name]
    values[last] = value


def _assign(key: str, value: Any) -> str:
    """Return the shell text that sets a key."""
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("{}[],='\" ")
    return shlex.quote(f"{key}={value if plain and value else _to_text(value)}")


def _to_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_to_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_to_text, value)) + "]"
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
