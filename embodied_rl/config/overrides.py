"""Parse `key=value` without Hydra, for commands that are defined by their dataclass alone."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.config.option_files import READ_AS_DATA, check_key, find_data_file
from embodied_rl.interfaces.errors import UserError

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS = {"null": None, "true": True, "false": False}


def parse_overrides(overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Return the nested mapping that overrides such as `server.deadline=2` describe.

    Values are written as in Hydra's overrides: numbers, true, false, null, text, [a,b] and {key: value}.

    Args:
        overrides: as typed.
        config_dir: an extra folder of YAML, in which files that are read as data are looked for first.

    Raises:
        UserError: no `key=value`, a key is set twice, or brackets do not close.
    """
    result: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(\.[\w-]+)*", key):
            raise UserError(f"{text} is not a setting. Settings are written key=value.", code="setting-invalid")
        check_key(text, key)
        node = result
        *parents, last = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"{text}: another setting gives {parent} a value.", code="key-set-twice")
        if last in node:
            raise UserError(f"{key} is set twice: leave one of them out.", code="key-set-twice")
        file = find_data_file(key, value, config_dir) if key in READ_AS_DATA else None
        node[last] = parse_value(value, text) if file is None else str(file)
    return result


def parse_value(value: str, text: str) -> Any:
    """Return the value of an override; `text` is the whole of it, for messages.

    Raises:
        UserError: brackets do not close.
    """
    if value[:1] not in ("[", "{"):
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if quoted else _resolve(value)
    try:
        return _build(yaml.compose(value, yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{text} is not a setting: {problem}", code="setting-invalid") from None


def _build(node: yaml.Node | None) -> Any:
    """Return the value of a YAML node; text in quotes stays text. Raises `YAMLError` if a key is set twice."""
    if isinstance(node, yaml.SequenceNode):
        return [_build(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        result = {str(key.value): _build(item) for key, item in node.value}
        if len(result) < len(node.value):
            raise yaml.YAMLError("a key is set twice")
        return result
    assert isinstance(node, yaml.ScalarNode)
    return node.value if node.style in ("'", '"') else _resolve(node.value)


def _resolve(value: str) -> Any:
    """Return what a word means: a number, true, false, null or text."""
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value
