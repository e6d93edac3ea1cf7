"""Reader of untrusted YAML: plain values, no duplicate keys, no references."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable

LARGEST = 256 * 1024
"""Bytes of a file; a robot of 50 joints has 20,000."""
LONGEST = 1000
"""Characters of a text."""
MOST_DIGITS = 40
"""Characters of a whole number."""
_FLOAT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Loads plain values only. Numbers such as 1e-3, which YAML 1.1 reads as text, are numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _refuse("references (*name) are not supported: write the values out", self.peek_event())
        if getattr(self.peek_event(), "tag", None) not in (None, "!"):
            raise _refuse("types (!!name) are not supported: leave them out", self.peek_event())
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
                raise _refuse("a key that is not text: quote it, such as 'on' or '1'", key)
            if key.value in seen:
                raise _refuse(f"{key.value!r} is there twice: rename one", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _refuse(problem: str, place: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, place.start_mark)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_strict_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file; raises UserError: missing, too large, not YAML, empty, or not plain data."""
    if path.exists() and not path.is_file():  # a pipe would block
        raise UserError(f"{path} is not a file.", code="file-special")
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from None
    if len(raw) > LARGEST:
        raise UserError(
            f"{path} is larger than {LARGEST // 1024} KiB: it is not a robot's description.", code="file-too-large"
        )
    try:
        found = yaml.load(raw.decode(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = make_printable(" ".join(str(getattr(error, "problem", None) or error).split())[:200])
        raise UserError(f"{path} is not supported YAML: {where}{problem}", code="yaml-invalid") from None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} has no keys: see docs/robots.md for the format of a robot's file.", code="yaml-invalid"
        )
    return found
