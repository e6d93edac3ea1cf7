"""YAML from a stranger: plain values, each key once, nothing that refers to something else."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable

LARGEST = 256 * 1024
"""Bytes; a robot of 50 joints has 20,000."""
LONGEST = 1000
"""Characters of a text."""
MOST_DIGITS = 40
"""Characters of a whole number."""
_FLOAT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Plain values alone. Numbers such as 1e-3, which YAML 1.1 reads as text, are numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _refuse("references (*name) are not read here: write the values out", self.peek_event())
        if getattr(self.peek_event(), "tag", None) not in (None, "!"):
            raise _refuse("types (!!name) are not read here: leave them out", self.peek_event())
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        if len(text) > (MOST_DIGITS if node.tag == "tag:yaml.org,2002:int" else LONGEST):
            raise _refuse(f"a value of {len(text)} characters is too long", node)
        if any(unicodedata.category(letter)[0] == "C" and letter not in "\n\t" for letter in text):
            raise _refuse("a text with a character that cannot be shown", node)
        return text

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _refuse("a key that is no text: quote it, such as 'on' or '1'", key)
            if key.value in seen:
                raise _refuse(f"{key.value!r} stands there twice: give one of them another name", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _refuse(problem: str, place: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, place.start_mark)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_strict_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file.

    Raises:
        UserError: it is not there, too large, no YAML, has a key twice, a reference, or no keys.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UserError(f"{path} is no file.")
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
    return where + make_printable(" ".join(str(getattr(error, "problem", None) or error).split())[:200])
