"""YAML from a stranger: plain values, each key once, nothing that refers to something else."""

import re
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.interfaces.errors import UserError

LARGEST = 256 * 1024
"""Bytes; a robot of 50 joints has 20,000."""
_FLOAT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")


class _Loader(yaml.SafeLoader):
    """Safe values alone. Numbers such as 1e-3, which YAML 1.1 reads as text, are numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            place = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(
                None, None, "references (*name) are not read here: write the values out", place
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                problem = "a key that is no text: quote it, such as 'on' or '1'"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"{key.value!r} stands there twice: give one of them another name"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_strict_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file.

    Raises:
        UserError: it is not there, too large, no YAML, has a key twice, a reference, or no keys.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > LARGEST:
        raise UserError(f"{path} is larger than {LARGEST // 1024} KiB: it is no description of a robot.")
    try:
        found = yaml.load(raw.decode(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no YAML that is read here: {_describe(error)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no keys: see docs/robots.md for what stands in a robot's file.")
    return found


def _describe(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f"line {mark.line + 1}: "
    return where + " ".join(str(getattr(error, "problem", None) or error).split())[:200]
