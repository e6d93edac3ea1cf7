"""Convert a plain mapping, as Hydra composes it, to frozen dataclasses and back.

The dataclasses define keys, types, defaults and, in the string under each field, documentation. Every error names the
full key, the given value, the expected value and the text to type instead.
"""

import math
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from embodied_rl.interfaces.errors import UserError


class DataclassInstance(Protocol):
    """The type of any dataclass instance."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Config = TypeVar("Config", bound=DataclassInstance)
_TRUTH_VALUES = {
    form
    for word in ("y", "yes", "n", "no", "true", "false", "on", "off")
    for form in (word, word.title(), word.upper())
}
LARGEST_FLOAT = int(sys.float_info.max)
RENAMED = {"episodes": "curriculum", "logger.tensorboard": "logger=tensorboard|json"}
"""Old name of a key, or of a folder of YAML → its new name."""
SYNONYMS = {
    "learning_rate": "lr",
    "batch_size": "minibatch",
    "mini_batch_size": "minibatch",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_grad_norm": "grad_clip",
    "ent_coef": "entropy",
    "entropy_coef": "entropy",
    "discount": "gamma",
    "gae_lambda": "lam",
    "n_envs": "num_envs",
    "max_iterations": "iterations",
    "ppo": "flow_sde",
    "action_horizon": "horizon",
    "chunk_size": "horizon",
    "lora_rank": "rank",
    "episodes": "curricula",
}
"""Name of a key in other libraries → its name here, without its node."""
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def at_least(minimum: float, default: Any = MISSING, *, at_most: float | None = None) -> Any:
    """Return a dataclass field with bounds; None is always allowed by them."""
    return field(default=default, metadata={"at_least": minimum, "at_most": at_most})


def take_other_keys() -> Any:
    """Return a dataclass field that collects the keys unknown to its class, which belong to the plug-in of a node."""
    return field(default_factory=dict[str, Any], metadata={"rest": True})


def join_key(where: str, key: str) -> str:
    """Return the full name of `key` inside the node `where`."""
    return f"{where}.{key}" if where else key


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return " Did you mean 'x'?" with the closest known name, and list all known names if there are at most 24."""
    synonym = find_synonym(name, known)
    close = [synonym] if synonym else get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{hint} Known: {', '.join(known)}." if known and len(known) <= 24 else hint


def find_synonym(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that other libraries call `name`; full key names or bare ones.

    A key of the same node is preferred; otherwise the first known name counts.
    """
    where, dot, last = name.rpartition(".")
    if (ours := SYNONYMS.get(last)) is None:
        return None
    sibling = f"{where}{dot}{ours}"
    return sibling if sibling in known else next((each for each in known if each.rpartition(".")[2] == ours), None)


def describe_renamed(key: str, known: Collection[str]) -> str:
    """Return a sentence with the new name of an old key, to append to a message; empty if it is not in `known`."""
    new = RENAMED.get(key)
    return f" It is called '{new}' now." if new in known else ""


def freeze_config(kind: type[Config], mapping: Mapping[str, Any], where: str = "") -> Config:
    """Build a `kind` from a mapping, including nested dataclasses.

    Args:
        kind: a dataclass.
        mapping: key → plain value (numbers, text, None, lists, mappings).
        where: full name of the node, for messages; empty at the root.

    Raises:
        UserError: an unknown or missing key, or a value of the wrong type or outside its bounds.
    """
    known = {item.name: item for item in fields(kind) if item.init}
    rest_name = find_rest_field(kind)
    named = {key: value for key, value in mapping.items() if key in known and key != rest_name}
    extra = {key: value for key, value in mapping.items() if key not in named}
    if extra and rest_name is None:
        raise UserError(_describe_unknown_key(kind, next(iter(extra)), where), code="key-unknown")
    for name, item in known.items():
        if name not in named and item.default is MISSING and item.default_factory is MISSING:
            key = join_key(where, name)
            raise UserError(f"{key} is missing. Add {key}=<value>.", code="key-missing")
    hints = get_type_hints(kind)
    values = {key: _convert(value, hints[key], join_key(where, key)) for key, value in named.items()}
    for key, value in values.items():
        _check_bounds(value, known[key], join_key(where, key))
    try:
        return kind(**values, **({rest_name: extra} if rest_name else {}))
    except ValueError as error:  # a check in `__post_init__` of a plug-in's Config, of any kind of ValueError
        raise UserError(str(error), code=getattr(error, "code", "") or "config-invalid") from error


def thaw_config(config: DataclassInstance) -> dict[str, Any]:
    """Convert a dataclass to a mapping of plain values; plug-in keys join those of their node."""
    result: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if item.metadata.get("rest"):
            result.update(_plain(value))
        else:
            result[item.name] = _plain(value)
    return result


def to_yaml(config: DataclassInstance) -> str:
    """Return the whole configuration, including defaults, as YAML."""
    return dump_yaml(thaw_config(config))


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """Return plain values as YAML."""
    return yaml.dump(mapping, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Writes YAML as OmegaConf does: text that some reader would take for a number or a truth value gets quotes."""

    def ignore_aliases(self, data: Any) -> bool:  # equal values are written again
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    ambiguous = text in _TRUTH_VALUES
    with suppress(ValueError):
        float(text)
        ambiguous = True
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style="'" if ambiguous else None)


_Dumper.add_representer(str, _represent_text)


def read_text(path: Path) -> str:
    """Return the text of a YAML file. Raises `UserError` if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8.",
            code="file-not-utf8",
        ) from None


def find_rest_field(kind: type[DataclassInstance]) -> str | None:
    """Return the name of the field that takes unknown keys, or None."""
    return next((item.name for item in fields(kind) if item.metadata.get("rest")), None)


def list_key_paths(kind: type[DataclassInstance], where: str = "") -> list[str]:
    """Return the full names of all keys of a dataclass, including nested ones."""
    result: list[str] = []
    for name, hint in get_type_hints(kind).items():
        if name not in {item.name for item in fields(kind)} or name == find_rest_field(kind):
            continue
        result.append(join_key(where, name))
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for option in options:
            if isinstance(option, type) and is_dataclass(option):
                result += list_key_paths(option, join_key(where, name))
    return result


def _describe_unknown_key(kind: type[DataclassInstance], key: str, where: str) -> str:
    """Return the message for an unknown key: its new name, a key of the same name in a nested node, or a close one."""
    full, siblings = join_key(where, key), [join_key(where, item.name) for item in fields(kind)]
    if renamed := describe_renamed(full, siblings):
        return f"unknown key '{full}'.{renamed}"
    deepest_first = sorted(reversed(list_key_paths(kind, where)), key=lambda path: -path.count("."))
    nested = {path.rpartition(".")[2]: path for path in deepest_first}
    if synonym := find_synonym(full, list(nested.values())):
        return f"unknown key '{full}'. Did you mean '{synonym}'?"
    close = get_close_matches(key, list(nested), n=1)
    suggestion = f" Did you mean '{nested[close[0]]}'?" if close else suggest_name(full, siblings)
    return f"unknown key '{full}'.{suggestion}"


def _check_bounds(value: Any, item: Field[Any], where: str) -> None:
    minimum, maximum = item.metadata.get("at_least"), item.metadata.get("at_most")
    if minimum is not None and value is not None and not value >= minimum:  # true for NaN, too
        raise UserError(f"{where} must be at least {minimum}, not {value}.", code="value-out-of-range")
    if maximum is not None and value is not None and not value <= maximum:
        raise UserError(f"{where} must be at most {maximum}, not {value}.", code="value-out-of-range")
    if isinstance(value, float) and math.isinf(value):
        raise UserError(f"{where} is infinite. Give a finite number.", code="value-not-finite")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return thaw_config(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, Enum):
        return value.name.lower()
    return str(value) if isinstance(value, Path) else value


def _wrong_type(value: Any, expected: str, where: str, remedy: str = "") -> UserError:
    given = "nothing (null)" if value is None else f"{value!r} ({type(value).__name__})"
    return UserError(f"{where}: expected {expected}, got {given}.{remedy}", code="value-wrong-type")


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Convert `value` to the type `hint`; raises like `freeze_config`."""
    origin, options = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, options, where)
    if origin is Literal:
        return _convert_choice(value, {str(option): option for option in options}, where)
    if origin in (tuple, list):
        return _convert_sequence(value, hint, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong_type(value, "a group of keys", where)
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _convert(item, options[1], join_key(where, str(key))) for key, item in items}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value if isinstance(value, hint) else _convert_choice(value, {m.name.lower(): m for m in hint}, where)
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong_type(value, f"a group of keys, such as {where}.{fields(hint)[0].name}=<value>", where)
        return freeze_config(hint, cast("Mapping[str, Any]", value), where)
    return _convert_scalar(value, hint, where)


def _convert_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    others = [option for option in options if option is not types.NoneType]
    if value is None and len(others) < len(options):
        return None
    errors: list[UserError] = []
    for option in others:
        try:
            return _convert(value, option, where)
        except UserError as error:
            if error.code == "value-not-finite":
                raise
            errors.append(error)
    raise errors[-1] if len(errors) == 1 else _wrong_type(value, " or ".join(map(_describe_type, others)), where)


def _convert_choice(value: Any, known: dict[str, Any], where: str) -> Any:
    if value is not None and str(value) in known:
        return known[str(value)]
    suggestion = suggest_name(str(value), list(known))
    raise UserError(f"{where}: unknown value {value!r}.{suggestion}", code="value-unknown")


def _convert_sequence(value: Any, hint: Any, where: str) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if not isinstance(value, tuple | list):
        raise _wrong_type(value, f"a list, such as {where}=[…]", where)
    items = cast("Sequence[Any]", value)
    repeated = origin is list or options[-1] is Ellipsis
    if not repeated and len(items) != len(options):
        raise _wrong_type(value, f"a list of {len(options)}", where)
    kinds = [options[0]] * len(items) if repeated else options
    pairs = enumerate(zip(items, kinds, strict=True))
    result: list[Any] = [_convert(item, kind, f"{where}[{index}]") for index, (item, kind) in pairs]
    return tuple(result) if origin is tuple else result


def _convert_scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > LARGEST_FLOAT:
            raise UserError(f"{where}: a number of {value.bit_length()} bits is too large.", code="value-out-of-range")
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and value != value:  # only NaN differs from itself
        raise UserError(f"{where} is not a number (NaN). Give one.", code="value-not-finite")
    if type(value) is hint or (hint not in _SCALARS and isinstance(value, hint)):
        return value
    number = hint is str and type(value) in (int, float)
    remedy = f" To give a number as text, quote it twice: {where}='\"{value}\"'" if number else ""
    raise _wrong_type(value, _describe_type(hint), where, remedy)


def _describe_type(hint: Any) -> str:
    if get_origin(hint) in (tuple, list):
        return "a list"
    return _SCALARS.get(hint, getattr(hint, "__name__", str(hint)))
